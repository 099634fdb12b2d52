"""The services that the emulator answers itself, as botocore's models describe them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote

import botocore.session

Shape = Any  # botocore ships no types; its shapes are structure, list, map or scalar with metadata


@dataclass(frozen=True, slots=True)
class Route:
    """One REST operation: an HTTP method and a path with placeholders."""

    method: str
    pattern: re.Pattern[str]
    names: tuple[str, ...]
    operation: str
    literal_length: int


class Service:
    """One service model with what is needed to find an operation in a request."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model = botocore.session.get_session().get_service_model(name)
        self.protocol: str = self.model.metadata["protocol"]
        self.version: str = self.model.api_version
        self.namespace: str = self.model.metadata.get("xmlNamespace", "")
        self._routes = self._rest_routes() if self.protocol == "rest-json" else []

    def operation(self, name: str) -> Any | None:
        """The operation's model, or None where the service has no such operation."""
        return self.model.operation_model(name) if name in self.model.operation_names else None

    def match(self, method: str, raw_path: str) -> tuple[str, dict[str, str]] | None:
        """The REST operation for a request line, with its decoded path parameters."""
        for route in self._routes:
            found = route.pattern.fullmatch(raw_path) if route.method == method else None
            if found is not None:
                return route.operation, {
                    name: unquote(value) for name, value in zip(route.names, found.groups(), strict=True)
                }
        return None

    def error_status(self, code: str) -> int | None:
        """The HTTP status that the model gives an error code, or None."""
        for name in self.model.shape_names:
            if name == code:
                status: int | None = self.model.shape_for(name).metadata.get("error", {}).get("httpStatusCode")
                return status
        return None

    def _rest_routes(self) -> list[Route]:
        routes = []
        for name in self.model.operation_names:
            http = self.model.operation_model(name).http
            path = http["requestUri"].split("?")[0]
            names = tuple(re.findall(r"{([^}]+?)\+?}", path))
            # A client may leave "/" of an ARN unescaped: the last placeholder takes the rest of the path.
            parts = re.split(r"{[^}]+}", path)
            pattern = re.escape(parts[0])
            for index, part in enumerate(parts[1:], 1):
                greedy = index == len(names) and not part and names[-1] == "resourceArn"
                pattern += (r"(.+)" if greedy else r"([^/]+)") + re.escape(part)
            routes.append(Route(http["method"], re.compile(pattern), names, name, len("".join(parts))))
        return sorted(routes, key=lambda route: -route.literal_length)


@cache
def service(name: str) -> Service:
    """The service of that name; models are read once per process."""
    return Service(name)
