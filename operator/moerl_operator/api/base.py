"""What every API model shares: camelCase, no unknown fields, and the Kubernetes schema extensions.

The markers put `x-kubernetes-*` keys into pydantic's JSON schema; api/schema.py then turns that
schema into a structural one (https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Cel:
    """One `x-kubernetes-validations` rule: the API server evaluates it on every write."""

    rule: str
    message: str
    field_path: str = ""

    def render(self) -> dict[str, str]:
        """The rule as the CRD spells it."""
        out = {"rule": self.rule, "message": self.message}
        if self.field_path:
            out["fieldPath"] = self.field_path
        return out

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = handler(schema)
        out.setdefault("x-kubernetes-validations", []).append(self.render())
        return out


@dataclass(frozen=True, slots=True)
class ListMap:
    """A list of objects that the server merges by the value of these fields."""

    keys: tuple[str, ...]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = handler(schema)
        out["x-kubernetes-list-type"] = "map"
        out["x-kubernetes-list-map-keys"] = list(self.keys)
        return out


@dataclass(frozen=True, slots=True)
class ListKind:
    """`set` for a list of unique scalars, `atomic` for one that is replaced whole."""

    kind: str

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = handler(schema)
        out["x-kubernetes-list-type"] = self.kind
        return out


@dataclass(frozen=True, slots=True)
class PreserveUnknown:
    """An object whose fields another API defines (a PodTemplateSpec); a server-side dry run of the child checks it."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = handler(schema)
        return {k: v for k, v in out.items() if k == "description"} | {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        }


def immutable(what: str) -> Cel:
    """A field that may never change after creation."""
    return Cel("self == oldSelf", f"{what} is immutable; create a new job instead")


class ApiModel(BaseModel):
    """Base of all models: fields are snake_case in Python, camelCase on the wire."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True)

    cel: ClassVar[tuple[Cel, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = handler(schema)
        if cls.cel:
            handler.resolve_ref_schema(out)["x-kubernetes-validations"] = [rule.render() for rule in cls.cel]
        return out

    def wire(self) -> dict[str, Any]:
        """The object as the API server sees it: camelCase, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
