"""What is not accepted, in which words, and that nothing is touched then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from moerl_operator.core import world as w
from support.simulated_world import World, job_spec, nodes

Obj = dict[str, Any]
CUSTOM = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["x"]}]}}


def custom(transport: str, kind: str) -> Obj:
    spec = job_spec(framework={"type": "Custom"})
    for key in ("algorithm", "model"):
        del spec[key]
    spec["communication"] = {"expertParallel": {"backend": "DeepEP", "transport": transport, "onMismatch": "Fail"}}
    spec["trainer"] |= {"nodes": nodes(2, kind), "template": CUSTOM}
    spec["rollout"] |= {"template": CUSTOM}
    spec["rollout"]["pools"][0] |= {"nodes": nodes(kind=kind)}
    return spec


def refused(spec: Obj, **class_changes: Any) -> str:
    world = World(spec, **class_changes)
    made = world.reconcile()
    assert made.actions == ()
    found = world.condition("Accepted")
    assert (found["status"], found["reason"]) == ("False", "InvalidSpec")
    assert world.state() == "Invalid"
    return str(found["message"])


def with_template(template_spec: Obj) -> Obj:
    spec = job_spec()
    spec["environment"]["template"] = {"spec": template_spec}
    return spec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (custom("EFAGDA", "c7i.large"), ["EFAGDA needs EFA", "c7i.large"]),
        (custom("EFAProxy", "g6.xlarge"), ["EFAProxy needs EFA", "g6.xlarge"]),
        (custom("EFAGDA", "p5.48xlarge"), ["EFAGDA runs on p5en.*", "p5.48xlarge", "EFAProxy"]),
        (custom("NVLink", "c7i.large"), ["NVLink needs GPUs"]),
        (custom("EFAProxy", "p7.unknown"), ["p7.unknown is not an instance type"]),
    ],
)
def test_transport_against_instances(spec: Obj, words: list[str]) -> None:
    message = refused(spec)
    for word in words:
        assert word in message


def test_mixed_layouts_in_one_group() -> None:
    spec = custom("EFAProxy", "p5en.48xlarge")
    spec["trainer"]["nodes"]["instanceTypes"] = ["p5en.48xlarge", "p5.48xlarge"]
    assert "p5en.48xlarge and p5.48xlarge differ" in refused(spec)


def test_cpu_types_may_mix() -> None:
    spec = job_spec()
    spec["trainer"]["nodes"]["instanceTypes"] = ["c7i.large", "c7i.xlarge"]
    world = World(spec)
    world.run(1)
    assert world.condition("Accepted")["status"] == "True"


@pytest.mark.parametrize("backend", ["DeepEP", "Reference"])
def test_native_runtime_promises_no_backend(backend: str) -> None:
    spec = job_spec(communication={"expertParallel": {"backend": backend, "transport": "Auto"}})
    assert f"framework Native accepts only Auto, not {backend}" in refused(spec)


@pytest.mark.parametrize(
    ("changes", "spec", "words"),
    [
        ({"allowedNamespaces": ["team-*"]}, None, "does not allow namespace ml"),
        ({"allowedInstanceTypes": ["p5*", "r7i.*"]}, None, "does not allow c7i.large; it allows p5*, r7i.*"),
        ({"maxNodes": 5}, None, "6 nodes asked of MoERLNodeClass default, which allows 5"),
        (
            {"allowedReservations": ["cr-1"]},
            nodes(2, capacityType="Reserved", capacityReservation="cr-2"),
            "does not allow cr-2",
        ),
        ({}, nodes(2, zones=["eu-west-1a"]), "has no subnet in eu-west-1a"),
        ({}, nodes(2, nodeClassName="gold"), "MoERLNodeClass gold does not exist"),
        ({"subnets": "nonsense"}, None, "MoERLNodeClass default is not valid"),
        ({"defaults": {}}, None, "the main container needs an image"),
    ],
)
def test_what_the_class_allows(changes: Obj, spec: Obj | None, words: str) -> None:
    wish = job_spec()
    if spec:
        wish["trainer"]["nodes"] = spec
    assert words in refused(wish, **changes)


@pytest.mark.parametrize(
    ("template_spec", "words"),
    [
        ({"hostNetwork": True}, "hostNetwork is true"),
        ({"hostPID": True}, "hostPID is true"),
        ({"nodeName": "n1"}, "nodeName passes the scheduler"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/etc"}}]}, "volumes[0] is the hostPath /etc"),
        (
            {"containers": [{"name": "main", "securityContext": {"privileged": True}}]},
            "containers[0].securityContext.privileged is true",
        ),
        (
            {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]},
            "initContainers[0].securityContext.privileged is true",
        ),
        (
            {"containers": [{"name": "main", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
            "containers[0].securityContext.capabilities adds SYS_ADMIN",
        ),
        (
            {"containers": [{"name": "main", "ports": [{"containerPort": 1, "hostPort": 1}]}]},
            "containers[0].ports has a hostPort",
        ),
    ],
)
def test_what_a_template_may_not_ask(template_spec: Obj, words: str) -> None:
    message = refused(with_template(template_spec))
    assert words in message
    assert "spec.environment.template.spec" in message
    assert "MoERLNodeClass default does not permit" in message


@pytest.mark.parametrize(
    ("path", "accepted"),
    [
        ("/data", True),
        ("/data/sub", True),
        ("/database", False),
        ("/data/../etc", False),
        ("/", False),
    ],
)
def test_permitted_host_paths(path: str, accepted: bool) -> None:
    spec = with_template({"volumes": [{"name": "x", "hostPath": {"path": path}}]})
    world = World(spec, permittedHostPaths=["/data"])
    world.run(1)
    assert (world.condition("Accepted")["status"] == "True") is accepted


def test_permitted_capabilities() -> None:
    context = {"capabilities": {"add": ["SYS_PTRACE"]}}
    spec = with_template({"containers": [{"name": "main", "securityContext": context}]})
    world = World(spec, permittedCapabilities=["SYS_PTRACE"])
    world.run(1)
    assert world.condition("Accepted")["status"] == "True"


def test_a_broken_pattern_of_a_failure_rule() -> None:
    spec = job_spec()
    spec["trainer"]["failurePolicy"]["rules"] = [{"messagePattern": "(", "action": "Fail"}]
    assert "spec.trainer.failurePolicy.rules[0].messagePattern" in refused(spec)


def test_a_spec_that_does_not_parse() -> None:
    assert refused(job_spec(trainer={"nodes": nodes(2), "bogus": 1})).startswith("spec.trainer.bogus")


def test_the_servers_words_about_a_child_are_kept() -> None:
    world = World()
    world.rejected = 'Deployment demo-environment: strict decoding error: unknown field "spec.template.spec.containerz"'
    made = world.reconcile()
    assert made.actions == ()
    assert world.condition("Accepted")["message"] == world.rejected
    assert not world.children
    assert world.job is not None
    assert world.job["metadata"]["finalizers"] == []
    world.rejected = None
    world.edit(lambda spec: spec["environment"].update(replicas=2))
    world.run(8)
    assert world.state() == "Running", "the corrected generation goes on"


def test_every_child_of_a_generation_is_tried_first() -> None:
    made = World().decide()
    kinds = [(o["kind"], o["metadata"]["name"]) for o in made.dry_run]
    assert ("Job", "demo-trainer-a1") in kinds
    assert ("Job", "demo-rollout-spot-0-a1") in kinds
    assert ("Deployment", "demo-environment") in kinds
    assert ("StatefulSet", "demo-buffer") in kinds
    assert len(kinds) == len(set(kinds))


def test_an_accepted_generation_is_not_tried_again_after_a_restart() -> None:
    world = World()
    world.run(8)
    world.asked.clear()
    assert world.decide().dry_run == ()
    assert world.decide().actions == ()


def test_an_invalid_change_touches_nothing_and_what_runs_goes_on() -> None:
    world = World()
    world.run(8)
    pods = {p["metadata"]["uid"] for p in world.pods.values()}
    world.edit(lambda spec: spec["environment"].update(template={"spec": {"hostNetwork": True}}))
    world.run(4)
    assert world.condition("Accepted")["status"] == "False"
    assert {p["metadata"]["uid"] for p in world.pods.values()} == pods
    assert world.condition("Accepted")["observedGeneration"] == 2
    assert world.condition("Ready")["status"] == "True"


CHANGES: list[tuple[str, Callable[[Obj], object]]] = [
    ("spec.trainer", lambda s: s["trainer"].update(template=CUSTOM)),
    ("spec.rollout.pools[spot]", lambda s: s["rollout"].update(template=CUSTOM)),
    ("spec.environment", lambda s: s["environment"].update(template=CUSTOM)),
    ("spec.buffer", lambda s: s["buffer"].update(template=CUSTOM)),
    ("spec.trainer", lambda s: s["algorithm"].update(learningRate="1e-3")),
    ("spec.trainer.nodes", lambda s: s["trainer"].update(nodes=nodes(2, "c7i.xlarge"))),
]


@pytest.mark.parametrize(("where", "change"), CHANGES, ids=[str(n) for n in range(len(CHANGES))])
def test_what_may_change_only_while_suspended(where: str, change: Callable[[Obj], object]) -> None:
    """The API server's rules refuse these too; this is for a job whose resumption is still under way."""
    world = World()
    world.run(8)
    world.edit(change)
    made = world.reconcile()
    assert made.actions == ()
    assert "only while the job is suspended" in world.condition("Accepted")["message"]
    assert world.condition("Accepted")["message"].startswith(where)
    world.edit(lambda spec: spec.update(suspend=True))
    world.run(5)
    assert world.condition("Accepted")["status"] == "True"
    world.edit(lambda spec: spec.update(suspend=False))
    world.run(10)
    assert world.state() == "Running"


def test_narrowing_a_class_stops_no_running_job() -> None:
    world = World()
    world.run(8)
    world.classes["default"]["spec"]["allowedInstanceTypes"] = ["p5*"]
    assert world.reconcile().actions == ()
    assert world.condition("Accepted")["status"] == "True"
    world.edit(lambda spec: spec["environment"].update(replicas=2))
    world.reconcile()
    assert world.condition("Accepted")["status"] == "False"


def test_a_class_that_vanishes_does_not_crash_the_policy() -> None:
    world = World()
    world.run(8)
    world.classes.clear()
    assert world.reconcile().actions == ()
    assert "MoERLNodeClass default does not exist" in world.condition("Accepted")["message"]
    world.delete()
    world.run(6)
    assert world.job is None


def test_a_spec_that_no_longer_parses_can_still_be_deleted() -> None:
    world = World()
    world.run(8)
    world.edit(lambda spec: spec.update(unheardOf=1))
    world.delete()
    world.run(6)
    assert world.job is None
    assert not world.groups


def test_facts_are_not_asked_while_aws_is_silent() -> None:
    world = World(custom("EFAGDA", "p5en.48xlarge"))
    world.aws_error = w.AwsError("ec2:DescribeInstanceTypes", "RequestTimeout", "no answer", "Retry")
    world.reconcile()
    assert world.condition("Accepted")["status"] == "Unknown"
    assert "p5en.48xlarge" in world.condition("Accepted")["message"]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"spec": None}, "spec.environment.template.spec must be an object"),
        ({"spec": "x"}, "spec.environment.template.spec must be an object"),
        ({"metadata": []}, "spec.environment.template.metadata must be an object"),
        ({"spec": {"containers": {"name": "main"}}}, "template.spec.containers must be a list"),
        ({"spec": {"containers": ["main"]}}, "template.spec.containers[0] must be an object"),
        ({"spec": {"initContainers": None}}, "template.spec.initContainers must be a list"),
        ({"spec": {"containers": [{"env": {"A": "1"}}]}}, "template.spec.containers[0].env must be a list"),
        ({"spec": {"containers": [{"resources": {"limits": 3}}]}}, "containers[0].resources.limits must be an object"),
        ({"spec": {"affinity": {"podAntiAffinity": 1}}}, "template.spec.affinity.podAntiAffinity must be an object"),
    ],
)
def test_a_template_of_another_shape_is_named_and_crashes_nothing(template: Obj, words: str) -> None:
    spec = job_spec()
    spec["environment"]["template"] = template
    assert words in refused(spec)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "spec",
                        "metadata",
                        "containers",
                        "initContainers",
                        "env",
                        "name",
                        "image",
                        "volumes",
                        "resources",
                        "limits",
                        "securityContext",
                        "labels",
                        "tolerations",
                        "affinity",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ).filter(lambda value: isinstance(value, dict))
)
def test_no_template_crashes_the_policy(template: Obj) -> None:
    spec = job_spec()
    for role in ("trainer", "rollout", "environment", "buffer"):
        spec[role]["template"] = template
    World(spec).decide()


@pytest.mark.parametrize(
    ("reported", "refused"),
    [
        ([{"nvidia.com/gpu": "8"}], True),
        ([{}, {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"}], False),  # one whose plugins are not up yet
        ([], False),  # nothing is known of nodes that are not there
    ],
)
def test_existing_nodes_without_efa(reported: list[Obj], refused: bool) -> None:
    spec = custom("EFAProxy", "p5en.48xlarge")
    spec["trainer"]["nodes"] = {
        "nodeClassName": "default",
        "provisioner": "Existing",
        "nodeSelector": {"a": "b"},
        "instanceTypes": ["p9en.48xlarge"],  # of which nothing is known
        "count": 2,
        "capacityType": "OnDemand",
    }
    world = World(spec)
    for number, allocatable in enumerate(reported):
        world.nodes[f"n{number}"] = {
            "metadata": {"name": f"n{number}", "labels": {"a": "b"}},
            "spec": {},
            "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
        }
    world.reconcile()
    message = world.condition("Accepted")["message"]
    assert ("EFAProxy needs EFA, which no node of spec.trainer has" in message) == refused, message


def test_every_generation_that_is_refused_is_told() -> None:
    world = World(job_spec(trainer={"nodes": nodes(2), "bogus": 1}))
    world.run(2)
    world.edit(lambda spec: spec["trainer"].update(bogus=2))
    world.run(2)
    assert [e.reason for e in world.events] == ["InvalidSpec", "InvalidSpec"]
