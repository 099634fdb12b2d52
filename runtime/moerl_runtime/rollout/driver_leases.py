"""The leases that a driver holds, renewed in the background for as long as it works on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ..buffer.client import Buffer
from ..buffer.model import BufferFault, Lease

log = logging.getLogger(__name__)


class HeldLeases:
    """A set of leases. One that could not be renewed is another worker's now and is no longer in the set."""

    def __init__(self, buffer: Buffer, *, ttl_seconds: float) -> None:
        self._buffer = buffer
        self._ttl = ttl_seconds
        self._held: dict[int, Lease] = {}
        self.lost = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, lease: Lease) -> bool:
        return self._held.get(lease.uid) == lease

    def add(self, leases: Iterable[Lease]) -> None:
        """Hold new leases."""
        self._held.update({lease.uid: lease for lease in leases})

    def drop(self, lease: Lease) -> None:
        """The work on a lease is over."""
        if lease in self:
            del self._held[lease.uid]

    async def release(self, leases: Iterable[Lease]) -> None:
        """Give leases back; those that cannot be given back run out by themselves."""
        for lease in leases:
            if lease in self:
                self.drop(lease)
                await self._buffer.release(lease)

    async def release_all(self) -> int:
        """Give everything back; the number."""
        leases = list(self._held.values())
        await self.release(leases)
        return len(leases)

    async def renew_forever(self) -> None:
        """Renew at a third of the time to live, so that two renewals may fail."""
        while True:
            await asyncio.sleep(self._ttl / 3)
            leases = list(self._held.values())
            if not leases:
                continue
            try:
                kept = await self._buffer.renew(leases, ttl_seconds=self._ttl)
            except (BufferFault, OSError) as error:
                log.warning("leases could not be renewed: %s", error)
                continue
            for lease, still_ours in zip(leases, kept, strict=True):
                if not still_ours and lease in self:
                    self.drop(lease)
                    self.lost += 1
                    log.warning("lease of group %d, epoch %d is no longer ours", lease.uid, lease.epoch)
