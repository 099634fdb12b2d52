"""Checks parameters against the bounds that the service model states: botocore's client checks only types and names.

The rules checked: required members, enums, minimum and maximum (of numbers, lengths and counts), patterns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from .models import Shape


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: where, with what value, which kind of rule and how AWS words it."""

    path: str
    value: Any
    kind: str  # required | enum | min | max | pattern
    constraint: str

    @property
    def sentence(self) -> str:
        """The wording of AWS's own model validation."""
        value = "null" if self.value is None else f"'{self.value}'"
        if self.kind == "required":
            return f"Value null at '{self.path}' failed to satisfy constraint: Member must not be null"
        return f"Value {value} at '{self.path}' failed to satisfy constraint: {self.constraint}"


def violations(shape: Shape | None, value: Any, path: str = "") -> list[Violation]:
    """Every rule of the model that `value` breaks, in document order."""
    if shape is None:
        return []
    if shape.type_name == "structure":
        return _structure(shape, value, path)
    found = _bounds(shape, value, path)
    if shape.type_name == "list":
        for index, item in enumerate(value, 1):
            found += violations(shape.member, item, f"{path}.{index}.member")
    elif shape.type_name == "map":
        for key, item in value.items():
            found += violations(shape.key, key, f"{path}.key") + violations(shape.value, item, f"{path}.{key}.member")
    return found


def _structure(shape: Shape, value: dict[str, Any], path: str) -> list[Violation]:
    found: list[Violation] = []
    for name, member in shape.members.items():
        # Paths are camelCase in AWS's sentences whatever the protocol.
        where = f"{path}.{name[0].lower()}{name[1:]}" if path else f"{name[0].lower()}{name[1:]}"
        if value.get(name) is None:
            if name in shape.required_members:
                found.append(Violation(where, None, "required", "Member must not be null"))
            continue
        found += violations(member, value[name], where)
    return found


def _bounds(shape: Shape, value: Any, path: str) -> list[Violation]:
    found: list[Violation] = []
    rules = shape.metadata
    allowed = rules.get("enum")
    if allowed and value not in allowed:
        found.append(
            Violation(path, value, "enum", f"Member must satisfy enum value set: [{', '.join(map(str, allowed))}]")
        )
    number = isinstance(value, int | float) and not isinstance(value, bool)
    size = value if number else len(value) if isinstance(value, str | list | dict | bytes) else None
    noun = "value" if number else "length"
    if size is not None:
        if "min" in rules and size < rules["min"]:
            text = f"Member must have {noun} greater than or equal to {rules['min']}"
            found.append(Violation(path, value, "min", text))
        if "max" in rules and size > rules["max"]:
            found.append(Violation(path, value, "max", f"Member must have {noun} less than or equal to {rules['max']}"))
    pattern = rules.get("pattern")
    if pattern and isinstance(value, str):
        compiled = _compiled(pattern)
        if compiled is not None and not compiled.fullmatch(value):
            found.append(
                Violation(path, value, "pattern", f"Member must satisfy regular expression pattern: {pattern}")
            )
    return found


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    # The models' patterns are Java's: pairs of surrogates stand for what Python writes as one range.
    text = pattern.replace(r"\uD800\uDC00-\uDBFF\uDFFF", "\U00010000-\U0010ffff")
    try:
        return re.compile(text)
    except re.error:
        return None
