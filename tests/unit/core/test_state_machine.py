"""The policy against a world that does whatever it likes: what must hold at every moment, and what at rest."""

from __future__ import annotations

import copy
import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moerl_operator.api import names
from moerl_operator.api.status import Status
from moerl_operator.core import world as w
from support.simulated_world import World, job_spec, nodes

Obj = dict[str, Any]
MAKING = (w.CreateChild, w.ApplyChild, w.CreateNodeGroup)
DENIED = w.AwsError("eks:CreateNodegroup", "AccessDeniedException", "not authorized", "Terminal")
UNREACHABLE = w.AwsError("eks:ListNodegroups", "EndpointConnectionError", "no answer", "Retry")
FINAL_REPORT = json.dumps(
    {"schema": 1, "iteration": 350, "final": {"version": 350, "uri": "s3://b/a", "marker": "s3://b/a/COMPLETE"}}
)


class Policy(RuleBasedStateMachine):
    """One job in one world."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(job_spec(), gangHoldSeconds=60)
        self.highest: dict[str, int] = {}
        self.ended = False
        self.seen = 0

    @initialize(ticks=st.sampled_from([0, 1, 2, 8, 8, 8]))
    def begin(self, ticks: int) -> None:
        self.world.run(ticks)

    # --- the operator and time -----------------------------------------------------------------------

    @rule(ticks=st.integers(1, 4))
    def go_on(self, ticks: int) -> None:
        self.world.run(ticks)

    @rule(seconds=st.sampled_from([1, 20, 90, 600]))
    def time_passes(self, seconds: int) -> None:
        self.world.tick(seconds)

    @precondition(lambda self: self.world.job is not None)
    @rule(after=st.integers(0, 20))
    def crash(self, after: int) -> None:
        self.world.reconcile(crash_after=after)

    # --- the user ------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.job is not None)
    @rule(replicas=st.integers(1, 3))
    def resize_pool(self, replicas: int) -> None:
        self.world.edit(lambda spec: spec["rollout"]["pools"][0].update(replicas=replicas))
        self.highest = {slot: n for slot, n in self.highest.items() if int(slot.rpartition("/")[2] or 0) < replicas}

    @precondition(lambda self: self.world.job is not None)
    @rule(on=st.booleans())
    def suspend(self, on: bool) -> None:
        self.world.edit(lambda spec: spec.update(suspend=on))

    @precondition(lambda self: self.world.job is not None)
    @rule(
        image=st.sampled_from(["a", "b"]),
        role=st.sampled_from(["trainer", "rollout", "environment"]),
        suspend=st.booleans(),
    )
    def edit_template(self, image: str, role: str, suspend: bool) -> None:
        template = {"spec": {"containers": [{"name": "main", "image": image}]}}
        self._suspended_first(suspend, lambda spec: spec[role].update(template=template))

    @precondition(lambda self: self.world.job is not None)
    @rule(kind=st.sampled_from(["c7i.large", "c7i.xlarge"]), suspend=st.booleans())
    def other_instances(self, kind: str, suspend: bool) -> None:
        self._suspended_first(suspend, lambda spec: spec["trainer"].update(nodes=nodes(2, kind)))

    def _suspended_first(self, suspend: bool, change: Any) -> None:
        """A change that is allowed, by suspending before, or one that must be refused; both are taken back or on."""
        before = copy.deepcopy(self.world.job["spec"]) if self.world.job else {}
        if suspend:
            self.world.edit(lambda spec: spec.update(suspend=True))
            self.world.run(2)
        if self.world.job is None:
            return
        self.world.edit(change)
        self.world.run(1)
        if self.world.job is not None:
            back = {"suspend": False} if suspend else before
            self.world.edit(lambda spec: spec.update(back))

    @precondition(lambda self: self.world.job is not None and len(self.world.log) % 5 == 0)
    @rule()
    def delete(self) -> None:
        self.world.delete()

    # --- the cluster ---------------------------------------------------------------------------------

    @precondition(lambda self: self.world.live_pods("trainer") or self.world.live_pods("rollout"))
    @rule(pick=st.integers(0, 10), code=st.sampled_from([1, 137, 143]))
    def fail_pod(self, pick: int, code: int) -> None:
        pods = self.world.live_pods("trainer") + self.world.live_pods("rollout")
        self.world.fail_pod(pods[pick % len(pods)]["metadata"]["name"], code=code)

    @precondition(lambda self: self.world.pods)
    @rule(pick=st.integers(0, 10))
    def delete_pod(self, pick: int) -> None:
        pods = list(self.world.pods.values())
        pods[pick % len(pods)]["metadata"]["deletionTimestamp"] = self.world.now.isoformat()

    @rule(code=st.sampled_from([0, 143]))
    def programs_exit_with(self, code: int) -> None:
        self.world.exit_on_sigterm = code

    @precondition(lambda self: self.world.nodes)
    @rule(pick=st.integers(0, 10), back=st.booleans())
    def lose_node(self, pick: int, back: bool) -> None:
        found = list(self.world.nodes)
        (self.world.heal_node if back else self.world.lose_node)(found[pick % len(found)])

    @precondition(lambda self: self.world.live_pods("trainer"))
    @rule(final=st.booleans())
    def trainer_ends(self, final: bool) -> None:
        if final and ("ConfigMap", "demo-report") in self.world.children:
            self.world.report(FINAL_REPORT)
        self.world.succeed_pods("trainer")

    # --- AWS -----------------------------------------------------------------------------------------

    @rule(error=st.sampled_from([None, UNREACHABLE]))
    def aws_answers(self, error: w.AwsError | None) -> None:
        self.world.aws_error = error

    @rule(error=st.sampled_from([None, DENIED]))
    def aws_refuses(self, error: w.AwsError | None) -> None:
        self.world.refuse = error

    @rule(zone=st.sampled_from(["us-east-1a", "us-east-1b"]), left=st.sampled_from([0, 1, 50]))
    def capacity(self, zone: str, left: int) -> None:
        self.world.capacity[zone] = left

    # --- what always holds ---------------------------------------------------------------------------

    @invariant()
    def no_two_pods_of_one_rank(self) -> None:
        live: dict[tuple[str, ...], str] = {}
        for pod in self.world.pods.values():
            have = pod["metadata"]["labels"]
            if names.LABEL_ATTEMPT not in have or pod["status"]["phase"] in ("Succeeded", "Failed"):
                continue
            node = self.world.nodes.get(pod["spec"].get("nodeName", ""))
            dead = pod["spec"].get("nodeName") and (node is None or node["status"]["conditions"][0]["status"] != "True")
            if pod["metadata"].get("deletionTimestamp") and dead:
                continue  # nobody can know; it is fenced by its attempt
            rank = (
                have[names.LABEL_ROLE],
                have.get(names.LABEL_POOL, ""),
                have.get(names.LABEL_REPLICA, ""),
                have["batch.kubernetes.io/job-completion-index"],
            )
            assert rank not in live, f"{pod['metadata']['name']} and {live[rank]} are one rank"
            live[rank] = pod["metadata"]["name"]

    @invariant()
    def attempts_only_rise(self) -> None:
        for action in self.world.log[self.seen :]:
            if isinstance(action, w.CreateChild) and action.obj["kind"] == "Job":
                have = action.obj["metadata"]["labels"]
                slot = f"{have[names.LABEL_ROLE]}/{have.get(names.LABEL_REPLICA, '')}"
                assert int(have[names.LABEL_ATTEMPT]) > self.highest.get(slot, 0)
                self.highest[slot] = int(have[names.LABEL_ATTEMPT])

    @invariant()
    def the_status_fits_its_schema(self) -> None:
        if self.world.job is not None and "status" in self.world.job:
            Status.model_validate(self.world.job["status"])

    @invariant()
    def the_finalizer_guards_aws(self) -> None:
        owned = [g for g in self.world.groups.values() if g.tags[names.TAG_OWNER].startswith("job/")]
        if owned or self.world.templates:
            assert self.world.job is not None
            assert names.FINALIZER in self.world.job["metadata"]["finalizers"]

    @invariant()
    def the_end_is_final(self) -> None:
        if self.ended:
            assert not [a for a in self.world.log[self.seen :] if isinstance(a, MAKING)]
        self.seen = len(self.world.log)
        job = self.world.job
        now_ended = job is not None and any(
            c["status"] == "True"
            for c in job.get("status", {}).get("conditions", ())
            if c["type"] in ("Complete", "Failed")
        )
        if self.ended and job is not None:
            assert now_ended
        self.ended = self.ended or now_ended

    # --- what holds at rest --------------------------------------------------------------------------

    def teardown(self) -> None:
        world = self.world
        world.aws_error = world.refuse = world.refused = None
        world.capacity = {}
        for name in world.nodes:
            world.heal_node(name)
        world.run(60, seconds=60)
        if world.job is None:
            assert not world.templates
            assert not [g for g in world.groups.values() if g.tags[names.TAG_OWNER].startswith("job/")]
            return
        made = world.decide()
        assert not made.actions
        assert made.status == world.job["status"]
        before = world.writes
        world.run(3, seconds=10)
        assert world.writes == before, "time alone changed the status"


TestPolicy = Policy.TestCase
TestPolicy.settings = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
