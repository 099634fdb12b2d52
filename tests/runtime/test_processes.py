"""The light roles as real processes: start, readiness, SIGTERM, and one-line errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moerl_runtime.buffer.client import Buffer
from support.redis import RedisServer, free_port

PATIENCE = 90.0
"""Seconds; a start takes one, but not on a machine that does a dozen other things."""

JOB: dict[str, Any] = {
    "metadata": {"name": "j", "namespace": "n", "uid": "u"},
    "spec": {
        "algorithm": {"iterations": 3, "maxNewTokens": 4},
        "model": {"preset": "TinyQwen3MoE"},
        "storage": {"dataset": "builtin://reverse-4", "checkpoints": "file:///c", "artifacts": "file:///a"},
        "rollout": {"pools": [{"name": "main", "replicas": 2}]},
    },
}


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    """The injected environment, on this machine's loopback."""
    config = tmp_path / "job.json"
    if not config.exists():
        config.write_text(json.dumps(JOB))
    return {
        **os.environ,
        "MOERL_CONFIG": str(config),
        "MOERL_RUN_DIR": str(tmp_path),
        "MOERL_BIND": "127.0.0.1",
        **more,
    }


@contextmanager
def process(role: str, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A role's process; killed at the end if it still runs."""
    command = [sys.executable, "-m", "moerl_runtime", role]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def get(port: int, path: str, *, seconds: float = PATIENCE) -> tuple[int, str]:
    """Status and body, once something answers."""
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@pytest.mark.parametrize("role", ["environment", "reward"])
def test_scoring_services_serve_and_end_with_143(role: str, tmp_path: Path) -> None:
    port = free_port()
    with process(role, environ(tmp_path, MOERL_SERVICE_PORT=str(port))) as child:
        assert get(port, "/readyz") == (200, "ok\n")
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 143


def test_driver_waits_for_its_engine_and_ends_with_143(redis: RedisServer, tmp_path: Path) -> None:
    port = free_port()
    env = environ(
        tmp_path,
        MOERL_AGENT_PORT=str(port),
        MOERL_BUFFER_URL=redis.url,
        MOERL_BUFFER_PASSWORD=redis.password,
        MOERL_ENVIRONMENT_URL="http://127.0.0.1:1",
        MOERL_ENGINE_URL="http://127.0.0.1:1",
    )
    with process("driver", env) as child:
        assert get(port, "/healthz")[0] == 200
        status, reason = get(port, "/readyz")
        assert status == 503
        assert "buffer" in reason or "engine" in reason
        assert "moerl_policy_version -1.0" in get(port, "/metrics")[1]
        resident = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert resident < 100 * 2**20, "a driver is light"
        mapped = Path(f"/proc/{child.pid}/maps").read_text()
        assert "torch" not in mapped
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 143


def test_agent_without_a_cluster_serves_what_the_trainer_wrote(redis: RedisServer, tmp_path: Path) -> None:
    from moerl_runtime.agent import progress

    port = free_port()
    progress.write(
        progress.Progress(phase="Training", iteration=7, iterations=9, policy_version=8, reward=0.5), tmp_path
    )
    env = environ(
        tmp_path,
        MOERL_AGENT_PORT=str(port),
        MOERL_BUFFER_URL=redis.url,
        MOERL_BUFFER_PASSWORD=redis.password,
        MOERL_REPORT="j-report",
    )
    env.pop("KUBERNETES_SERVICE_HOST", None)
    with process("agent", env) as child:
        get(port, "/healthz")
        end = time.monotonic() + PATIENCE
        while not ("moerl_iteration 7.0" in (text := get(port, "/metrics")[1]) and "moerl_buffer_groups{" in text):
            assert time.monotonic() < end, text
            time.sleep(0.1)
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 143


async def test_buffer_role_becomes_a_server_with_the_password(tmp_path: Path) -> None:
    port = free_port()
    env = environ(tmp_path, MOERL_BUFFER_PORT=str(port), MOERL_BUFFER_PASSWORD="se cret", MOERL_BUFFER_BIND="127.0.0.1")
    with process("buffer", env) as child:
        async with await Buffer.connect(f"redis://127.0.0.1:{port}/0", "se cret", timeout_seconds=PATIENCE) as buffer:
            assert (await buffer.ledger()).issued == 0
            assert await buffer.redis.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        hidden = [Path(f"/proc/{child.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]  # noqa: ASYNC240
        assert not any(b"se cret" in text for text in hidden)
        assert (tmp_path / "redis.conf").stat().st_mode & 0o077 == 0
        child.send_signal(signal.SIGTERM)
        child.wait(PATIENCE)


@pytest.mark.parametrize(
    ("role", "change", "message"),
    [
        ("driver", {"MOERL_CONFIG": "/nowhere/job.json"}, "no job file at /nowhere/job.json: set MOERL_CONFIG"),
        ("driver", {"MOERL_REWARD_URL": ""}, "neither MOERL_ENVIRONMENT_URL nor MOERL_REWARD_URL is set"),
        ("environment", {"MOERL_SERVICE_PORT": "http"}, "MOERL_SERVICE_PORT='http' is not a whole number"),
        ("buffer", {"MOERL_BUFFER_PASSWORD": ""}, "MOERL_BUFFER_PASSWORD is empty"),
        ("rollouts", {}, "usage: python -m moerl_runtime {buffer,driver,"),
    ],
)
def test_a_mistake_is_one_line(role: str, change: dict[str, str], message: str, tmp_path: Path) -> None:
    with process(role, environ(tmp_path, **change)) as child:
        out, err = child.communicate(timeout=PATIENCE)
        assert child.returncode not in (0, None)
        assert message in err
        assert "Traceback" not in out + err
        assert len(err.strip().splitlines()) == 1


def test_a_dataset_that_is_not_there_is_named(tmp_path: Path) -> None:
    job = {**JOB, "spec": {**JOB["spec"], "storage": {**JOB["spec"]["storage"], "dataset": "file:///nowhere.jsonl"}}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    with process("environment", environ(tmp_path)) as child:
        _, err = child.communicate(timeout=PATIENCE)
        assert child.returncode == 2
        assert "file:///nowhere.jsonl cannot be read" in err
        assert "Traceback" not in err


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with process("environment", environ(tmp_path, MOERL_SERVICE_PORT=port)) as child:
            _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 2
    assert f"127.0.0.1:{port} cannot be served" in err
    assert "Traceback" not in err


def test_a_trainer_that_waits_for_its_buffer_ends_with_143(tmp_path: Path) -> None:
    env = environ(tmp_path, MOERL_BUFFER_URL="redis://127.0.0.1:1/0", MOERL_BUFFER_PASSWORD="x")
    with process("trainer", env) as child:
        progress = tmp_path / "progress.json"
        for _ in range(600):
            if progress.exists():
                break
            time.sleep(0.1)
        assert json.loads(progress.read_text())["phase"] == "Starting"
        time.sleep(0.5)
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 143
