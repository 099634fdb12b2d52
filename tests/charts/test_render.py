"""What the chart renders, by real helm, against goldens (MOERL_UPDATE_GOLDENS=1 rewrites them)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from moerl_operator.api import schema
from support.helm import CHART, helm, render, values_file

GOLDEN = Path(__file__).with_name("golden")
VALUES = ("cluster", "namespaced")


@pytest.mark.parametrize("values", VALUES)
def test_lint(values: str) -> None:
    answer = helm("lint", "--strict", str(CHART), "--kube-version=1.34.4", values_file(values))
    assert answer.code == 0, answer.out + answer.err
    assert "WARNING" not in answer.out


@pytest.mark.parametrize("values", VALUES)
def test_templates_are_as_reviewed(values: str) -> None:
    """All but the definitions, which have a golden of their own."""
    objects = [o for o in render(values=[values]).objects if o["kind"] != "CustomResourceDefinition"]
    text = yaml.safe_dump_all(objects, sort_keys=False, width=120)
    path = GOLDEN / f"{values}.yaml"
    if os.environ.get("MOERL_UPDATE_GOLDENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "rendered otherwise than reviewed; MOERL_UPDATE_GOLDENS=1 rewrites the goldens"


def test_definitions_are_those_of_the_models_and_are_kept() -> None:
    rendered = render().all("CustomResourceDefinition")
    assert [crd["spec"] for crd in rendered] == [crd["spec"] for crd in schema.crds().values()]
    assert all(crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for crd in rendered)
    assert render("crds.install=false").all("CustomResourceDefinition") == []


def test_pods_meet_the_restricted_level() -> None:
    for pod in (render().one("Deployment")["spec"]["template"]["spec"], render().one("Pod")["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_the_class_is_a_hook_only_until_its_kind_is_known() -> None:
    """Helm asks the server for every kind before it creates the definitions; the next upgrade adopts the class."""
    first = render().one("MoERLNodeClass")["metadata"]["annotations"]
    later = render(known=True).one("MoERLNodeClass")["metadata"]["annotations"]
    assert first["helm.sh/hook"] == "post-install,post-upgrade"
    assert first["meta.helm.sh/release-name"] == "moerl-operator"
    assert "helm.sh/hook" not in later
    assert later["helm.sh/resource-policy"] == "keep"
    assert render(values=["namespaced"]).all("MoERLNodeClass") == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("cluster.nam=x", "additional properties 'nam' not allowed"),
        ("watchNamespaces[0]=A_b", "watchNamespaces"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("nodeClass.spec.nodeRoleARN=x", "additional properties 'nodeRoleARN' not allowed"),
        ("nodeClass.spec.maxNodes=0", "/nodeClass/spec/maxNodes"),
        ("aws.endpointUrl=bridge:5000", "/aws/endpointUrl"),
        ("crds.install=maybe", "/crds/install"),
        ("unknown=1", "additional properties 'unknown' not allowed"),
        ("cluster.name=", "cluster.name is required"),
    ],
)
def test_bad_values_are_refused_by_name(setting: str, words: str) -> None:
    answer = render(setting)
    assert answer.code != 0
    assert words in answer.err
