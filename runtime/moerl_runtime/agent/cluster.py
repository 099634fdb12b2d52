"""The one call that the data plane makes to Kubernetes: a merge patch of the job's report ConfigMap.

Plain HTTP with the pod's own ServiceAccount. The token and the certificate are read anew each time, because the
kubelet rotates them.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REPORT_KEY = "report.json"
TIMEOUT_SECONDS = 10.0


class ReportNotWritten(RuntimeError):
    """The API server did not take the report; the message says why."""


@dataclass(frozen=True, slots=True)
class ReportTarget:
    """Where the report goes: the API server, and the ConfigMap's namespace and name."""

    url: str
    namespace: str
    name: str
    account: Path = ACCOUNT

    @staticmethod
    def from_env(env: Mapping[str, str], *, namespace: str, name: str) -> ReportTarget | None:
        """The in-cluster API server, None outside a cluster."""
        host = env.get("KUBERNETES_SERVICE_HOST")
        if not host or not name:
            return None
        host = f"[{host}]" if ":" in host else host
        return ReportTarget(
            url=f"https://{host}:{env.get('KUBERNETES_SERVICE_PORT', '443')}",
            namespace=namespace,
            name=name,
            account=Path(env.get("MOERL_SERVICE_ACCOUNT_DIR") or ACCOUNT),
        )

    async def write(self, report: str) -> None:
        """Patch the report in. ReportNotWritten on every failure."""
        try:
            token = (self.account / "token").read_text().strip()
            context = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        except OSError as error:
            raise ReportNotWritten(f"the pod has no usable ServiceAccount token: {error}") from error
        url = f"{self.url}/api/v1/namespaces/{self.namespace}/configmaps/{self.name}"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        body = json.dumps({"data": {REPORT_KEY: report}})
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)) as session,
                session.patch(url, data=body, headers=headers, ssl=context) as answer,
            ):
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ReportNotWritten(f"{self.url} cannot be reached: {error or type(error).__name__}") from error
        if answer.status >= 300:
            raise ReportNotWritten(f"{url} answered {answer.status}: {_message(text)}")


def _message(text: str) -> str:
    try:
        return str(json.loads(text).get("message", text))[:300]
    except ValueError:
        return text[:300]
