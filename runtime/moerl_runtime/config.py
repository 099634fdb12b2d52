"""What a data-plane process is told: the job as written (job.json) and the environment that the operator injects.

The models are the API's own. A field of `algorithm` that this program does not know is an error, because an ignored
setting would train something else than was asked for; the rest of the spec is read only where it is needed.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moerl_operator.api import names
from moerl_operator.api.job import Algorithm, Model, Storage


class ConfigError(ValueError):
    """The process cannot start: one line that names what is wrong and where."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """job.json: who the job is and what the native runtime does for it.

    `rollout_replicas` is the number of rollout replicas wished for (the minimum of elastic pools).
    """

    name: str
    namespace: str
    uid: str
    algorithm: Algorithm
    model: Model
    storage: Storage
    rollout_replicas: int
    spec: dict[str, Any]

    @property
    def dataset(self) -> str:
        """URI of the prompts."""
        if self.storage.dataset is None:
            raise ConfigError("spec.storage.dataset is missing")
        return self.storage.dataset


def load_job(path: Path) -> JobConfig:
    """Read job.json. ConfigError names the file and the field at fault."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"no job file at {path}: set MOERL_CONFIG") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return parse_job(document, source=str(path))


def parse_job(document: Any, *, source: str = "job.json") -> JobConfig:
    """The job in `document`, {"metadata": {...}, "spec": {...}}."""
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        raise ConfigError(f"{source} has no spec")
    metadata, spec = document.get("metadata") or {}, document["spec"]
    try:
        return JobConfig(
            name=str(metadata.get("name", "job")),
            namespace=str(metadata.get("namespace", "default")),
            uid=str(metadata.get("uid", "")),
            algorithm=Algorithm.model_validate(_part(spec, "algorithm", source)),
            model=Model.model_validate(_part(spec, "model", source)),
            storage=Storage.model_validate(_part(spec, "storage", source)),
            rollout_replicas=_replicas(spec),
            spec=spec,
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{source}: {error.title.lower()}.{place}: {first['msg']}") from error


def _part(spec: Mapping[str, Any], key: str, source: str) -> Any:
    if spec.get(key) is None:
        raise ConfigError(f"{source}: spec.{key} is missing; the native runtime needs it")
    return spec[key]


def _replicas(spec: Mapping[str, Any]) -> int:
    pools = (spec.get("rollout") or {}).get("pools") or []
    return max(1, sum(int(pool.get("replicas", pool.get("minReplicas", 1)) or 0) for pool in pools))


@dataclass(frozen=True, slots=True)
class Settings:
    """The injected environment of one process. Ports and addresses may be moved for processes on one machine."""

    job: str
    namespace: str
    role: str
    pool: str
    attempt: int
    rank: int
    worker: str
    config_file: Path
    run_dir: Path
    buffer_url: str
    buffer_password: str
    reward_url: str
    environment_url: str
    engine_url: str
    report: str
    bind: str
    service_port: int
    agent_port: int

    @staticmethod
    def from_env(env: Mapping[str, str] | None = None) -> Settings:
        """Read the environment. ConfigError names a variable whose value is no number."""
        env = os.environ if env is None else env
        return Settings(
            job=env.get("MOERL_JOB", "job"),
            namespace=env.get("MOERL_NAMESPACE", "default"),
            role=env.get("MOERL_ROLE", ""),
            pool=env.get("MOERL_POOL", ""),
            attempt=_number(env, "MOERL_ATTEMPT", 1),
            rank=_number(env, "RANK", 0),
            worker=env.get("MOERL_POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
            config_file=Path(env.get("MOERL_CONFIG", names.CONFIG_FILE)),
            run_dir=Path(env.get("MOERL_RUN_DIR") or tempfile.gettempdir()),
            buffer_url=env.get("MOERL_BUFFER_URL", f"redis://127.0.0.1:{names.PORT_REDIS}/0"),
            buffer_password=env.get("MOERL_BUFFER_PASSWORD", ""),
            reward_url=env.get("MOERL_REWARD_URL", "").rstrip("/"),
            environment_url=env.get("MOERL_ENVIRONMENT_URL", "").rstrip("/"),
            engine_url=env.get("MOERL_ENGINE_URL", f"http://127.0.0.1:{names.PORT_ENGINE}").rstrip("/"),
            report=env.get("MOERL_REPORT", ""),
            bind=env.get("MOERL_BIND", "0.0.0.0"),  # noqa: S104  (a pod serves its network)
            service_port=_number(env, "MOERL_SERVICE_PORT", names.PORT_SERVICE),
            agent_port=_number(env, "MOERL_AGENT_PORT", names.PORT_AGENT),
        )

    def job_config(self) -> JobConfig:
        """The job that `config_file` describes."""
        return load_job(self.config_file)


def _number(env: Mapping[str, str], key: str, default: int) -> int:
    value = env.get(key) or str(default)
    try:
        return int(value)
    except ValueError as error:
        raise ConfigError(f"{key}={value!r} is not a whole number") from error
