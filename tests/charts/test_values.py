"""values.yaml, values.schema.json and README name the same values; the class's fields are the definition's."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from moerl_operator.api import schema
from support.helm import CHART

SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def plain(node: Any) -> Any:
    """A structural schema as plain JSON schema that refuses unknown fields."""
    if isinstance(node, list):
        return [plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    out = {key: plain(child) for key, child in node.items() if key != "default" and not key.startswith("x-kubernetes")}
    if out.get("type") == "object" and "properties" in out:
        out["additionalProperties"] = False
    return out


def leaves(values: Any, path: str = "") -> set[str]:
    """Dotted names of the values; resources are one."""
    if not isinstance(values, dict) or not values or path == "resources":
        return {path}
    return {leaf for key, child in values.items() for leaf in leaves(child, f"{path}.{key}".strip("."))}


def test_class_fields_are_those_of_the_definition() -> None:
    root = schema.node_class_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert SCHEMA["properties"]["nodeClass"]["properties"]["spec"]["anyOf"][1] == plain(root["properties"]["spec"])


def test_every_object_of_the_schema_is_closed() -> None:
    def check(node: dict[str, Any], path: str) -> None:
        if "properties" in node:
            assert node["additionalProperties"] is False, path
            for name, child in node["properties"].items():
                check(child, f"{path}.{name}")

    check(SCHEMA, "")


def test_every_value_is_in_the_schema_and_in_the_readme() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    documented = set(re.findall(r"^\| `([A-Za-z.]+)`", (CHART / "README.md").read_text(), re.MULTILINE))
    named = leaves(values)
    for leaf in sorted(named):
        node = SCHEMA
        for part in leaf.split("."):
            node = node["properties"][part]
    assert documented == named
