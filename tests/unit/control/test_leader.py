"""Leadership on virtual time: who leads, for how long, and what ends it."""

from __future__ import annotations

import asyncio

import pytest

from moerl_operator.control.leader import LEASE_SECONDS, RENEW_SECONDS, Leader, LeadershipLost
from moerl_operator.kube.api import Kinds, KubeError
from support.memory_kube import MemoryKube

pytestmark = pytest.mark.looptime

DOWN = KubeError(0, "NoAnswer", "no answer")


@pytest.fixture
def kube() -> MemoryKube:
    return MemoryKube()


def candidate(kube: MemoryKube, identity: str) -> Leader:
    return Leader(kube, namespace="sys", identity=identity)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_the_first_candidate_leads_and_the_second_waits_until_it_gives_up(kube: MemoryKube) -> None:
    first, second = candidate(kube, "a"), candidate(kube, "b")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(120)
    assert not waiting.done()

    holding.cancel()
    await first.release()
    await asyncio.wait_for(waiting, 5)

    lease = kube.objects["leases", "sys", "moerl-operator"]["spec"]
    assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("b", 1)


async def test_a_leader_that_died_is_followed_after_the_lease_has_run_out(kube: MemoryKube) -> None:
    await candidate(kube, "a").acquire()
    start = now()

    await candidate(kube, "b").acquire()

    assert LEASE_SECONDS <= now() - start <= LEASE_SECONDS + 5


async def test_at_no_time_do_two_lead(kube: MemoryKube) -> None:
    """The old leader gives up before the new one may begin, though its renewals fail for ever."""
    first = candidate(kube, "a")
    await first.acquire()
    start = now()

    async def cut_off() -> float:
        broken = Leader(_Broken(kube), namespace="sys", identity="a")
        broken._held = first._held
        with pytest.raises(LeadershipLost):
            await broken.hold()
        return now() - start

    async def next_one() -> float:
        await candidate(kube, "b").acquire()
        return now() - start

    ended, began = await asyncio.gather(cut_off(), next_one())
    assert ended <= RENEW_SECONDS + 2
    assert ended < began


class _Broken(MemoryKube):
    def __init__(self, kube: MemoryKube) -> None:
        super().__init__()
        self.objects = kube.objects

    def _note(self, verb: str, kind: object, name: str) -> None:
        raise DOWN


async def test_a_short_outage_is_survived(kube: MemoryKube) -> None:
    leader = candidate(kube, "a")
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    await asyncio.sleep(10)
    kube.failures = [DOWN, DOWN]
    await asyncio.sleep(60)
    assert not holding.done()
    holding.cancel()


async def test_a_lease_taken_by_another_is_noticed_at_the_next_renewal(kube: MemoryKube) -> None:
    leader = candidate(kube, "a")
    await leader.acquire()
    lease = kube.objects["leases", "sys", "moerl-operator"]
    kube.put(Kinds.LEASE, {**lease, "spec": {**lease["spec"], "holderIdentity": "b"}})

    with pytest.raises(LeadershipLost, match="b has taken"):
        await asyncio.wait_for(leader.hold(), 5)


async def test_an_unreachable_server_at_the_start_is_waited_out(kube: MemoryKube) -> None:
    kube.failures = [DOWN, DOWN, DOWN]
    await asyncio.wait_for(candidate(kube, "a").acquire(), 30)


async def test_two_that_try_at_once_do_not_both_succeed(kube: MemoryKube) -> None:
    leaders = [asyncio.create_task(candidate(kube, name).acquire()) for name in "ab"]
    done, pending = await asyncio.wait(leaders, timeout=5)
    assert (len(done), len(pending)) == (1, 1)
    pending.pop().cancel()
