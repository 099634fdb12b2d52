"""The translation to structural schemas, and the check that refuses what an API server would refuse."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from moerl_operator.api.base import ApiModel, Cel, ListKind, ListMap
from moerl_operator.api.structural import SchemaError, structural, structural_check


def translate(model: type[BaseModel]) -> dict[str, Any]:
    return structural(model.model_json_schema(by_alias=True))


class Inner(ApiModel):
    """Inner."""

    cel = (Cel("self.size > 0", "size must be positive", ".size"),)

    size: int = Field(1, gt=0, lt=10)


class Outer(ApiModel):
    """Outer."""

    kind: Literal["Only"] = "Only"
    maybe: Annotated[str, Field(max_length=5)] | None = None
    inner: Annotated[Inner, Cel("self == oldSelf", "inner is immutable")] = Field(default_factory=Inner)
    labels: dict[str, Annotated[str, Field(max_length=3)]] | None = Field(None, max_length=2)
    items: Annotated[list[Inner], ListMap(("size",))] = Field(max_length=4)


def test_every_construct_is_translated() -> None:
    schema = translate(Outer)
    properties = schema["properties"]
    assert properties["kind"] == {"type": "string", "enum": ["Only"], "default": "Only"}
    assert properties["maybe"] == {"type": "string", "maxLength": 5}
    assert properties["inner"]["properties"]["size"] == {
        "type": "integer",
        "default": 1,
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 10,
        "exclusiveMaximum": True,
    }
    assert [rule["rule"] for rule in properties["inner"]["x-kubernetes-validations"]] == [
        "self.size > 0",
        "self == oldSelf",
    ]
    assert properties["labels"] == {
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": 3},
        "maxProperties": 2,
    }
    assert properties["items"]["x-kubernetes-list-map-keys"] == ["size"]
    assert "additionalProperties" not in schema
    assert schema["required"] == ["items"]
    structural_check(schema)


class Recursive(ApiModel):
    """Contains itself."""

    child: Recursive | None = None


class Union(ApiModel):
    """A field of two types."""

    value: int | Annotated[str, Field(max_length=5)]


@pytest.mark.parametrize(("model", "word"), [(Recursive, "contains itself"), (Union, "union of 2 types")])
def test_what_has_no_structural_form_is_refused(model: type[BaseModel], word: str) -> None:
    with pytest.raises(SchemaError, match=word):
        translate(model)


class NoBound(ApiModel):
    """A string without a bound."""

    name: str


class NoListType(ApiModel):
    """A list that two writers cannot merge."""

    names: list[Annotated[str, Field(max_length=3)]] = Field(max_length=3)


class NoMaxItems(ApiModel):
    """A list without a bound."""

    names: Annotated[list[Annotated[str, Field(max_length=3)]], ListKind("set")]


class Float(ApiModel):
    """A float does not survive a round trip."""

    rate: float


class Tuple(ApiModel):
    """prefixItems."""

    pair: tuple[int, int]


class LookAhead(ApiModel):
    """A pattern that RE2 does not know."""

    name: str = Field(max_length=5, json_schema_extra={"pattern": "^(?!a)"})


class Format(ApiModel):
    """A format that the API server does not know."""

    name: str = Field(max_length=5, json_schema_extra={"format": "binary"})


class OptionalKey(ApiModel):
    """A key of a list map that may be absent."""

    class Item(ApiModel):
        """Item."""

        name: Annotated[str, Field(max_length=3)] | None = None

    entries: Annotated[list[Item], ListMap(("name",))] = Field(max_length=3)


class LongRule(ApiModel):
    """A message of two lines."""

    cel = (Cel("true", "a\nb"),)

    size: int


@pytest.mark.parametrize(
    ("model", "place", "word"),
    [
        (NoBound, ".name", "maxLength"),
        (NoListType, ".names", "x-kubernetes-list-type"),
        (NoMaxItems, ".names", "maxItems"),
        (Float, ".rate", "number"),
        (Tuple, ".pair", "prefixItems"),
        (LookAhead, ".name", "RE2"),
        (Format, ".name", "binary"),
        (OptionalKey, ".entries", "must be required"),
        (LongRule, "the root", "one line"),
    ],
)
def test_the_check_names_place_and_rule(model: type[BaseModel], place: str, word: str) -> None:
    with pytest.raises(SchemaError) as caught:
        structural_check(translate(model))
    assert place in str(caught.value)
    assert word in str(caught.value)


@pytest.mark.parametrize("keyword", ["oneOf", "$ref", "uniqueItems", "patternProperties", "title"])
def test_an_unknown_keyword_is_refused(keyword: str) -> None:
    with pytest.raises(SchemaError, match="cannot stand in"):
        structural_check({"type": "object", "properties": {}, keyword: {}})
