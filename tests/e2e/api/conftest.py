"""The definitions in crds/, applied to the tests' cluster and established, and one namespace for all cases.

Made once a session: a namespace's end costs the controller manager more than a case costs the API server.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moerl_local.cluster.handle import Cluster


@pytest.fixture(scope="session")
def definitions(cluster: Cluster, root: Path) -> list[dict[str, Any]]:
    """Both definitions as the server has them, Established."""
    crds = [f"crd/{plural}.moerl.dev" for plural in ("moerljobs", "moerlnodeclasses")]
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(root / "crds"))
    for condition in ("NamesAccepted", "Established"):
        cluster.kubectl("wait", f"--for=condition={condition}", *crds, "--timeout=60s")
    items: list[dict[str, Any]] = json.loads(cluster.kubectl("get", *crds, "-o", "json"))["items"]
    return items


@pytest.fixture(scope="session")
def api_namespace(cluster: Cluster, definitions: list[dict[str, Any]]) -> Iterator[str]:
    """A namespace for all cases, with the definitions there."""
    name = f"api-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
