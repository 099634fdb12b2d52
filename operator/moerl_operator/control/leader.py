"""Leadership by a coordination Lease, with client-go's times: at most one process changes the world.

A Lease cannot fence a leader that hangs and wakes up: what protects AWS then is that names are never reused and
every action is repeatable.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from moerl_operator.kube.api import Kinds, KubeApi, KubeError, Obj

LEASE_SECONDS = 15
RENEW_SECONDS = 10.0  # without a renewal for this long leadership is given up, before others take it
RETRY_SECONDS = 2.0

log = logging.getLogger(__name__)


class LeadershipLost(Exception):
    """Somebody else leads, or may soon: the process must end at once."""


class Leader:
    """One candidate. Expiry is judged by when we saw the Lease change, so clocks need not agree."""

    def __init__(self, kube: KubeApi, *, namespace: str, identity: str, name: str = "moerl-operator") -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._seen: tuple[str, float] = ("", 0.0)  # (resourceVersion, when we first saw it)
        self._held: Obj | None = None

    async def acquire(self) -> None:
        """Wait until this process leads. Errors of the API server are waited out."""
        waiting_for = ""
        while True:
            try:
                holder = await self._try()
            except KubeError as error:
                log.warning("lease %s/%s: %s", self._namespace, self._name, error)
                holder = "?"
            if not holder:
                log.info("leading as %s", self._identity)
                return
            if holder not in (waiting_for, "?"):
                log.info("waiting for %s to give up the lease", holder)
                waiting_for = holder
            await asyncio.sleep(RETRY_SECONDS)

    async def hold(self) -> None:
        """Renew for ever. Raises LeadershipLost."""
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            left = RENEW_SECONDS - (loop.time() - renewed)
            try:
                async with asyncio.timeout(max(0.1, left)):
                    holder = await self._try()
            except (KubeError, TimeoutError) as error:
                log.warning("the lease was not renewed: %s", str(error) or "no answer in time")
                holder = ""
            else:
                renewed = loop.time() if not holder else renewed
            if holder:
                raise LeadershipLost(f"{holder} has taken the lease {self._namespace}/{self._name}")
            if loop.time() - renewed >= RENEW_SECONDS:
                raise LeadershipLost(f"the lease was not renewed for {RENEW_SECONDS:.0f} s")

    async def release(self) -> None:
        """Give the Lease back, so that the next process need not wait for it to expire."""
        if self._held is None:
            return
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._patch(self._held, spec)
        except KubeError as error:
            log.info("the lease was not given back: %s", error)
        self._held = None

    async def _try(self) -> str:
        """Take or renew; '' when we hold it now, else who does."""
        if self._held is not None:
            try:
                self._held = await self._patch(self._held, {"renewTime": _micro_time()})
                return ""
            except KubeError as error:
                if not error.conflict and error.status != 404:
                    raise
                self._held = None
        lease = await self._kube.get(Kinds.LEASE, self._namespace, self._name)
        if lease is None:
            self._held = await self._kube.create(Kinds.LEASE, self._new())
            return ""
        holder = (lease.get("spec") or {}).get("holderIdentity") or ""
        if holder and holder != self._identity and not self._expired(lease):
            return str(holder)
        try:
            self._held = await self._patch(lease, self._spec(lease))
        except KubeError as error:
            if error.conflict:
                return holder or "another candidate"
            raise
        return ""

    def _expired(self, lease: Obj) -> bool:
        now = asyncio.get_running_loop().time()
        version = str(lease["metadata"]["resourceVersion"])
        if version != self._seen[0]:
            self._seen = (version, now)
        duration = float((lease.get("spec") or {}).get("leaseDurationSeconds") or LEASE_SECONDS)
        return now - self._seen[1] >= duration

    def _spec(self, lease: Obj | None) -> dict[str, Any]:
        before = (lease or {}).get("spec") or {}
        changed = before.get("holderIdentity") != self._identity
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": _micro_time(),
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (1 if lease and changed else 0),
        }
        return spec | ({"acquireTime": _micro_time()} if changed else {})

    def _new(self) -> Obj:
        return {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": self._spec(None)}

    async def _patch(self, lease: Obj, spec: dict[str, Any]) -> Obj:
        """Only if nobody changed it since: a merge patch with the version seen is refused with 409 otherwise."""
        patch = {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}, "spec": spec}
        return await self._kube.patch(Kinds.LEASE, self._namespace, self._name, patch)


def _micro_time() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
