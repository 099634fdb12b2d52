"""`python -m moerl_runtime buffer`: writes the server's configuration and becomes redis-server (or valkey-server).

The password goes into a file that only this user can read, never into argv, where every process could read it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SERVERS = ("valkey-server", "redis-server")
DEFAULT_PORT = 6379
DATA_DIR = "/data"


def configuration(*, password: str, port: int, bind: str, folder: Path, persist: bool, memory: str | None) -> str:
    """The text of redis.conf.

    `noeviction`: a full buffer refuses writes, and drivers back off, where any other policy would silently lose groups.
    RDB files are off: a lost server is rebuilt, not restored from a moment long ago. `persist` appends to a log.
    """
    lines = [
        f"bind {bind}",
        f"port {port}",
        f"dir {folder}",
        "daemonize no",
        "maxmemory-policy noeviction",
        'save ""',
        f"appendonly {'yes' if persist else 'no'}",
        "appendfsync everysec",
        "tcp-keepalive 30",
        "protected-mode no" if password else "protected-mode yes",
    ]
    if memory:
        lines.append(f"maxmemory {memory}")
    if password:
        lines.append(f"requirepass {quoted(password)}")
    return "\n".join(lines) + "\n"


def quoted(value: str) -> str:
    """A configuration string that may hold spaces, quotes and hashes."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def prepare(env: Mapping[str, str]) -> list[str]:
    """Write the configuration; the command to become. SystemExit with one line when something is missing."""
    program = next((found for name in SERVERS if (found := shutil.which(name))), None)
    if program is None:
        raise SystemExit("moerl buffer: neither valkey-server nor redis-server is installed in this image")
    password = env.get("MOERL_BUFFER_PASSWORD", "")
    if not password and env.get("MOERL_BUFFER_BIND", "").split() != ["127.0.0.1"]:
        raise SystemExit("moerl buffer: MOERL_BUFFER_PASSWORD is empty; it comes from the Secret <job>-buffer")
    if "\n" in password or "\0" in password:
        raise SystemExit("moerl buffer: MOERL_BUFFER_PASSWORD holds a line break")
    folder = _folder(env)
    data = _data_folder(env)
    text = configuration(
        password=password,
        port=int(env.get("MOERL_BUFFER_PORT", DEFAULT_PORT)),
        bind=env.get("MOERL_BUFFER_BIND", "* -::*"),
        folder=data or folder,
        persist=data is not None,
        memory=env.get("MOERL_BUFFER_MAXMEMORY"),
    )
    path = folder / "redis.conf"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return [program, str(path)]


def _data_folder(env: Mapping[str, str]) -> Path | None:
    """Where the job asks for persistence (spec.buffer.storage.type PVC), the operator's mount; else None."""
    try:
        spec = json.loads(Path(env.get("MOERL_CONFIG", "")).read_text())["spec"]
        persistent = spec["buffer"]["storage"]["type"] == "PVC"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Path(env.get("MOERL_BUFFER_DATA") or DATA_DIR) if persistent else None


def _folder(env: Mapping[str, str]) -> Path:
    wished = Path(env.get("MOERL_RUN_DIR", ""))
    if env.get("MOERL_RUN_DIR") and wished.is_dir() and os.access(wished, os.W_OK):
        return wished
    return Path(tempfile.mkdtemp(prefix="moerl-buffer-"))


def main() -> int:
    """Become the server. It keeps the pid, so that Kubernetes' SIGTERM reaches it."""
    command = prepare(os.environ)
    print(f"moerl buffer: starting {command[0]}", flush=True)
    sys.stdout.flush()
    env = {k: v for k, v in os.environ.items() if k != "MOERL_BUFFER_PASSWORD"}
    os.execve(command[0], command, env)  # noqa: S606  (no shell: the program found above and one file)
