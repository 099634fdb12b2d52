"""A real exchange between the pods of a gang over plain TCP sockets: the least that proves which network they have.

Rank 0 listens, the others join it; each rank then sends `size` bytes to the next one and checks what it gets from the
one before it. gloo and NCCL's sockets take the same kernel path, but they are not run here, and no figure comes out.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHUNK = 1 << 20
_MAX_MESSAGE = 1 << 20
_RETRY_SECONDS = 0.3
_LENGTH = struct.Struct("!I")

Obj = dict[str, Any]


class ExchangeError(RuntimeError):
    """The exchange did not complete; the message names the rank and the step."""


@dataclass(frozen=True, slots=True)
class Place:
    """This rank in its gang.

    address, port: where rank 0 listens. token: equal for all pods of one attempt and for nobody else, so that a pod of
    an earlier attempt, which may still be ending, does not join. node: name of the node, to tell what crosses nodes.
    """

    rank: int
    size: int
    address: str
    port: int
    token: str
    node: str
    own_address: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str], root: Path = Path("/")) -> Place:
        """From RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torch.distributed names them, and the pod's identity.

        The port is the one after MASTER_PORT: the role's own rendezvous follows at once on the first.
        Raises ValueError for numbers that are none, or a rank outside its gang.
        """
        rank, size = int(environment.get("RANK") or 0), int(environment.get("WORLD_SIZE") or 1)
        if not 0 <= rank < size:
            raise ValueError(f"RANK={rank} is not within WORLD_SIZE={size}")
        parts = [environment.get(f"MOERL_{key}", "") for key in ("JOB_UID", "ROLE", "POOL", "REPLICA", "ATTEMPT")]
        return cls(
            rank=rank,
            size=size,
            address=environment.get("MASTER_ADDR") or "127.0.0.1",
            port=int(environment.get("MASTER_PORT") or 29500) + 1,
            token=hashlib.sha256("/".join(parts).encode()).hexdigest()[:32],
            node=environment.get("MOERL_NODE_NAME") or _boot_id(root),
            own_address=environment.get("MOERL_POD_IP", ""),
        )


class Ring:
    """The joined gang, as a context: entering it connects to both neighbours. ExchangeError on failure."""

    def __init__(self, place: Place, *, deadline: float) -> None:
        """deadline: of time.monotonic(); every step ends by then."""
        self.place = place
        self._deadline = deadline
        self._stack = ExitStack()
        self._control: list[socket.socket] = []  # rank 0: to every other rank in order; others: to rank 0
        self.members: list[Obj] = []

    def __enter__(self) -> Ring:
        try:
            self._join()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def next_node(self) -> str:
        """Node of the rank that this one sends to."""
        return str(self.members[(self.place.rank + 1) % self.place.size]["node"])

    def exchange(self, size: int) -> None:
        """Send `size` bytes to the next rank and check as many from the one before. ExchangeError."""
        failed: list[BaseException] = []

        def send() -> None:
            try:
                for index in range(0, size, CHUNK):
                    self._to.sendall(_chunk(self.place.token, self.place.rank, index, min(CHUNK, size - index)))
            except OSError as error:
                failed.append(error)

        before = (self.place.rank - 1) % self.place.size
        self._to.settimeout(self._left())
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        try:
            for index in range(0, size, CHUNK):
                length = min(CHUNK, size - index)
                if _receive(self._from, length, self._deadline) != _chunk(self.place.token, before, index, length):
                    raise ExchangeError(f"rank {self.place.rank}: bytes {index} to {index + length} of rank {before} "
                                        "arrived changed")  # fmt: skip
        except OSError as error:
            raise ExchangeError(f"rank {self.place.rank}: receiving from rank {before}: {_words(error)}") from error
        sender.join(self._left())
        if failed or sender.is_alive():
            after = (self.place.rank + 1) % self.place.size
            raise ExchangeError(
                f"rank {self.place.rank}: sending to rank {after}: {_words(failed[0]) if failed else 'no end in time'}"
            )

    def settle(self, said: Obj) -> list[Obj]:
        """What every rank said, in rank order; also a barrier. ExchangeError."""
        try:
            if self.place.rank:
                _say(self._control[0], said)
                answer: list[Obj] = _hear(self._control[0], self._left())["all"]
                return answer
            everyone = [said, *(_hear(peer, self._left()) for peer in self._control)]
            for peer in self._control:
                _say(peer, {"all": everyone})
            return everyone
        except (OSError, ValueError, KeyError) as error:
            raise ExchangeError(f"rank {self.place.rank}: comparing results: {_words(error)}") from error

    # --- joining ---------------------------------------------------------------------------------------

    def _join(self) -> None:
        data = self._stack.enter_context(_listen(0))
        mine = {"rank": self.place.rank, "token": self.place.token, "node": self.place.node,
                "address": self.place.own_address, "port": data.getsockname()[1]}  # fmt: skip
        try:
            self.members = self._gather(mine) if self.place.rank == 0 else self._register(mine)
            after = self.members[(self.place.rank + 1) % self.place.size]
            self._to = self._connect(str(after["address"]), int(after["port"]))
            self._from = self._accept(data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ExchangeError(f"rank {self.place.rank}: joining the gang: {_words(error)}") from error

    def _gather(self, mine: Obj) -> list[Obj]:
        listener = self._stack.enter_context(_listen(self.place.port))
        known: dict[int, tuple[Obj, socket.socket]] = {}
        while len(known) < self.place.size - 1:
            listener.settimeout(self._left())
            try:
                peer, (address, *_) = listener.accept()
            except TimeoutError:
                missing = sorted({*range(1, self.place.size)} - set(known))
                raise ExchangeError(f"rank 0: ranks {missing} did not join in time") from None
            said = self._hello(peer)
            rank = said.get("rank") if said.get("token") == self.place.token else None
            if not isinstance(rank, int) or not 0 < rank < self.place.size:
                peer.close()  # of another attempt, or no rank at all
                continue
            if rank in known:
                known.pop(rank)[1].close()  # it joined anew after losing its connection
            known[rank] = (said | {"address": said.get("address") or address}, self._stack.enter_context(peer))
        everyone = [mine | {"address": mine["address"] or self.place.address}, *(known[r][0] for r in sorted(known))]
        for member in everyone:
            member.pop("token", None)
        self._control = [known[rank][1] for rank in sorted(known)]
        for peer in self._control:
            _say(peer, {"members": everyone})
        return everyone

    def _hello(self, peer: socket.socket) -> Obj:
        try:
            return _hear(peer, min(self._left(), 5.0))
        except (OSError, ValueError, RecursionError):
            return {}

    def _register(self, mine: Obj) -> list[Obj]:
        control = self._connect(self.place.address, self.place.port)
        _say(control, mine)
        self._control = [control]
        members: list[Obj] = _hear(control, self._left())["members"]
        return members

    def _connect(self, address: str, port: int) -> socket.socket:
        """Keep trying: the other pod may be pulling its image, and its name is in DNS only once it has an address."""
        while True:
            try:
                return self._stack.enter_context(
                    socket.create_connection((address, port), timeout=min(self._left(), 5))
                )
            except OSError as error:
                if time.monotonic() + _RETRY_SECONDS >= self._deadline:
                    raise ExchangeError(
                        f"rank {self.place.rank}: {address}:{port} cannot be reached: {_words(error)}"
                    ) from error
                time.sleep(_RETRY_SECONDS)

    def _accept(self, data: socket.socket) -> socket.socket:
        data.settimeout(self._left())
        return self._stack.enter_context(data.accept()[0])

    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.01)


def _chunk(token: str, rank: int, index: int, length: int) -> bytes:
    """Bytes that only this rank sends at this place. An extendable hash, so that both ends make them alike."""
    return hashlib.shake_128(f"{token}/{rank}/{index}".encode()).digest(length)


def _listen(port: int) -> socket.socket:
    """On all addresses of both families: a pod's address is known to others, not always to itself."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError:
            pass  # the kernel knows IPv6 and this network namespace does not
    return socket.create_server(("0.0.0.0", port))  # noqa: S104


def _say(peer: socket.socket, message: Obj) -> None:
    body = json.dumps(message).encode()
    peer.sendall(_LENGTH.pack(len(body)) + body)


def _hear(peer: socket.socket, seconds: float) -> Obj:
    until = time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_receive(peer, _LENGTH.size, until))
    if length > _MAX_MESSAGE:
        raise ValueError(f"a message of {length} bytes")
    found = json.loads(_receive(peer, length, until))
    if not isinstance(found, dict):
        raise ValueError("a message that is no object")
    return found


def _receive(peer: socket.socket, length: int, until: float) -> bytes:
    """So many bytes, all of them by `until` of time.monotonic(): a peer that sends one now and then holds up nobody."""
    out = bytearray()
    while len(out) < length:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        peer.settimeout(left)
        got = peer.recv(length - len(out))
        if not got:
            raise ConnectionResetError("the peer closed the connection")
        out += got
    return bytes(out)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _boot_id(root: Path) -> str:
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
