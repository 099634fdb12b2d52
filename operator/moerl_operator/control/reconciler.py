"""One round for one job: observe, plan, apply, write the status once, then say what happened.

The order makes a crash anywhere harmless: actions come first and are repeatable, the status only tells of what was
observed before them, and events follow a status write that succeeded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from moerl_operator.control.batches import batches, gathered
from moerl_operator.control.cache import Cache
from moerl_operator.control.children import Children, ForeignChild, is_passing, is_terminating
from moerl_operator.control.observer import Observer
from moerl_operator.control.ports import Aws, AwsAction, AwsFailure
from moerl_operator.control.status import PROGRESS_SECONDS, only_progress_differs, same, with_degraded
from moerl_operator.core.world import Action, Plan, Snapshot
from moerl_operator.kube.api import Kinds, KubeApi, KubeError, Obj
from moerl_operator.observe.events import Recorder
from moerl_operator.observe.metrics import Metrics

JobKey = tuple[str, str]
"""(namespace, name) of a MoERLJob."""

AT_ONCE = 8  # requests of one job in flight: enough to hide the server's latency, few beside its fair share
ROUNDS = 3  # of observing again after a dry run
SOON = 1.0  # s, after a change whose effect is to be seen, or a conflict
REFUSED_SECONDS = 300.0  # the same content is refused again, until somebody changes something
TERMINATING_SECONDS = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a round of actions ended early. `error` is raised for the queue's backoff; `reason` goes into Degraded."""

    message: str
    requeue_after: float | None = None
    reason: str = ""
    error: KubeError | None = None


@dataclass(frozen=True, slots=True)
class _DryRun:
    generation: int
    error: str | None


class Reconciler:
    """Drives jobs towards what the plan says. Not re-entrant for one key; the queue sees to that."""

    def __init__(
        self,
        *,
        kube: KubeApi,
        cache: Cache,
        aws: Aws,
        observer: Observer,
        recorder: Recorder,
        metrics: Metrics,
        plan: Callable[[Snapshot], Plan],
        clock: Callable[[], datetime],
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._aws = aws
        self._observer = observer
        self._recorder = recorder
        self._metrics = metrics
        self._plan = plan
        self._clock = clock
        self._children = Children(kube, cache)
        self._dry_runs: dict[str, _DryRun] = {}
        self._foreign: dict[str, frozenset[str]] = {}
        self._written: dict[str, datetime] = {}
        self._refused: dict[str, tuple[Action, Trouble, datetime]] = {}
        self._uids: dict[JobKey, str] = {}

    async def reconcile(self, key: JobKey) -> float | None:
        """One round; returns the seconds after which to look again unless something happens before.

        Raises KubeError and AwsFailure for what the same request may do better later.
        """
        job = self._cache.get(Kinds.MOERL_JOB, *key)
        uid = job["metadata"]["uid"] if job else ""
        if self._uids.get(key, uid) != uid:
            self._forget(key)
        if job is None:
            return None
        self._uids[key] = uid
        snapshot, plan = await self._decide(job)
        trouble = await self._carry_out(job, plan.actions)
        later = await self._write_status(job, plan, trouble, snapshot.now)
        if trouble and trouble.error:
            raise trouble.error
        if snapshot.aws.error:
            raise AwsFailure(snapshot.aws.error)  # told in the status; asked again with the queue's backoff
        waits = [plan.requeue_after, later, trouble.requeue_after if trouble else None]
        if trouble is None and any(isinstance(action, AwsAction) for action in plan.actions):
            waits.append(SOON)
        return min((wait for wait in waits if wait is not None), default=None)

    async def _decide(self, job: Obj) -> tuple[Snapshot, Plan]:
        """The plan, with the server's opinion of the rendered children where the plan asks for it."""
        for _ in range(ROUNDS):
            asked = self._asked(job)
            snapshot = await self._observer.snapshot(
                job,
                dry_run_done=asked is not None and asked.error is None,
                dry_run_error=asked.error if asked else None,
                foreign=self._foreign.get(job["metadata"]["uid"], frozenset()),
            )
            started = time.perf_counter()
            plan = self._plan(snapshot)
            self._metrics.plan_seconds.observe(time.perf_counter() - started)
            if not plan.dry_run or asked is not None:
                return snapshot, plan
            await self._dry_run(job, plan.dry_run)
        return snapshot, plan

    async def _dry_run(self, job: Obj, objects: tuple[Obj, ...]) -> None:
        """Ask the server about all of them at once; the first objection in the plan's order counts."""
        answers = await gathered([self._children.dry_run(obj) for obj in objects], at_once=AT_ONCE)
        error = next((answer for answer in answers if answer is not None), None)
        meta = job["metadata"]
        self._dry_runs[meta["uid"]] = _DryRun(int(meta.get("generation") or 0), error)

    def _asked(self, job: Obj) -> _DryRun | None:
        known = self._dry_runs.get(job["metadata"]["uid"])
        return known if known and known.generation == int(job["metadata"].get("generation") or 0) else None

    # --- applying --------------------------------------------------------------------------------------

    async def _carry_out(self, job: Obj, actions: tuple[Action, ...]) -> Trouble | None:
        """All actions, batch after batch; a batch with a failure ends the round, since later ones may build on it."""
        uid = job["metadata"]["uid"]
        for batch in batches(actions):
            troubles = await gathered([self._carry_out_one(job, uid, action) for action in batch], at_once=AT_ONCE)
            for action, trouble in zip(batch, troubles, strict=True):
                name = type(action).__name__
                self._metrics.actions.labels(name, "error" if trouble else "ok").inc()
                if trouble:
                    log.warning("%s: %s", name, trouble.message)
                else:
                    log.info("%s %s", name, _subject(action))
            if trouble := next((trouble for trouble in troubles if trouble), None):
                return trouble
        self._foreign.pop(uid, None)
        return None

    async def _carry_out_one(self, job: Obj, uid: str, action: Action) -> Trouble | None:
        if isinstance(action, AwsAction):
            refused = await self._aws.apply(uid, action)
            if refused is None:
                return None
            # Not raised: the next round sees it in the observation, tells of it and waits as long as it says.
            return Trouble(f"{refused.operation}: {refused.code}: {refused.message}", requeue_after=SOON)
        refusal = self._refused.get(uid)
        if refusal and refusal[0] == action and self._clock() < refusal[2]:
            return refusal[1]  # the same content again: events of other children must not make this a hot loop
        try:
            await self._children.carry_out(job, action)
        except ForeignChild as foreign:
            self._foreign[uid] = self._foreign.get(uid, frozenset()) | {foreign.child}
            return Trouble(str(foreign), TERMINATING_SECONDS, "NameTaken")
        except KubeError as error:
            trouble = _sorted(error)
            if error.conflict:
                await self._refresh(job["metadata"])
            if trouble.reason == "Refused":
                self._refused[uid] = (action, trouble, self._clock() + timedelta(seconds=REFUSED_SECONDS))
            return trouble
        return None

    # --- telling ---------------------------------------------------------------------------------------

    async def _write_status(self, job: Obj, plan: Plan, trouble: Trouble | None, now: datetime) -> float | None:
        """At most one write; returns the seconds to wait where progress alone is not written yet."""
        meta = job["metadata"]
        observed = job.get("status") or {}
        desired = plan.status
        if trouble and trouble.reason:
            desired = with_degraded(
                desired if desired is not None else observed,
                reason=trouble.reason,
                message=trouble.message,
                generation=int(meta.get("generation") or 0),
                now=now,
            )
        if desired is not None and not same(desired, observed):
            since = self._written.get(meta["uid"])
            age = (now - since).total_seconds() if since else PROGRESS_SECONDS
            if age < PROGRESS_SECONDS and only_progress_differs(desired, observed):
                return PROGRESS_SECONDS - age
            if not await self._write(meta, desired):
                return SOON
            self._written[meta["uid"]] = now
        self._metrics.show_job(meta["namespace"], meta["name"], desired or observed)
        await self._recorder.post(job, plan.events, now)
        return None

    async def _write(self, meta: Obj, status: Obj) -> bool:
        """Server-side apply on the very version that was seen; False when the job has changed since, or is gone.

        The version, because the server drops the UID from a status apply: a namesake made meanwhile would get this
        job's status, and a new generation one that was judged by the old.
        """
        latest = self._cache.get(Kinds.MOERL_JOB, meta["namespace"], meta["name"])
        if latest is None or latest["metadata"]["uid"] != meta["uid"]:
            return False
        identity = {key: latest["metadata"][key] for key in ("namespace", "name", "resourceVersion")}
        try:
            written = await self._kube.apply_status(Kinds.MOERL_JOB, {"metadata": identity, "status": status})
        except KubeError as error:
            self._metrics.status_writes.labels("error").inc()
            if error.conflict or error.status == 404:
                await self._refresh(meta)
                return False
            raise
        self._metrics.status_writes.labels("ok").inc()
        self._cache.put(Kinds.MOERL_JOB, written)
        return True

    async def _refresh(self, meta: Obj) -> None:
        """Our picture of the job was out of date: look, rather than wait for a watch that may have failed."""
        found = await self._kube.get(Kinds.MOERL_JOB, meta["namespace"], meta["name"])
        if found is not None:
            self._cache.put(Kinds.MOERL_JOB, found)

    def _forget(self, key: JobKey) -> None:
        uid = self._uids.pop(key, "")
        for kept in (self._dry_runs, self._foreign, self._written, self._refused):
            kept.pop(uid, None)
        self._aws.forget(uid)
        self._observer.forget(*key)
        self._metrics.forget_job(*key)


def _sorted(error: KubeError) -> Trouble:
    """What the API server's refusal of an action means for the round."""
    if is_terminating(error):
        return Trouble(error.message, TERMINATING_SECONDS)
    if error.conflict:
        return Trouble(str(error), SOON)
    if is_passing(error):
        return Trouble(error.message, reason="QuotaExceeded", error=error)
    if error.invalid or error.status == 403:
        return Trouble(error.message, REFUSED_SECONDS, "Refused")
    return Trouble(str(error), error=error)


def _subject(action: Action) -> str:
    """What an action is about, for the log."""
    obj = getattr(action, "obj", None)
    if obj is not None:
        return f"{obj['kind']} {obj['metadata']['name']}"
    spec = getattr(action, "spec", None)
    return str(spec.name if spec is not None else getattr(action, "name", ""))
