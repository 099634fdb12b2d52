"""Argo CD's health check, run by Lua 5.1 as Argo CD does, and its copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa import lua51

from moerl_operator.api import names
from support.helm import CHART

EXAMPLES = CHART.parents[1] / "examples" / "argocd"
LUA = (EXAMPLES / "health.lua").read_text()


def health(obj: dict[str, Any]) -> tuple[str, str]:
    """Status and message."""
    runtime = lua51.LuaRuntime(unpack_returned_tuples=True)
    runtime.globals().obj = runtime.table_from(obj, recursive=True)
    answer = runtime.execute(LUA)
    return answer["status"], answer["message"]


def job(*conditions: tuple[str, str, str], observed: int = 2) -> dict[str, Any]:
    return {
        "metadata": {"generation": 2},
        "status": {
            "observedGeneration": observed,
            "conditions": [{"type": t, "status": s, "reason": "R", "message": m} for t, s, m in conditions],
        },
    }


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        ({"metadata": {"generation": 1}}, ("Progressing", "waiting for status")),
        ({"metadata": {"generation": 1}, "status": {}}, ("Progressing", "waiting for status")),
        (job(("Ready", "True", "fine"), observed=1), ("Progressing", "spec not observed yet")),
        (job(("Ready", "True", "16/16 trainers")), ("Healthy", "16/16 trainers")),
        (job(("Ready", "True", "")), ("Healthy", "Running")),
        (job(("Ready", "False", "waiting for nodes")), ("Progressing", "waiting for nodes")),
        (job(("Ready", "False", "")), ("Progressing", "R")),
        (job(("Ready", "True", "fine"), ("Degraded", "True", "TCP")), ("Degraded", "TCP")),
        (job(("Ready", "False", ""), ("Suspended", "True", "by spec")), ("Suspended", "by spec")),
        (job(("Ready", "True", "fine"), ("Suspended", "False", "")), ("Healthy", "fine")),
        (job(("Ready", "False", ""), ("Accepted", "False", "no such class")), ("Degraded", "no such class")),
        (job(("Ready", "False", ""), ("Complete", "True", "350/350")), ("Healthy", "350/350")),
        (job(("Complete", "False", ""), ("Failed", "True", "OOMKilled")), ("Degraded", "OOMKilled")),
        (job(("Progressing", "True", "")), ("Progressing", "waiting for status")),
    ],
)
def test_health(obj: dict[str, Any], expected: tuple[str, str]) -> None:
    assert health(obj) == expected


def test_the_config_map_holds_the_same_program_under_argo_cds_key() -> None:
    config = yaml.safe_load((EXAMPLES / "argocd-cm.yaml").read_text())
    assert config["data"] == {f"resource.customizations.health.{names.GROUP}_MoERLJob": LUA}


def test_the_application_sets_values_that_the_chart_knows(tmp_path: Path) -> None:
    from support.helm import helm

    source = yaml.safe_load((EXAMPLES / "application.yaml").read_text())["spec"]["source"]
    assert source["path"] == "charts/moerl-operator"
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(source["helm"]["valuesObject"]))
    answer = helm("template", "x", str(CHART), "--kube-version=1.34.4", f"--values={values}")
    assert answer.one("MoERLNodeClass")["spec"]["maxNodes"] == 96
