"""Puts one operator process together and runs it until it is told to stop, or has to.

Order: connect, serve health, fill the cache by lists, start the watches, wait for the Lease, start the workers.
Whatever ends unasked ends the process: a restart is cheap and changes nothing, a half-alive operator is not.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from random import Random

from moerl_operator.control.cache import Cache
from moerl_operator.control.intake import Intake
from moerl_operator.control.kinds import WATCHED
from moerl_operator.control.leader import Leader, LeadershipLost
from moerl_operator.control.observer import Observer
from moerl_operator.control.ports import Aws, AwsFailure
from moerl_operator.control.queue import QueueClosed, WorkQueue
from moerl_operator.control.reconciler import JobKey, Reconciler
from moerl_operator.core.world import Installation, Plan, Snapshot
from moerl_operator.kube.api import KubeApi, KubeError
from moerl_operator.observe.events import Recorder
from moerl_operator.observe.health import Health
from moerl_operator.observe.logs import job_key, reconcile_id
from moerl_operator.observe.metrics import Metrics
from moerl_operator.observe.server import serving
from moerl_operator.observe.streams import StreamAges
from moerl_operator.settings import Settings

RECONCILE_SECONDS = 120.0  # a round that takes longer hangs; it is given up and tried again
SYNC_RETRY_SECONDS = 3.0

log = logging.getLogger(__name__)


class Operator:
    """One process of the control plane."""

    def __init__(
        self,
        settings: Settings,
        *,
        kube: KubeApi,
        aws: Aws,
        plan: Callable[[Snapshot], Plan],
        metrics: Metrics,
        rng: Random | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._rng = rng or Random()  # noqa: S311 - jitter
        self.metrics = metrics
        self.cache = Cache()
        self.queue: WorkQueue[JobKey] = WorkQueue(rng=self._rng)
        self.ages = StreamAges()
        self.intake = Intake(
            kube=kube, cache=self.cache, queue=self.queue, metrics=metrics, namespaces=settings.watch_namespaces
        )
        installation = Installation(
            id=settings.installation,
            cluster_name=settings.cluster_name,
            cluster_arn=settings.cluster_arn,
            operator_image=settings.operator_image,
            watched_namespaces=settings.watch_namespaces,
        )
        self._reconciler = Reconciler(
            kube=kube,
            cache=self.cache,
            aws=aws,
            observer=Observer(kube=kube, cache=self.cache, aws=aws, installation=installation, clock=clock),
            recorder=Recorder(kube, identity=settings.identity),
            metrics=metrics,
            plan=plan,
            clock=clock,
        )
        self._leading = asyncio.Event()
        self._leader = Leader(kube, namespace=settings.namespace, identity=settings.identity)
        self._since: dict[JobKey, float] = {}  # keys being worked on -> since when
        self.health = Health(
            stream_ages=self.ages.ages,
            queue_oldest=lambda: self.queue.oldest_age,
            longest_work=self._longest_work,
            expected_streams=frozenset(kind.plural for kind in WATCHED),
        )
        metrics.watch_queue(lambda: self.queue.depth, lambda: self.queue.oldest_age, lambda: self.queue.working)

    async def run(self, watch: Callable[[asyncio.Event], asyncio.Task[None]], stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raises what ended the operator otherwise.

        `watch` starts the watches and gives their task; it is a parameter because only handlers.py knows kopf.
        """
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(
                serving(
                    host=self._settings.http_host,
                    port=self._settings.http_port,
                    health=self.health,
                    metrics=self.metrics,
                )
            )
            log.info("serving /healthz, /readyz and /metrics on port %d", port)
            beat = asyncio.create_task(self.health.beat(), name="heartbeat")
            stack.callback(beat.cancel)
            filling = asyncio.create_task(self._fill_cache(), name="fill")
            if not await _first(stop, filling):
                filling.cancel()
                return
            await self._serve(watch, stop)

    async def _serve(self, watch: Callable[[asyncio.Event], asyncio.Task[None]], stop: asyncio.Event) -> None:
        """From the start of the watches to the end of the process."""
        tasks = [asyncio.create_task(self._work(), name=f"worker-{n}") for n in range(self._settings.workers)]
        tasks.append(asyncio.create_task(self._resync(), name="resync"))
        tasks.append(asyncio.create_task(self._lead(), name="lease"))
        watches = watch(stop)
        lost = False
        try:
            await _first(stop, watches, *tasks)
        except LeadershipLost:
            lost = True
            raise
        finally:
            self.metrics.leader.set(0)
            stop.set()
            self.queue.close()
            # Who lost the Lease must not write one more object: everything under way is cut off.
            await _end(*tasks[: self._settings.workers], grace=0.0 if lost else 5.0)
            await _end(*tasks, grace=0.0)
            if self._leading.is_set() and not lost:
                await self._leader.release()
            await _end(watches, grace=8.0)

    async def _lead(self) -> None:
        """Get the Lease, let the workers begin, keep it."""
        if self._settings.leader_election:
            await self._leader.acquire()
        self.metrics.leader.set(1)
        self._leading.set()
        if self._settings.leader_election:
            await self._leader.hold()
        await asyncio.Event().wait()

    async def _fill_cache(self) -> None:
        """Lists come before work: an empty cache must never look like a cluster without children."""
        while True:
            try:
                await self.intake.resync(first=True)
            except KubeError as error:
                missing = "; are the CustomResourceDefinitions installed? (`moerl crds`)" if error.status == 404 else ""
                self.health.unsynced = f"the cluster cannot be listed yet: {error}{missing}"
                log.warning(self.health.unsynced)
                await asyncio.sleep(SYNC_RETRY_SECONDS)
                continue
            self.health.synced = True
            log.info("the cache holds %d jobs", len(self.intake.wake_all()))
            return

    async def _resync(self) -> None:
        """A full list and a look at every job now and then, spread over a while; finds what a watch has missed."""
        period = float(self._settings.resync_seconds)
        await self._leading.wait()
        while True:
            await asyncio.sleep(period * (0.75 + self._rng.random() / 2))
            try:
                missed = await self.intake.resync()
            except KubeError as error:
                log.warning("resync: %s", error)
                continue
            if missed:
                log.info("resync: %d changes had not come by a watch yet", missed)
            keys = self.intake.wake_all()
            for key in keys:
                self.queue.add(key, background=True)
                await asyncio.sleep(min(1.0, period / 4 / max(1, len(keys))))

    # --- workers ---------------------------------------------------------------------------------------

    async def _work(self) -> None:
        await self._leading.wait()
        while True:
            try:
                key = await self.queue.get()
            except QueueClosed:
                return
            try:
                await self._reconcile(key)
            finally:
                self.queue.done(key)

    async def _reconcile(self, key: JobKey) -> None:
        job_key.set("/".join(key))
        reconcile_id.set(uuid.uuid4().hex[:8])
        self._since[key] = started = time.monotonic()
        result = "error"
        try:
            async with asyncio.timeout(RECONCILE_SECONDS):
                after = await self._reconciler.reconcile(key)
            self.queue.forget(key)
            result = "success"
            if after is not None:
                result = "requeue_after"
                self.queue.add_after(key, after)
        except (KubeError, AwsFailure, TimeoutError) as error:
            delay = self.queue.add_failed(key)
            log.warning("again in %.1f s: %s", delay, str(error) or f"no end within {RECONCILE_SECONDS:.0f} s")
        except Exception:
            # A bug of ours: with its traceback, and backed off like everything else.
            delay = self.queue.add_failed(key)
            log.exception("this is a bug of the operator; again in %.1f s", delay)
        finally:
            self.metrics.reconciles.labels(result).inc()
            self.metrics.reconcile_seconds.observe(time.monotonic() - started)
            self._since.pop(key, None)

    def _longest_work(self) -> float:
        return max((time.monotonic() - since for since in self._since.values()), default=0.0)


def stop_on_signals(stop: asyncio.Event) -> None:
    """SIGTERM and SIGINT ask for the end."""
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)


async def _first(stop: asyncio.Event, *tasks: asyncio.Task[None]) -> bool:
    """Wait for the first of `tasks`, or for `stop` (False). An exception of a task is raised here."""
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    for task in done - {stopping}:
        task.result()
    return stopping not in done


async def _end(*tasks: asyncio.Task[None], grace: float = 5.0) -> None:
    """Let tasks end by themselves for `grace` seconds, then cancel them."""
    alive = [task for task in tasks if not task.done()]
    if alive and grace:
        await asyncio.wait(alive, timeout=grace)
    for task in alive:
        task.cancel()
    for task in alive:
        with suppress(asyncio.CancelledError, Exception):
            await task
