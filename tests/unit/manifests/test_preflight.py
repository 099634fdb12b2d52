"""Which pods get the transport proof as their first init container, and with what."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from moerl_operator.api import names
from moerl_operator.manifests.pods import main_container, pod_template
from support.rendered import CUSTOM, context, gpu_spec, native_spec
from support.simulated_world import nodes

Obj = dict[str, Any]


def native(transport: str = "TCP", kind: str = "c7i.large") -> Obj:
    spec = native_spec()
    spec["communication"] = {"expertParallel": {"backend": "Auto", "transport": transport, "onMismatch": "Warn"}}
    spec["trainer"]["nodes"] = nodes(2, kind)
    return spec


def init(spec: Obj, key: str) -> list[Obj]:
    found: list[Obj] = pod_template(context(spec, key), "demo-child")["spec"].get("initContainers") or []
    return found


@pytest.mark.parametrize(
    ("spec", "key", "there"),
    [
        pytest.param(native("TCP"), "trainer", True, id="asked for by name"),
        pytest.param(native("TCP"), "spot", True, id="rollouts too"),
        pytest.param(native("Auto"), "trainer", False, id="nothing asked for, no GPU"),
        pytest.param(native("Auto", "p5en.48xlarge"), "trainer", True, id="GPUs, whose traffic can fall back"),
        pytest.param(native("TCP"), "environment", False, id="holds no tensors"),
        pytest.param(native("TCP"), "buffer", False, id="nor does the buffer"),
        pytest.param(gpu_spec(), "trainer", False, id="another framework's image"),
    ],
)
def test_who_gets_it(spec: Obj, key: str, there: bool) -> None:
    assert [c["name"] for c in init(spec, key)].count("preflight") == there


def test_it_comes_first_and_knows_what_was_asked_for() -> None:
    found = init(native(), "trainer")
    assert [c["name"] for c in found] == ["preflight", "agent"]
    made = found[0]
    assert "restartPolicy" not in made, "it ends before anything else starts"
    assert made["image"] == "moerl/runtime:test"
    assert made["command"] == ["python", "-m", "moerl_kernels", "preflight", "--json"]
    assert made["terminationMessagePolicy"] == "FallbackToLogsOnError"
    env = {e["name"]: e.get("value") for e in made["env"]}
    assert (env["MOERL_TRANSPORT"], env["MOERL_ON_MISMATCH"], env["WORLD_SIZE"]) == ("TCP", "Warn", "2")
    assert {"RANK", "MASTER_ADDR", "MASTER_PORT", "MOERL_NODE_NAME", "MOERL_POD_IP"} <= set(env)
    assert {"name": "moerl-run", "mountPath": names.RUN_DIR} in made["volumeMounts"]
    assert made["securityContext"]["allowPrivilegeEscalation"] is False
    assert made["resources"] == {"requests": {"cpu": "50m", "memory": "128Mi"}}


def test_it_has_the_devices_of_the_main_container() -> None:
    spec = native("EFAGDA", "p5en.48xlarge")
    template = pod_template(context(spec, "trainer"), "demo-child")["spec"]
    made = template["initContainers"][0]
    assert made["resources"] == main_container(template)["resources"]
    assert made["resources"]["limits"][names.RESOURCE_EFA] == "16"
    assert made["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_a_template_of_any_framework_can_ask_for_it_by_name() -> None:
    spec = gpu_spec()
    spec["trainer"]["template"] = copy.deepcopy(CUSTOM)
    own = {"name": "preflight", "command": ["moerl-kernels", "preflight", "--json", "--deadline=900"]}
    spec["trainer"]["template"]["spec"]["initContainers"] = [{"name": "fetch", "image": "fetch:1"}, own]
    found = init(spec, "trainer")
    assert [c["name"] for c in found] == ["fetch", "preflight"], "in the place that the template gives it"
    assert found[1]["command"] == own["command"]
    assert found[1]["image"] == "user/image:1"
    assert found[1]["resources"]["limits"][names.RESOURCE_GPU] == "8"


def test_manifests_that_ask_for_nothing_render_as_before() -> None:
    for key in ("trainer", "spot", "environment", "buffer"):
        assert "preflight" not in [c["name"] for c in init(native_spec(), key)]
