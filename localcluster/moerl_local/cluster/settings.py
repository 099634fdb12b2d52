"""What a cluster decided when it was first started (addresses, ports), so that it comes back the same."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from moerl_local.cluster import network
from moerl_local.cluster.errors import ClusterError
from moerl_local.paths import state_dir

_FILE = "settings.json"


@dataclass(slots=True)
class Settings:
    """The decisions; `index` is None where no network of its own could be made (no root, no Linux)."""

    name: str
    index: int | None
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where everything of this cluster lies."""
        return state_dir() / self.name

    @property
    def network(self) -> network.Network:
        """Its addresses; those of index 0 stand in objects only where there is no network of its own."""
        return network.Network(self.index or 0)

    @property
    def address(self) -> str:
        """Where its servers listen."""
        return "127.0.0.1" if self.index is None else self.network.address

    def port(self, use: str, *, prefer: int | None = None, loopback: bool = False) -> int:
        """The port for `use`, chosen once: `prefer` if free, else any free one.

        Raises:
            ClusterError: the port chosen earlier is now taken by somebody else.
        """
        host = "127.0.0.1" if loopback else self.address
        if use not in self.ports:
            free = prefer is not None and is_free(host, prefer)
            self.ports[use] = prefer if free and prefer is not None else _any_free(host)
            self.save()
        return self.ports[use]

    def save(self) -> None:
        """Write to disk."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = self.folder / f".{_FILE}.tmp"
        unfinished.write_text(json.dumps(asdict(self), indent=1))
        unfinished.rename(self.folder / _FILE)


def load(name: str) -> Settings | None:
    """The settings of cluster `name`, None when there is none."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        return Settings(**json.loads((state_dir() / name / _FILE).read_text()))
    return None


def load_or_choose(name: str) -> Settings:
    """The settings of cluster `name`, freshly chosen apart from all other clusters' when there are none."""
    with locked("choose"):
        found = load(name)
        if found and (found.index is None) == network.usable():
            then, now = ("without", "with") if found.index is None else ("with", "without")
            raise ClusterError(
                f"cluster {name} was started {then} root and is now asked for {now} it; "
                f"run `moerl cluster down --purge --name {name}` {then} root first"
            )
        if found is None:
            others = [load(path.name) for path in state_dir().iterdir() if path.is_dir()]
            taken = [each.index for each in others if each and each.index is not None]
            found = Settings(name, network.choose(taken).index if network.usable() else None)
            found.save()
        return found


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock `name` of the state folder: one `up` or `down` per cluster at a time."""
    state_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state_dir() / f".{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on `host`:`port` now."""
    with socket.socket() as probe:
        # Without it a port is taken for a minute after its last connection.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()  # two sockets that reuse an address may both bind, but not both listen
        except OSError:
            return False
    return True


def _any_free(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port
