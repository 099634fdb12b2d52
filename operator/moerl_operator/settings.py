"""What an installation is told from outside: environment variables set by the chart, and the command line."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any


class SettingsError(Exception):
    """A setting that is missing or unusable, in one line with the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One operator process. Environment variables stand beside each field; the command line overrides them."""

    cluster_name: str = field(metadata={"env": "MOERL_CLUSTER_NAME"})
    cluster_arn: str = field(default="", metadata={"env": "MOERL_CLUSTER_ARN"})
    installation: str = field(default="moerl-system.moerl-operator", metadata={"env": "MOERL_INSTALLATION"})
    # Namespaces whose jobs are run; empty: all.
    watch_namespaces: tuple[str, ...] = field(default=(), metadata={"env": "MOERL_WATCH_NAMESPACES"})
    operator_image: str = field(default="", metadata={"env": "MOERL_OPERATOR_IMAGE"})
    # Where the leader's Lease lies, and the name under which we hold it.
    namespace: str = field(default="moerl-system", metadata={"env": "MOERL_NAMESPACE"})
    identity: str = field(default="", metadata={"env": "MOERL_POD_NAME"})
    kubeconfig: str | None = field(default=None, metadata={"env": "MOERL_KUBECONFIG"})
    context: str | None = None
    aws_region: str | None = None  # None: boto3's own sources
    aws_endpoint_url: str | None = None
    http_host: str = field(default="0.0.0.0", metadata={"env": "MOERL_HTTP_HOST"})  # noqa: S104 - probes come from outside
    http_port: int = field(default=8080, metadata={"env": "MOERL_HTTP_PORT"})
    workers: int = field(default=8, metadata={"env": "MOERL_WORKERS"})
    resync_seconds: int = field(default=600, metadata={"env": "MOERL_RESYNC_SECONDS"})
    leader_election: bool = True
    log_format: str = field(default="json", metadata={"env": "MOERL_LOG_FORMAT"})  # json | text
    log_level: str = field(default="INFO", metadata={"env": "MOERL_LOG_LEVEL"})

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """From the environment; `overrides` that are None or empty count as not given. Raises SettingsError."""
        environ = os.environ if environ is None else environ
        given: dict[str, Any] = {}
        for item in fields(cls):
            variable = item.metadata.get("env")
            if variable and environ.get(variable):
                given[item.name] = _parse(item.name, variable, environ[variable])
        given |= {name: value for name, value in overrides.items() if value not in (None, "", ())}
        if not given.get("cluster_name"):
            raise SettingsError(
                "the name of the EKS cluster is not set: give --cluster-name or the environment variable "
                "MOERL_CLUSTER_NAME"
            )
        settings = cls(**given)
        if settings.workers < 1 or not 0 <= settings.http_port <= 65535:
            raise SettingsError("workers must be at least 1 and http_port between 0 and 65535")
        return settings if settings.identity else replace(settings, identity=f"{socket.gethostname()}-{os.getpid()}")


def _parse(name: str, variable: str, text: str) -> Any:
    if name == "watch_namespaces":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if name in ("http_port", "workers", "resync_seconds"):
        if not text.isdigit():
            raise SettingsError(f"{variable} must be a whole number, not {text!r}")
        return int(text)
    return text
