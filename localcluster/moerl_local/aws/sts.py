"""STS: who am I, for clients that ask before they start."""

from __future__ import annotations

from typing import Any

from .world import ACCOUNT


class Sts:
    """The operations; each takes checked parameters and returns the members of the answer."""

    def get_caller_identity(self, params: dict[str, Any]) -> dict[str, Any]:
        """The one user of the account."""
        return {"UserId": "AIDAMOERLLOCALUSER000", "Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/test"}
