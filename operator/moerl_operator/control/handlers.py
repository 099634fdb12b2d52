"""kopf as the host of the watches: login, lists, reconnects. The only importer of kopf.

Handlers only hand the object on. kopf's stored state (annotations, finalizers, diffs) is switched off: the
operator is level-triggered and keeps its own cache and queue.
"""

from __future__ import annotations

import asyncio
import datetime
import signal
import ssl
import threading
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import aiohttp
import kopf

from moerl_operator.control.intake import Intake
from moerl_operator.control.kinds import CHILD_SELECTOR, CHILDREN, WATCHED
from moerl_operator.kube.api import Kind
from moerl_operator.kube.client import Connection
from moerl_operator.observe.streams import StreamAges

# Tokens of service accounts live for an hour and are replaced on disk before they end.
LOGIN_MINUTES = 20

Login = Callable[[], Awaitable[Connection]]


class NoDiffBase(kopf.DiffBaseStorage):
    """Nothing is compared: half of kopf's time would go into copies and diffs that nobody reads."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        """No essence."""
        return {}

    def fetch(self, *, body: Any) -> Any:
        """Nothing is stored."""
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        """Nothing is stored."""


class NoProgress(kopf.ProgressStorage):
    """No handler has progress to keep."""

    def fetch(self, *, key: Any, body: Any) -> Any:
        """Nothing is stored."""
        return None

    def store(self, *, key: Any, record: Any, body: Any, patch: Any) -> None:
        """Nothing is stored."""

    def purge(self, *, key: Any, body: Any, patch: Any) -> None:
        """Nothing is stored."""

    def touch(self, *, body: Any, patch: Any, value: Any) -> None:
        """No annotation is touched."""

    def clear(self, *, essence: Any) -> Any:
        """Nothing to clear."""
        return essence


def settings() -> kopf.OperatorSettings:
    """kopf's settings; each deviation from the default is a lesson of docs/architecture.md's sources."""
    chosen = kopf.OperatorSettings()
    chosen.scanning.disabled = True  # the resources are fixed: no watch of CRDs and namespaces, fewer rights
    chosen.posting.enabled = False  # events are posted by the reconciler
    chosen.peering.standalone = True  # a stray peering object named "default" would pause us
    chosen.watching.server_timeout = 300  # an int: it is sent as it prints
    chosen.watching.client_timeout = 330
    chosen.watching.connect_timeout = 10
    chosen.watching.inactivity_timeout = 70
    chosen.watching.chunk_size = 500
    for kind in CHILDREN:
        chosen.watching.label_selectors[kind.group, kind.version, kind.plural] = CHILD_SELECTOR
    chosen.networking.request_timeout = 15
    chosen.networking.error_backoffs = (0.5, 1, 2, 4, 8)
    chosen.persistence.finalizer = "moerl.dev/never-set-by-kopf"
    chosen.persistence.diffbase_storage = NoDiffBase()
    chosen.persistence.progress_storage = NoProgress()
    chosen.queueing.worker_limit = None  # a limit throttles to limit / idle_timeout objects a second
    chosen.queueing.idle_timeout = 1
    chosen.queueing.exit_timeout = 2
    chosen.process.ultimate_exiting_timeout = None
    return chosen


def registry(intake: Intake, login: Login, ages: StreamAges) -> kopf.OperatorRegistry:
    """Handlers for every watched resource type."""
    made = kopf.OperatorRegistry()
    for kind in WATCHED:
        kopf.on.event(kind.group, kind.version, kind.plural, id=kind.plural, registry=made)(_taker(intake, kind))
    kopf.on.login(registry=made, id="login")(_login(login, ages))
    return made


async def watch(
    *, intake: Intake, login: Login, ages: StreamAges, namespaces: Collection[str], stop: asyncio.Event
) -> None:
    """Watch until `stop` is set or a watch breaks for good, which raises.

    kopf takes the loop's signal handlers for itself; they are taken back, so that SIGTERM is ours to handle. At its
    end kopf cancels every task of the loop that it was not told to ignore, the workers' half-done rounds included:
    it is told to ignore all, and what it leaves behind ends with the loop.
    """
    tasks = await kopf.spawn_tasks(
        registry=registry(intake, login, ages),
        settings=settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        stop_flag=stop,
        # Else kopf looks for the account's name, and the container's account has none.
        identity="moerl-operator",  # type: ignore[arg-type]  # a NewType of str that kopf does not export
    )
    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(each, stop.set)
    try:
        await kopf.run_tasks(tasks, ignored=_EveryTask())
    except Exception as error:
        # Whatever it was, the process starts anew with fresh lists; one line says why.
        raise WatchLost(f"the watches ended: {type(error).__name__}: {error}") from error


class WatchLost(Exception):
    """kopf gave up: an unexpected error in a watch stream, or a login that fails for good."""


class _EveryTask(frozenset[Any]):
    """A set that every task is in."""

    def __contains__(self, task: object) -> bool:
        return True


def _taker(intake: Intake, kind: Kind) -> Callable[..., Awaitable[None]]:
    async def take(event: Any, **_: Any) -> None:
        intake.take(kind, event["type"], dict(event["object"]))

    return take


def _login(login: Login, ages: StreamAges) -> Callable[..., Awaitable[kopf.AiohttpSession]]:
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        connection = await login()
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=LOGIN_MINUTES)
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=_session(connection, ages), expiration=end)

    return log_in


def _session(connection: Connection, ages: StreamAges) -> aiohttp.ClientSession:
    context = ssl.create_default_context(cafile=connection.ca_path)
    if connection.certificate_path:
        context.load_cert_chain(connection.certificate_path, connection.private_key_path)
    if not connection.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    headers = {"User-Agent": "moerl-operator/watch"}
    if connection.authorization:
        headers["Authorization"] = connection.authorization
    return ages.session(
        connector=aiohttp.TCPConnector(limit=0, ssl=context), headers=headers, proxy=connection.proxy, trust_env=True
    )
