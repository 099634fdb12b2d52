"""The parts of a running operator, connected: the API client, the AWS layer, kopf's watches, the policy."""

from __future__ import annotations

import asyncio
import logging
from random import Random

from moerl_operator.aws.calls import Calls
from moerl_operator.aws.provider import AwsProvider
from moerl_operator.control import handlers
from moerl_operator.control.leader import LeadershipLost
from moerl_operator.control.operator import Operator, stop_on_signals
from moerl_operator.core.plan import plan
from moerl_operator.kube.api import KubeError
from moerl_operator.kube.client import connect, load_connection
from moerl_operator.observe.logs import configure
from moerl_operator.observe.metrics import Metrics
from moerl_operator.settings import Settings

log = logging.getLogger(__name__)


async def run_operator(settings: Settings, *, stop: asyncio.Event | None = None) -> int:
    """Run until SIGTERM, SIGINT or `stop`; the exit code. What goes wrong is one line in the log."""
    configure(log_format=settings.log_format, level=settings.log_level)
    if stop is None:
        stop = asyncio.Event()
        stop_on_signals(stop)
    try:
        await _run(settings, stop)
    except LeadershipLost as error:
        log.error("leadership lost, ending at once: %s", error)
        return 1
    except (KubeError, handlers.WatchLost) as error:
        log.error("%s", error)
        return 1
    except OSError as error:
        log.error("cannot serve on port %d: %s; choose another with --port", settings.http_port, error)
        return 1
    return 0


async def _run(settings: Settings, stop: asyncio.Event) -> None:
    metrics = Metrics()
    rng = Random()  # noqa: S311 - jitter
    calls = Calls(region=settings.aws_region, endpoint_url=settings.aws_endpoint_url, observer=metrics.aws_call)
    aws = AwsProvider(calls, cluster_name=settings.cluster_name, installation_id=settings.installation, rng=rng)
    try:
        async with connect(settings.kubeconfig, settings.context, observer=metrics.kube_request) as kube:
            operator = Operator(settings, kube=kube, aws=aws, plan=plan, metrics=metrics, rng=rng)

            def watch(stopping: asyncio.Event) -> asyncio.Task[None]:
                return asyncio.create_task(
                    handlers.watch(
                        intake=operator.intake,
                        login=lambda: load_connection(settings.kubeconfig, settings.context),
                        ages=operator.ages,
                        namespaces=settings.watch_namespaces,
                        stop=stopping,
                    ),
                    name="watches",
                )

            await operator.run(watch, stop)
    finally:
        aws.close()
