"""Turns pydantic's JSON schema into a structural schema, and checks that it is one.

pydantic writes JSON Schema 2020-12; an API server takes a subset of OpenAPI 3.0 with rules of its own
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema).
Nothing is dropped in silence: a keyword that is neither translated nor known raises SchemaError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

TYPES = frozenset({"object", "array", "string", "integer", "boolean"})  # number: a float does not survive a round trip
FORMATS = frozenset({"date-time", "date", "byte", "int32", "int64", "duration"})
PRESERVE = "x-kubernetes-preserve-unknown-fields"
VALIDATIONS = "x-kubernetes-validations"
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"
_COMMON = frozenset({"type", "description", "default", "enum", VALIDATIONS})
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties", "maxProperties", "minProperties", PRESERVE}),
    "array": frozenset({"items", "minItems", "maxItems", LIST_TYPE, LIST_KEYS}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"}),
    "boolean": frozenset(),
}
_RULE_KEYS = frozenset({"rule", "message", "messageExpression", "reason", "fieldPath", "optionalOldSelf"})
# Python's regular expressions know these, Go's RE2 does not.
_NOT_RE2 = ("(?=", "(?!", "(?<=", "(?<!", "(?P=", "(?>", "\\Z")


class SchemaError(Exception):
    """A model says something that a structural schema cannot; names the place."""


def structural(schema: Mapping[str, Any]) -> Schema:
    """The structural form of a JSON schema as pydantic generates it (by alias, mode validation).

    Raises SchemaError for what has no structural form: recursion, unions other than with null, tuples.
    """
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    return _translate({k: v for k, v in schema.items() if k != "$defs"}, definitions, "", ())


def _translate(
    node: Mapping[str, Any], definitions: Mapping[str, Any], path: str, open_refs: tuple[str, ...]
) -> Schema:
    out = dict(node)
    out.pop("title", None)
    if "$ref" in out:
        name = str(out.pop("$ref")).removeprefix("#/$defs/")
        if name in open_refs:
            raise SchemaError(f"{path}: {name} contains itself, which a structural schema cannot say")
        return _merge(_translate(definitions[name], definitions, path, (*open_refs, name)), out)
    if "anyOf" in out:
        kinds = [kind for kind in out.pop("anyOf") if kind != {"type": "null"}]
        if len(kinds) != 1:
            raise SchemaError(f"{path}: a union of {len(kinds)} types has no structural form; use one field for each")
        if out.get("default", ...) is None:  # optional means absent: an explicit null is dropped by the server
            del out["default"]
        return _merge(_translate(kinds[0], definitions, path, open_refs), out)
    if "const" in out:
        out["enum"] = [out.pop("const")]
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in out:
            out[bound.lower()], out[f"exclusive{bound}"] = out[f"exclusive{bound}"], True
    return _children(out, definitions, path, open_refs)


def _children(out: Schema, definitions: Mapping[str, Any], path: str, open_refs: tuple[str, ...]) -> Schema:
    if isinstance(out.get("properties"), Mapping):
        out["properties"] = {
            name: _translate(child, definitions, f"{path}.{name}", open_refs)
            for name, child in out["properties"].items()
        }
        if out.get("additionalProperties") is False:  # pruning and strict field validation do this
            del out["additionalProperties"]
    elif isinstance(out.get("additionalProperties"), Mapping):
        out["additionalProperties"] = _translate(out["additionalProperties"], definitions, f"{path}.*", open_refs)
        out.pop("propertyNames", None)  # has no structural form; the server's own objects check their keys
    if isinstance(out.get("items"), Mapping):
        out["items"] = _translate(out["items"], definitions, f"{path}[]", open_refs)
    return out


def _merge(inner: Schema, outer: Mapping[str, Any]) -> Schema:
    """What a field says, over what its type says; rules of both hold."""
    rules = [*inner.get(VALIDATIONS, []), *outer.get(VALIDATIONS, [])]
    return {**inner, **outer, **({VALIDATIONS: rules} if rules else {})}


def structural_check(schema: Mapping[str, Any], path: str = "") -> None:
    """Raises SchemaError, naming the place, where an API server would refuse the schema or not enforce it."""
    where = path or "the root"
    kind = schema.get("type")
    if kind not in TYPES:
        raise SchemaError(f"{where}: type is {kind!r}, one of {', '.join(sorted(TYPES))} is needed")
    if unknown := set(schema) - _COMMON - _KEYWORDS[kind]:
        raise SchemaError(f"{where}: {', '.join(sorted(unknown))} cannot stand in a structural schema of type {kind}")
    if "default" in schema and schema["default"] is None:
        raise SchemaError(f"{where}: a default of null; leave the field out instead")
    for rule in schema.get(VALIDATIONS, []):
        _check_rule(rule, where)
    {"object": _check_object, "array": _check_array, "string": _check_string}.get(kind, _check_nothing)(schema, path)


def _check_object(schema: Mapping[str, Any], path: str) -> None:
    properties = schema.get("properties")
    values = schema.get("additionalProperties")
    if sum((properties is not None, values is not None, bool(schema.get(PRESERVE)))) != 1:
        raise SchemaError(f"{path or 'the root'}: an object has either properties, additionalProperties or {PRESERVE}")
    if values is not None:
        if not isinstance(values, Mapping):
            raise SchemaError(f"{path}: additionalProperties must be a schema")
        if "maxProperties" not in schema:
            raise SchemaError(f"{path}: a map needs maxProperties, or rules over it cost too much")
        structural_check(values, f"{path}.*")
    for name in schema.get("required", []):
        if name not in (properties or {}):
            raise SchemaError(f"{path}: required names {name}, which is no property")
    for name, child in (properties or {}).items():
        structural_check(child, f"{path}.{name}")


def _check_array(schema: Mapping[str, Any], path: str) -> None:
    items = schema.get("items")
    if not isinstance(items, Mapping):
        raise SchemaError(f"{path}: an array needs one schema for its items")
    if "maxItems" not in schema:
        raise SchemaError(f"{path}: an array needs maxItems, or rules over it cost too much")
    kind = schema.get(LIST_TYPE)
    if kind not in ("atomic", "set", "map"):
        raise SchemaError(f"{path}: {LIST_TYPE} is {kind!r}; say atomic, set or map, so that two writers can merge")
    if kind == "set" and items.get("type") in ("object", "array"):
        raise SchemaError(f"{path}: only scalars make a set")
    keys = schema.get(LIST_KEYS, [])
    if (kind == "map") != bool(keys):
        raise SchemaError(f"{path}: {LIST_KEYS} goes with list type map and only with it")
    for key in keys:
        if key not in items.get("required", []) and "default" not in items.get("properties", {}).get(key, {}):
            raise SchemaError(f"{path}: key {key} must be required in the items, or have a default")
    structural_check(items, f"{path}[]")


def _check_string(schema: Mapping[str, Any], path: str) -> None:
    if "enum" not in schema and "maxLength" not in schema and schema.get("format") != "date-time":
        raise SchemaError(f"{path}: a string needs maxLength, or rules over it cost too much")
    if (form := schema.get("format")) is not None and form not in FORMATS:
        raise SchemaError(f"{path}: the API server does not know format {form}")
    if any(token in schema.get("pattern", "") for token in _NOT_RE2):
        raise SchemaError(f"{path}: pattern {schema['pattern']} is not RE2")


def _check_nothing(schema: Mapping[str, Any], path: str) -> None:
    """Integers and booleans have no rules beyond their keywords."""


def _check_rule(rule: Mapping[str, Any], where: str) -> None:
    if not rule.get("rule") or not (rule.get("message") or rule.get("messageExpression")):
        raise SchemaError(f"{where}: a validation rule needs rule and message")
    if unknown := set(rule) - _RULE_KEYS:
        raise SchemaError(f"{where}: {', '.join(sorted(unknown))} cannot stand in a validation rule")
    if "\n" in str(rule.get("message", "")):
        raise SchemaError(f"{where}: the message of a rule is one line")
