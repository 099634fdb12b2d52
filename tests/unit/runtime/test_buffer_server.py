"""The buffer's server configuration and the commands that its scripts use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from moerl_runtime.buffer import scripts, server

# Commands of both Redis 7.0 and Valkey 7.2 that a script may call.
COMMON = {
    "DEL", "EXISTS", "HGET", "HINCRBY", "HMGET", "HSET", "HSETNX", "LRANGE", "PERSIST", "PTTL", "RPUSH", "SADD",
    "SCARD", "SISMEMBER", "SREM", "TIME", "UNLINK", "ZADD", "ZCARD", "ZCOUNT", "ZPOPMIN", "ZRANGE", "ZRANGEBYSCORE",
    "ZREM",
}  # fmt: skip


@pytest.mark.parametrize("name", get_args(scripts.Name))
def test_scripts_use_common_commands_only(name: scripts.Name) -> None:
    commands = set(re.findall(r"redis\.call\('(\w+)'", scripts.source(name)))
    assert commands <= COMMON
    assert len(re.findall(r"redis\.p?call\(", scripts.source(name))) >= len(commands)


def test_every_script_file_is_known() -> None:
    folder = Path(scripts.__file__).parent / "lua"
    assert {path.stem for path in folder.glob("*.lua")} == {*get_args(scripts.Name), "prelude"}


def prepare(tmp_path: Path, **env: str) -> str:
    """The configuration that an environment gives."""
    command = server.prepare({"MOERL_RUN_DIR": str(tmp_path), "MOERL_BUFFER_PASSWORD": "p", **env})
    assert command[1] == str(tmp_path / "redis.conf")
    return Path(command[1]).read_text()


@pytest.fixture(autouse=True)
def _program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.shutil, "which", lambda name: f"/bin/{name}" if name == "redis-server" else None)


def test_memory_and_pvc(tmp_path: Path) -> None:
    text = prepare(tmp_path, MOERL_BUFFER_MAXMEMORY="2gb")
    assert "maxmemory-policy noeviction\n" in text
    assert "maxmemory 2gb\n" in text
    assert "appendonly no\n" in text
    assert 'save ""\n' in text
    config = tmp_path / "job.json"
    config.write_text(json.dumps({"spec": {"buffer": {"storage": {"type": "PVC"}}}}))
    text = prepare(tmp_path, MOERL_CONFIG=str(config))
    assert "appendonly yes\n" in text
    assert "dir /data\n" in text
    assert (tmp_path / "redis.conf").stat().st_mode & 0o777 == 0o600


def test_quoting_and_refusals(tmp_path: Path) -> None:
    assert 'requirepass "a\\"b\\\\ #"\n' in prepare(tmp_path, MOERL_BUFFER_PASSWORD='a"b\\ #')
    with pytest.raises(SystemExit, match="MOERL_BUFFER_PASSWORD is empty"):
        prepare(tmp_path, MOERL_BUFFER_PASSWORD="")
    with pytest.raises(SystemExit, match="line break"):
        prepare(tmp_path, MOERL_BUFFER_PASSWORD="a\nrequirepass x")
