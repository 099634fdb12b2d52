"""The trainer pod's native sidecar: `python -m moerl_runtime agent`.

Carries rank 0's progress to the job's report ConfigMap, at most every 15 s and once more at the end, and serves health
and metrics. An API server that is away costs a late report, never the training: every error is logged and counted.
As a native sidecar it gets SIGTERM after the trainer has ended, which is when the last report is due.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from .. import web
from ..buffer.client import Buffer
from ..buffer.model import BufferFault
from ..config import Settings
from . import progress, report
from .cluster import ReportNotWritten, ReportTarget

log = logging.getLogger(__name__)

REPORT_SECONDS = 15.0
POLL_SECONDS = 0.5
BUFFER_SECONDS = 5.0
LAST_REPORT_SECONDS = 12.0

_GAUGES = {
    "iteration": ("moerl_iteration", "Optimizer steps done in this lineage."),
    "policyVersion": ("moerl_trainer_policy_version", "Newest version that the trainer published."),
    "reward": ("moerl_reward", "Mean reward of the last batch."),
    "exactMatch": ("moerl_exact_match", "Greedy exact match on held-out prompts."),
    "samplesPerSecond": ("moerl_samples_per_second", "Trained samples a second."),
    "tokensPerSecond": ("moerl_tokens_per_second", "Trained tokens a second."),
}


class AgentMetrics:
    """The trainer's figures and the buffer's ledger as gauges."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._trainer = {key: Gauge(name, text, registry=self.registry) for key, (name, text) in _GAUGES.items()}
        self._groups = Gauge("moerl_buffer_groups", "Groups by state.", ["state"], registry=self.registry)
        self._leases = Gauge("moerl_buffer_leases", "Leases by outcome.", ["outcome"], registry=self.registry)
        self._tokens = Gauge("moerl_buffer_tokens", "Generated tokens by fate.", ["fate"], registry=self.registry)
        self.reports = Counter("moerl_reports", "Reports by result.", ["result"], registry=self.registry)

    def trainer(self, document: dict[str, Any]) -> None:
        """Take over the progress file's figures."""
        for key, gauge in self._trainer.items():
            value = document.get(key)
            if isinstance(value, int | float):
                gauge.set(value)

    async def buffer(self, buffer: Buffer) -> None:
        """Take over the buffer's counters."""
        stats = await buffer.stats()
        for state, groups in asdict(stats.ledger).items():
            self._groups.labels(state).set(groups)
        for outcome, value in stats.leases.items():
            self._leases.labels(outcome).set(value)
        for fate, value in stats.tokens.items():
            self._tokens.labels(fate).set(value)


class Reporter:
    """Writes a report when there is news and the last one is old enough."""

    def __init__(self, settings: Settings, target: ReportTarget | None, metrics: AgentMetrics) -> None:
        self._settings, self._target, self._metrics = settings, target, metrics
        self._written: dict[str, Any] | None = None
        self._next = 0.0

    async def turn(self, *, last: bool = False) -> None:
        """Read the progress and report it if it is new and due. Errors are logged and counted, never raised."""
        document = progress.read(self._settings.run_dir)
        if document is not None:
            self._metrics.trainer(document)
        news = document or report.starting()
        if self._target is None or news == self._written or (time.monotonic() < self._next and not last):
            return
        self._next = time.monotonic() + REPORT_SECONDS
        try:
            await self._target.write(report.render(news, attempt=self._settings.attempt))
        except (ReportNotWritten, ValueError) as error:
            self._metrics.reports.labels("failed").inc()
            log.warning("report not written: %s", error)
            return
        self._written = news
        self._metrics.reports.labels("written").inc()

    async def forever(self) -> None:
        """Report until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(POLL_SECONDS)

    async def finish(self) -> None:
        """The last report, tried a few times within the pod's grace period."""
        end = time.monotonic() + LAST_REPORT_SECONDS
        while time.monotonic() < end:
            await self.turn(last=True)
            if self._target is None or self._written == (progress.read(self._settings.run_dir) or self._written):
                return
            await asyncio.sleep(1.0)


async def _watch_buffer(settings: Settings, metrics: AgentMetrics) -> None:
    """Keep the buffer's gauges fresh; a buffer that is away leaves them as they were."""
    while True:
        try:
            async with await Buffer.connect(settings.buffer_url, settings.buffer_password) as buffer:
                while True:
                    await metrics.buffer(buffer)
                    await asyncio.sleep(BUFFER_SECONDS)
        except BufferFault as error:
            log.info("%s", error)
            await asyncio.sleep(BUFFER_SECONDS)


async def serve(settings: Settings) -> int:
    """Run until SIGTERM. Only rank 0's agent reports and watches the buffer."""
    stop = web.stop_event()
    metrics = AgentMetrics()
    target = ReportTarget.from_env(os.environ, namespace=settings.namespace, name=settings.report)
    if target is None:
        log.info("no cluster around (KUBERNETES_SERVICE_HOST, MOERL_REPORT): metrics only")
    reporter = Reporter(settings, target, metrics)
    app = web.application(registry=metrics.registry, ready=lambda: "")
    async with web.serving(app, host=settings.bind, port=settings.agent_port):
        if settings.rank != 0:
            await stop.wait()
            return web.INTERRUPTED

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(reporter.forever())
                group.create_task(_watch_buffer(settings, metrics))

        await web.until_stopped(work(), stop)
        await reporter.finish()
    return web.INTERRUPTED


def main() -> int:
    """Entry point of the agent."""
    return asyncio.run(serve(Settings.from_env()))
