"""HTTP request -> parameters, for the three protocols in use (REST-JSON, query, EC2 query)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from .models import Shape


class Malformed(Exception):
    """The request cannot be read as the model says; `path` is the member, `kind` is `type` or `unknown`."""

    def __init__(self, path: str, message: str, *, kind: str = "type") -> None:
        super().__init__(message)
        self.path = path
        self.kind = kind


def rest_json(operation: Any, path: Mapping[str, str], query: Mapping[str, list[str]], body: bytes) -> dict[str, Any]:
    """Parameters of a REST-JSON request. Unknown JSON members are ignored, as AWS does."""
    shape = operation.input_shape
    if shape is None:
        return {}
    document: Any = {}
    if body.strip():
        try:
            document = json.loads(body)
        except ValueError as error:
            raise Malformed("", f"Could not parse request body into json: {error}") from error
    if not isinstance(document, dict):
        raise Malformed("", "Unexpected JSON: the body must be an object")
    params: dict[str, Any] = {}
    for name, member in shape.members.items():
        where = member.serialization.get("location")
        key = member.serialization.get("name", name)
        if where == "uri" and key in path:
            params[name] = _scalar(member, path[key], name)
        elif where == "querystring":
            if key in query:
                values = query[key]
                params[name] = values if member.type_name == "list" else _scalar(member, values[0], name)
        elif where is None and document.get(key) is not None:
            params[name] = _json(member, document[key], name)
    return params


def _json(shape: Shape, value: Any, path: str) -> Any:
    expected = {
        "structure": dict, "map": dict, "list": list, "string": str, "boolean": bool, "integer": int, "long": int,
    }.get(shape.type_name)  # fmt: skip
    wrong = expected is not None and (not isinstance(value, expected) or (expected is int and isinstance(value, bool)))
    if wrong:
        raise Malformed(path, f"Unexpected value for {path}: expected {shape.type_name}, got {json.dumps(value)[:80]}")
    if shape.type_name == "structure":
        return {
            name: _json(member, value[key], f"{path}.{name}")
            for name, member in shape.members.items()
            if value.get(key := member.serialization.get("name", name)) is not None
        }
    if shape.type_name == "list":
        return [_json(shape.member, item, f"{path}[{index}]") for index, item in enumerate(value)]
    if shape.type_name == "map":
        return {key: _json(shape.value, item, f"{path}[{key}]") for key, item in value.items()}
    return value


def query(operation: Any, form: Mapping[str, str], *, ec2: bool) -> dict[str, Any]:
    """Parameters of a query request. EC2 refuses unknown parameters, the plain protocol ignores them."""
    tree: dict[str, Any] = {}
    for key, value in form.items():
        if key in ("Action", "Version"):
            continue
        node = tree
        *parents, last = key.split(".")
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise Malformed(key, f"The parameter {key} is given twice in different forms")
            node = child
        node[last] = value
    shape = operation.input_shape
    return {} if shape is None else _query_structure(shape, tree, "", ec2)


def _query_structure(shape: Shape, tree: Mapping[str, Any], path: str, ec2: bool) -> dict[str, Any]:
    params: dict[str, Any] = {}
    used: set[str] = set()
    for name, member in shape.members.items():
        key = _query_name(name, member, ec2)
        used.add(key)
        if key in tree:
            params[name] = _query_value(member, tree[key], f"{path}{key}", ec2)
    unknown = sorted(set(tree) - used)
    if ec2 and unknown:
        raise Malformed(f"{path}{unknown[0]}", f"The parameter {path}{unknown[0]} is not recognized", kind="unknown")
    return params


def _query_name(name: str, member: Shape, ec2: bool) -> str:
    serialization = member.serialization
    if ec2:
        plain = serialization.get("queryName")
        if plain:
            return str(plain)
        wire = str(serialization.get("name", name))
        return wire[0].upper() + wire[1:]
    if member.type_name == "list" and serialization.get("flattened"):
        return str(member.member.serialization.get("name", name))
    return str(serialization.get("name", name))


def _query_value(shape: Shape, value: Any, path: str, ec2: bool) -> Any:
    if shape.type_name == "structure":
        if value == "":
            return {}
        if not isinstance(value, dict):
            raise Malformed(path, f"Invalid value for {path}: a structure is expected")
        return _query_structure(shape, value, f"{path}.", ec2)
    if shape.type_name == "list":
        return _query_list(shape, value, path, ec2)
    if shape.type_name == "map":
        raise Malformed(path, f"{path}: maps are not part of the emulated operations")
    if isinstance(value, dict):
        raise Malformed(path, f"Invalid value for {path}: a single value is expected")
    return _scalar(shape, value, path)


def _query_list(shape: Shape, value: Any, path: str, ec2: bool) -> list[Any]:
    if value == "":
        return []
    if not isinstance(value, dict):
        raise Malformed(path, f"Invalid value for {path}: a list is expected")
    items = value
    if not ec2 and not shape.serialization.get("flattened"):
        items = value.get(shape.member.serialization.get("name", "member"), {})
        if items == "":
            return []
    if not all(key.isdecimal() for key in items):
        wrong = next(key for key in items if not key.isdecimal())
        raise Malformed(f"{path}.{wrong}", f"The parameter {path}.{wrong} is not recognized", kind="unknown")
    return [_query_value(shape.member, items[key], f"{path}.{key}", ec2) for key in sorted(items, key=int)]


def _scalar(shape: Shape, text: str, path: str) -> Any:
    kind = shape.type_name
    try:
        if kind in ("integer", "long"):
            return int(text)
        if kind in ("float", "double"):
            return float(text)
        if kind == "boolean":
            return {"true": True, "false": False}[text.lower()]
        if kind == "timestamp":
            return datetime.fromisoformat(text)
        if kind == "blob":
            return base64.b64decode(text, validate=True)
    except (ValueError, KeyError, binascii.Error) as error:
        raise Malformed(path, f"Invalid value '{text[:80]}' for {path}. Must be a valid {kind}") from error
    return text
