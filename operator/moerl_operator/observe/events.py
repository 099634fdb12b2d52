"""Kubernetes Events about a job: what a person would want to know, each said once."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from moerl_operator.core.world import PlannedEvent
from moerl_operator.kube.api import Kinds, KubeApi, KubeError, Obj

CONTROLLER = "moerl.dev/operator"
NOTE_BYTES = 1024  # the API server refuses longer ones
SAME_AGAIN = timedelta(minutes=10)
_REMEMBERED = 4096

log = logging.getLogger(__name__)


class Recorder:
    """Posts events; the same words about the same job are not repeated for ten minutes."""

    def __init__(self, kube: KubeApi, *, identity: str) -> None:
        self._kube = kube
        self._identity = identity
        self._posted: OrderedDict[tuple[str, str, str], datetime] = OrderedDict()

    async def post(self, job: Obj, events: tuple[PlannedEvent, ...], now: datetime) -> None:
        """Post what is new. A refused event is logged and forgotten: nothing depends on events."""
        for event in events:
            key = (job["metadata"]["uid"], event.reason, event.message)
            if now - self._posted.get(key, datetime.min.replace(tzinfo=UTC)) < SAME_AGAIN:
                continue
            self._posted[key] = now
            self._posted.move_to_end(key)
            while len(self._posted) > _REMEMBERED:
                self._posted.popitem(last=False)
            try:
                await self._kube.create(Kinds.EVENT, event_object(job, event, now, self._identity))
            except KubeError as error:
                if "being terminated" in error.message:
                    return  # nobody will read them
                log.warning("event %s was not posted: %s", event.reason, error)


def event_object(job: Mapping[str, Any], event: PlannedEvent, now: datetime, identity: str) -> Obj:
    """The events.k8s.io/v1 object. Its name is made of what it says, so that a repeat within a second is one."""
    meta = job["metadata"]
    stamp = now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    digest = sha256(f"{meta['uid']}/{event.reason}/{event.message}/{int(now.timestamp())}".encode()).hexdigest()[:16]
    return {
        "metadata": {"name": f"{meta['name']}.{digest}", "namespace": meta["namespace"]},
        "eventTime": stamp,
        "reportingController": CONTROLLER,
        "reportingInstance": identity[:128],
        "action": event.action,
        "reason": event.reason,
        "type": event.type,
        "note": _shortened(event.message),
        "regarding": {
            "apiVersion": job.get("apiVersion"),
            "kind": job.get("kind"),
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
    }


def _shortened(text: str) -> str:
    raw = text.encode()
    return text if len(raw) <= NOTE_BYTES else raw[: NOTE_BYTES - 3].decode(errors="ignore") + "…"
