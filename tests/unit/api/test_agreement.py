"""The models and the generated schema accept the same objects (the server's rules in CEL apart).

Objects are drawn from the schema, then damaged at random places; an independent validator reads the schema.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft4Validator  # the draft with OpenAPI 3.0's boolean exclusive bounds
from pydantic import ValidationError

from moerl_operator.api.base import ApiModel
from moerl_operator.api.job import Job
from moerl_operator.api.nodes import NodeClass
from moerl_operator.api.schema import root_schema

Node = dict[str, Any]
RELAXED = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
# Values of wrong type or out of every bound, for damage.
JUNK = st.sampled_from([None, True, -1, 10**9, 1.5, "", "UPPER case", "x" * 2000, [], {}, {"unknown": 1}, [{}]])


def strict(node: Node) -> Node:
    """The schema with unknown fields refused, as strict field validation does."""
    out = dict(node)
    if "properties" in out:
        out["properties"] = {name: strict(child) for name, child in out["properties"].items()}
        out["additionalProperties"] = False
    if isinstance(out.get("items"), dict):
        out["items"] = strict(out["items"])
        if keys := out.get("x-kubernetes-list-map-keys"):
            assert len(keys) == 1
    return out


def values(node: Node) -> st.SearchStrategy[Any]:
    """Objects that the schema allows."""
    if "enum" in node:
        return st.sampled_from(node["enum"])
    return {"object": objects, "array": arrays, "string": strings, "integer": integers}.get(
        node["type"], lambda _: st.booleans()
    )(node)


def objects(node: Node) -> st.SearchStrategy[Any]:
    if "properties" in node:
        required = {name: values(node["properties"][name]) for name in node.get("required", [])}
        optional = {name: values(child) for name, child in node["properties"].items() if name not in required}
        return st.fixed_dictionaries(required, optional=optional)
    if "additionalProperties" in node:
        keys = st.from_regex(r"\A[a-z]{1,8}\Z")
        return st.dictionaries(keys, values(node["additionalProperties"]), max_size=3)
    return st.fixed_dictionaries({}, optional={"metadata": st.just({}), "spec": st.just({"containers": []})})


def arrays(node: Node) -> st.SearchStrategy[Any]:
    keys = node.get("x-kubernetes-list-map-keys")
    unique = None
    if keys:
        unique = lambda item: item[keys[0]]  # noqa: E731
    elif node["x-kubernetes-list-type"] == "set":
        unique = lambda item: item  # noqa: E731
    low = node.get("minItems", 0)
    return st.lists(values(node["items"]), min_size=low, max_size=min(node["maxItems"], low + 2), unique_by=unique)


def strings(node: Node) -> st.SearchStrategy[str]:
    low, high = node.get("minLength", 0), node.get("maxLength", 40)
    if pattern := node.get("pattern"):
        exact = pattern.replace("$", r"\Z") if pattern.endswith("$") else pattern
        alphabet = st.characters(min_codepoint=32, max_codepoint=126)
        return st.from_regex(exact, alphabet=alphabet).filter(lambda text: low <= len(text) <= high)
    return st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=low, max_size=min(high, low + 20))


def integers(node: Node) -> st.SearchStrategy[int]:
    return st.integers(node.get("minimum", -(2**31)), node.get("maximum", 2**31 - 1))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a value."""
    inside = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [place for key, child in inside for place in ((*path, key), *places(child, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], new: Any, *, remove: bool) -> Any:
    out = copy.deepcopy(value)
    node = out
    for key in path[:-1]:
        node = node[key]
    if remove and isinstance(node, dict):
        del node[path[-1]]
    else:
        node[path[-1]] = new
    return out


def model_accepts(model: type[ApiModel], value: Any) -> bool:
    try:
        model.model_validate(value)
    except ValidationError:
        return False
    return True


def without_nulls(value: Any) -> Any:
    """What the server stores: it drops a null where the schema does not allow one and the field has no default."""
    if isinstance(value, dict):
        return {key: without_nulls(child) for key, child in value.items() if child is not None}
    return [without_nulls(child) for child in value] if isinstance(value, list) else value


def part(model: type[ApiModel]) -> Node:
    """The schema of a model's own fields."""
    schema = root_schema(model)
    own = {name: schema["properties"][name] for name in schema["properties"] if name in ("spec", "status")}
    return strict({**schema, "properties": own})


class Case:
    """A model, its schema and a strategy for it, made once: building strategies costs more than drawing."""

    def __init__(self, model: type[ApiModel]) -> None:
        self.model = model
        self.schema = part(model)
        self.validator = Draft4Validator(self.schema)
        self.values = values(self.schema)


CASES = [pytest.param(Case(model), id=model.__name__) for model in (Job, NodeClass)]


@pytest.mark.parametrize("case", CASES)
@RELAXED
@given(data=st.data())
def test_what_the_schema_allows_the_model_accepts(case: Case, data: st.DataObject) -> None:
    value = data.draw(case.values)
    assert case.validator.is_valid(value)
    wire = case.model.model_validate(value).wire()
    assert case.validator.is_valid(wire), "what a model writes back is valid too"
    assert case.model.model_validate(wire).wire() == wire


@pytest.mark.parametrize("case", CASES)
@RELAXED
@given(data=st.data())
def test_damage_is_seen_by_both_or_by_neither(case: Case, data: st.DataObject) -> None:
    value = data.draw(case.values)
    path = data.draw(st.sampled_from(places(value)))
    damaged = without_nulls(put(value, path, data.draw(JUNK), remove=data.draw(st.booleans())))
    assert model_accepts(case.model, damaged) == case.validator.is_valid(damaged), damaged
