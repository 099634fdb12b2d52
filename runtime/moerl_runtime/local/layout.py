"""Which processes a manifest becomes on one machine, with which environment: pure, so that it can be tested.

The environment is the one that the operator injects into pods; only addresses and ports differ.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from moerl_operator.api import names
from moerl_operator.api.job import JobSpec
from moerl_runtime.config import ConfigError

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Member:
    """One process: what it is called, what runs, what it is told. `unit` members fall and are restarted together."""

    name: str
    role: str
    unit: str
    env: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        """The pod's own command."""
        return [sys.executable, "-m", "moerl_runtime", self.role]


@dataclass(frozen=True, slots=True)
class Layout:
    """All processes of a run but the trainer's, whose environment depends on the attempt."""

    services: tuple[Member, ...]
    rollouts: tuple[Member, ...]
    run_dir: Path
    spec: JobSpec
    common: Mapping[str, str] = field(repr=False)

    def trainer(self, attempt: int) -> tuple[Member, Member]:
        """The trainer of one attempt and the agent beside it; each attempt meets at a port of its own."""
        rendezvous, agent = free_ports(2)
        env = {
            **self.common,
            "MOERL_ROLE": names.TRAINER,
            "MOERL_ATTEMPT": str(attempt),
            "MOERL_POD_NAME": f"trainer-a{attempt}",
            "MOERL_AGENT_PORT": str(agent),
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(rendezvous),
        }
        return (
            Member("trainer", "trainer", "trainer", env),
            Member("agent", "agent", "trainer", env),
        )


def load_manifest(path: Path) -> tuple[str, dict[str, Any]]:
    """(name, spec as written) of the one MoERLJob in a YAML file. ConfigError in one line."""
    try:
        documents = [one for one in yaml.safe_load_all(path.read_text()) if one]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    jobs = [one for one in documents if isinstance(one, dict) and one.get("kind") == "MoERLJob"]
    if len(jobs) != 1:
        raise ConfigError(f"{path} holds {len(jobs)} objects of kind MoERLJob; one is needed")
    name = (jobs[0].get("metadata") or {}).get("name") or "job"
    try:
        spec = JobSpec.model_validate(jobs[0].get("spec"))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["spec", *(str(part) for part in first["loc"])])
        raise ConfigError(f"{path}: {place}: {first['msg']}") from error
    _check(path, spec)
    return str(name), jobs[0]["spec"]


def _check(path: Path, spec: JobSpec) -> None:
    if spec.framework.type != "Native":
        raise ConfigError(f"{path}: spec.framework.type is {spec.framework.type}; local processes run only Native")
    if spec.trainer.nodes.count not in (None, 1):
        raise ConfigError(f"{path}: spec.trainer.nodes.count is {spec.trainer.nodes.count}; one machine runs 1")
    if any(pool.nodes_per_replica != 1 for pool in spec.rollout.pools):
        raise ConfigError(f"{path}: spec.rollout.pools: nodesPerReplica above 1 needs a cluster")


def lay_out(
    name: str,
    raw_spec: dict[str, Any],
    *,
    state: Path,
    storage: Path | None = None,
    model: str | None = None,
) -> Layout:
    """Choose ports, write job.json below `state`, and say what runs.

    With `storage` checkpoints and artifacts go below that folder, and with `model` (a path or location of a model
    folder) training starts there, whatever the manifest says.
    """
    run_dir = state / "run"
    run_dir.mkdir(parents=True, exist_ok=True)
    if storage is not None:
        places = {
            "checkpoints": (storage / "checkpoints").resolve().as_uri(),
            "artifacts": (storage / "artifacts").resolve().as_uri(),
        }
        raw_spec = {**raw_spec, "storage": {**(raw_spec.get("storage") or {}), **places}}
    if model is not None:
        raw_spec = {**raw_spec, "model": {"uri": model if "://" in model else Path(model).resolve().as_uri()}}
    spec = JobSpec.model_validate(raw_spec)
    config = state / "job.json"
    config.write_text(json.dumps({"metadata": {"name": name, "namespace": "local", "uid": ""}, "spec": raw_spec}))
    replicas = [(pool.name, at) for pool in spec.rollout.pools for at in range(pool.wanted)]
    ports = iter(free_ports(3 + 2 * len(replicas)))
    redis, environment, reward = next(ports), next(ports), next(ports)
    password = secrets.token_urlsafe(24)
    common = {
        "MOERL_JOB": name,
        "MOERL_NAMESPACE": "local",
        "MOERL_CONFIG": str(config),
        "MOERL_RUN_DIR": str(run_dir),
        "MOERL_BIND": HOST,
        "MOERL_BUFFER_URL": f"redis://{HOST}:{redis}/0",
        "MOERL_BUFFER_PASSWORD": password,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    services = [_buffer(common, redis)]
    if spec.environment is not None:
        common["MOERL_ENVIRONMENT_URL"] = f"http://{HOST}:{environment}"
        services.append(_service(common, names.ENVIRONMENT, environment))
    if spec.reward is not None:
        common["MOERL_REWARD_URL"] = f"http://{HOST}:{reward}"
        services.append(_service(common, names.REWARD, reward))
    return Layout(
        services=tuple(services),
        rollouts=tuple(_rollouts(common, replicas, ports, state)),
        run_dir=run_dir,
        spec=spec,
        common=common,
    )


def _buffer(common: Mapping[str, str], port: int) -> Member:
    env = {**common, "MOERL_ROLE": names.BUFFER, "MOERL_BUFFER_PORT": str(port), "MOERL_BUFFER_BIND": HOST}
    return Member("buffer", "buffer", "buffer", env)


def _service(common: Mapping[str, str], role: str, port: int) -> Member:
    return Member(role, role, role, {**common, "MOERL_ROLE": role, "MOERL_SERVICE_PORT": str(port)})


def _rollouts(
    common: Mapping[str, str], replicas: list[tuple[str, int]], ports: Iterator[int], state: Path
) -> Iterator[Member]:
    for pool, at in replicas:
        unit = f"rollout-{pool}-{at}"
        folder = state / unit
        folder.mkdir(parents=True, exist_ok=True)
        env = {
            **common,
            "MOERL_ROLE": names.ROLLOUT,
            "MOERL_POOL": pool,
            "MOERL_REPLICA": str(at),
            "MOERL_POD_NAME": unit,
            "MOERL_RUN_DIR": str(folder),
            "MOERL_ENGINE_URL": f"http://{HOST}:{next(ports)}",
            "MOERL_AGENT_PORT": str(next(ports)),
        }
        yield Member(f"{unit}-engine", "engine", unit, env)
        yield Member(f"{unit}-driver", "driver", unit, env)


def free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
