"""What is injected into a user's pod template, and what of the user's words stays."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from moerl_operator.api import names
from moerl_operator.manifests.pods import main_container, pod_template
from support.rendered import CUSTOM, context, gpu_spec, native_spec
from support.simulated_world import job_spec

Obj = dict[str, Any]


def render(spec: Obj, key: str, **class_changes: Any) -> Obj:
    return pod_template(context(spec, key, **class_changes), "demo-child")


def env(container: Obj) -> dict[str, str]:
    return {e["name"]: e.get("value", "") for e in container["env"]}


def sidecars(template: Obj) -> dict[str, Obj]:
    return {c["name"]: c for c in template["spec"].get("initContainers", ())}


@pytest.mark.parametrize(
    ("key", "program", "sidecar"),
    [
        ("trainer", "trainer", "agent"),
        ("spot", "engine", "driver"),
        ("reward", "reward", None),
        ("environment", "environment", None),
        ("buffer", "buffer", None),
    ],
)
def test_native_roles_need_no_template(key: str, program: str, sidecar: str | None) -> None:
    template = render(native_spec(), key)
    main = main_container(template["spec"])
    assert main["name"] == "main"
    assert main["image"] == "moerl/runtime:test"
    assert main["command"] == ["python", "-m", "moerl_runtime", program]
    assert list(sidecars(template)) == ([sidecar] if sidecar else [])
    if sidecar:
        made = sidecars(template)[sidecar]
        assert made["restartPolicy"] == "Always"
        assert made["command"] == ["python", "-m", "moerl_runtime", sidecar]
        assert {"name": "moerl-run", "mountPath": names.RUN_DIR} in made["volumeMounts"]
        assert {"name": "moerl-run", "mountPath": names.RUN_DIR} in main["volumeMounts"]


def test_every_container_knows_who_and_where_it_is() -> None:
    template = render(native_spec(), "spot")
    for container in [*template["spec"]["initContainers"], *template["spec"]["containers"]]:
        found = env(container)
        assert found["MOERL_JOB"] == "demo"
        assert found["MOERL_NAMESPACE"] == "ml"
        assert found["MOERL_ROLE"] == "rollout"
        assert found["MOERL_POOL"] == "spot"
        assert found["MOERL_REPLICA"] == "0"
        assert found["MOERL_ATTEMPT"] == "1"
        assert found["MOERL_CONFIG"] == "/etc/moerl/job.json"
        assert found["MOERL_BUFFER_URL"] == "redis://demo-buffer-0.demo-buffer.ml.svc.cluster.local:6379/0"
        assert found["MOERL_REWARD_URL"] == "http://demo-reward.ml.svc.cluster.local:8080"
        assert found["MOERL_ENVIRONMENT_URL"] == "http://demo-environment.ml.svc.cluster.local:8080"
        assert found["MOERL_REPORT"] == "demo-report"
        assert found["WORLD_SIZE"] == "1"
        assert found["MASTER_ADDR"] == "demo-child-0.demo-rollout.ml.svc.cluster.local"
        assert {"MOERL_POD_NAME", "MOERL_POD_IP", "MOERL_NODE_NAME", "RANK", "MASTER_PORT"} <= set(found)
        password = next(e for e in container["env"] if e["name"] == "MOERL_BUFFER_PASSWORD")
        assert password["valueFrom"] == {"secretKeyRef": {"name": "demo-buffer", "key": "password"}}
        assert {"name": "moerl-config", "mountPath": "/etc/moerl", "readOnly": True} in container["volumeMounts"]


def test_urls_only_of_roles_that_exist() -> None:
    assert "MOERL_REWARD_URL" not in env(render(job_spec(), "trainer")["spec"]["containers"][0])


def test_the_users_words_stay_and_the_template_is_not_changed() -> None:
    spec = native_spec()
    spec["trainer"]["template"] = {
        "metadata": {"labels": {"team": "rl", names.LABEL_JOB: "forged"}, "annotations": {"note": "x"}},
        "spec": {
            "terminationGracePeriodSeconds": 7,
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "x", "operator": "Exists"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [
                {"name": "log", "image": "log:1"},
                {
                    "name": "main",
                    "image": "mine:1",
                    "args": ["--x"],
                    "resources": {"requests": {"cpu": "3"}},
                    "env": [
                        {"name": "A", "value": "1"},
                        {"name": "MOERL_JOB", "value": "forged"},
                        {"name": "HOME", "value": "/root"},
                    ],
                    "securityContext": {"runAsUser": 0},
                },
            ],
        },
    }
    before = copy.deepcopy(spec)
    template = render(spec, "trainer")
    assert spec == before
    main = main_container(template["spec"])
    assert main["image"] == "mine:1"
    assert main["args"] == ["--x"]
    assert main["command"] == ["python", "-m", "moerl_runtime", "trainer"]
    assert env(main)["A"] == "1"
    assert env(main)["MOERL_JOB"] == "demo", "identity cannot be forged"
    assert env(main)["HOME"] == "/root"
    assert main["resources"]["requests"] == {"cpu": "3", "memory": "512Mi"}
    assert main["securityContext"]["runAsUser"] == 0
    assert main["securityContext"]["allowPrivilegeEscalation"] is False
    assert template["spec"]["terminationGracePeriodSeconds"] == 7
    assert template["spec"]["nodeSelector"] == {"disk": "fast", "role.moerl.dev/trainer": "moerl-0f1e2d3c-trainer-1"}
    assert template["metadata"]["labels"]["team"] == "rl"
    assert template["metadata"]["labels"][names.LABEL_JOB] == "demo"
    assert template["metadata"]["annotations"]["note"] == "x"
    assert template["spec"]["containers"][0]["name"] == "log"
    assert "command" not in template["spec"]["containers"][0]


def test_the_users_own_sidecar_of_the_same_name_is_filled_in() -> None:
    spec = native_spec()
    spec["trainer"]["template"] = {
        "spec": {"initContainers": [{"name": "agent", "resources": {"requests": {"memory": "1Gi"}}}]}
    }
    made = sidecars(render(spec, "trainer"))
    assert list(made) == ["agent"]
    assert made["agent"]["resources"]["requests"] == {"cpu": "50m", "memory": "1Gi"}
    assert made["agent"]["image"] == "moerl/runtime:test"


def test_custom_framework_gets_no_program_and_no_sidecar() -> None:
    template = render(gpu_spec(), "spot")
    assert main_container(template["spec"])["command"] == ["train"]
    assert not sidecars(template)


def test_engine_arguments_follow_the_users_own() -> None:
    spec = native_spec()
    spec["rollout"]["engine"] = {"type": "Native", "args": ["--b"]}
    spec["rollout"]["template"] = {"spec": {"containers": [{"name": "main", "args": ["--a"]}]}}
    assert main_container(render(spec, "spot")["spec"])["args"] == ["--a", "--b"]


def test_defaults_of_the_class() -> None:
    defaults = {
        "image": "c:1",
        "imagePullPolicy": "Never",
        "serviceAccountName": "pods",
        "env": [{"name": "AWS_REGION", "value": "x"}],
    }
    template = render(native_spec(), "trainer", defaults=defaults)
    main = main_container(template["spec"])
    assert (main["image"], main["imagePullPolicy"]) == ("c:1", "Never")
    assert sidecars(template)["agent"]["imagePullPolicy"] == "Never"
    assert env(main)["AWS_REGION"] == "x"
    assert template["spec"]["serviceAccountName"] == "pods"


def test_place_of_the_pods() -> None:
    template = render(native_spec(), "spot")["spec"]
    assert template["nodeSelector"] == {"pool.moerl.dev/spot": "moerl-0f1e2d3c-spot-1"}
    assert {"key": names.TAINT_DEDICATED, "operator": "Equal", "value": "0f1e2d3c", "effect": "NoSchedule"} in template[
        "tolerations"
    ]
    assert "affinity" not in template
    assert template["subdomain"] == "demo-rollout"
    assert template["restartPolicy"] == "Never"


def test_nobody_else_may_move_a_pod() -> None:
    notes = render(native_spec(), "environment")["metadata"]["annotations"]
    assert notes["karpenter.sh/do-not-disrupt"] == "true"
    assert notes["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_only_the_trainer_has_a_token() -> None:
    for key in ("trainer", "spot", "reward", "environment", "buffer"):
        assert render(native_spec(), key)["spec"]["automountServiceAccountToken"] is (key == "trainer")


# --- devices ------------------------------------------------------------------------------------------


def test_efa_pods_take_the_whole_node_with_its_devices() -> None:
    template = render(gpu_spec(), "trainer")
    main = main_container(template["spec"])
    resources = main["resources"]
    assert resources["limits"] == resources["requests"], "Guaranteed: the EFA proxy threads must not be throttled"
    assert resources["limits"] == {
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "16",
        "hugepages-2Mi": "5120Mi",
        "cpu": "172",
        "memory": "1782579Mi",
    }
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert {"name": "moerl-shm", "mountPath": "/dev/shm"} in main["volumeMounts"]
    assert {"name": "moerl-shm", "emptyDir": {"medium": "Memory"}} in template["spec"]["volumes"]
    terms = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms[0]["topologyKey"] == "kubernetes.io/hostname"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in template["spec"]["tolerations"]


@pytest.mark.parametrize(
    ("transport", "kind", "expected", "absent"),
    [
        (
            "EFAGDA",
            "p5en.48xlarge",
            {
                "NCCL_GIN_TYPE": "5",
                "NCCL_SYM_GIN_KERNELS_ENABLE": "0",
                "OFI_NCCL_PROTOCOL": "RDMA",
                "FI_PROVIDER": "efa",
            },
            [],
        ),
        (
            "EFAProxy",
            "p5.48xlarge",
            {"NCCL_GIN_TYPE": "2", "OFI_NCCL_PROTOCOL": "RDMA"},
            ["NCCL_SYM_GIN_KERNELS_ENABLE"],
        ),
        ("Auto", "p5en.48xlarge", {"NCCL_GIN_TYPE": "2"}, []),
        ("NVLink", "p5en.48xlarge", {"NCCL_GIN_ENABLE": "0"}, ["NCCL_GIN_TYPE", "FI_PROVIDER"]),
        ("TCP", "g6.xlarge", {"NCCL_NET": "Socket"}, ["NCCL_GIN_TYPE", "FI_PROVIDER"]),
    ],
)
def test_transport_pins_nccl(transport: str, kind: str, expected: dict[str, str], absent: list[str]) -> None:
    found = env(main_container(render(gpu_spec(transport, kind), "trainer")["spec"]))
    assert expected.items() <= found.items()
    assert not set(absent) & set(found)
    assert "pod-id-link" in found["NCCL_SOCKET_IFNAME"]
    assert found["MOERL_TRANSPORT"] == transport, "the pods are told what was asked for"


@pytest.mark.parametrize(("transport", "efa"), [("EFAProxy", True), ("Auto", True), ("NVLink", False), ("TCP", False)])
def test_efa_devices_only_with_an_efa_transport(transport: str, efa: bool) -> None:
    limits = main_container(render(gpu_spec(transport), "trainer")["spec"])["resources"]["limits"]
    assert (names.RESOURCE_EFA in limits) is efa
    assert limits[names.RESOURCE_GPU] == "8"


def test_a_gang_of_one_node_needs_no_efa() -> None:
    spec = gpu_spec("Auto")
    spec["rollout"]["pools"][0]["nodesPerReplica"] = 1
    limits = main_container(render(spec, "spot")["spec"])["resources"]["limits"]
    assert names.RESOURCE_EFA not in limits


def test_a_limit_of_the_user_is_also_the_request() -> None:
    spec = gpu_spec()
    spec["trainer"]["template"] = copy.deepcopy(CUSTOM)
    spec["trainer"]["template"]["spec"]["containers"][0]["resources"] = {
        "limits": {"cpu": "100", "memory": "1Ti"},
        "requests": {"memory": "1Ti"},
    }
    resources = main_container(render(spec, "trainer")["spec"])["resources"]
    assert resources["limits"]["cpu"] == resources["requests"]["cpu"] == "100"
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "1Ti"


def test_all_roles_of_the_small_job_fit_a_two_core_node() -> None:
    total = 0
    for key, count in (("trainer", 1), ("spot", 2), ("reward", 1), ("environment", 1), ("buffer", 1)):
        spec = render(native_spec(), key)["spec"]
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            assert container["resources"]["requests"]["cpu"].endswith("m")
            total += count * int(container["resources"]["requests"]["cpu"][:-1])
            assert names.RESOURCE_GPU not in container["resources"].get("limits", {})
    assert total <= 1000


def test_memory_of_the_buffer_is_limited_but_not_requested_whole() -> None:
    resources = main_container(render(native_spec(), "buffer")["spec"])["resources"]
    assert resources == {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}
    mounts = main_container(render(gpu_spec(), "buffer")["spec"])["volumeMounts"]
    assert {"name": "data", "mountPath": "/data"} in mounts
