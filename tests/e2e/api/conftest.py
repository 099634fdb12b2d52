"""The definitions in crds/, applied to the tests' cluster and established."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from moerl_operator.kube.api import Kinds, KubeApi
from support.waiting import until


@pytest.fixture
async def definitions(kube: KubeApi, root: Path) -> list[dict[str, Any]]:
    """Both definitions as the server has them, Established."""
    for path in sorted((root / "crds").glob("*.yaml")):
        await kube.apply(Kinds.CUSTOM_RESOURCE_DEFINITION, yaml.safe_load(path.read_text()))

    async def established() -> list[dict[str, Any]] | None:
        found = [await kube.get(Kinds.CUSTOM_RESOURCE_DEFINITION, None, f"{plural}.moerl.dev")
                 for plural in ("moerljobs", "moerlnodeclasses")]  # fmt: skip
        ready = [crd for crd in found if crd and _is(crd, "Established") and _is(crd, "NamesAccepted")]
        return ready if len(ready) == len(found) else None

    found: list[dict[str, Any]] = await until("the definitions are established", established)
    return found


def _is(crd: dict[str, Any], kind: str) -> bool:
    conditions = crd.get("status", {}).get("conditions", [])
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)
