"""The one exception with which an emulated service answers a client error."""

from __future__ import annotations

from collections.abc import Mapping


class AwsError(Exception):
    """An error answer of a service.

    `code` is the service's word (`ResourceInUseException`, `ValidationError`, ...), `status` the HTTP status
    (None: what the service's model says, else 400), `fields` further members of a REST-JSON error body.
    """

    def __init__(
        self, code: str, message: str, *, status: int | None = None, fields: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.fields = dict(fields or {})
