"""What was seen during a demo run: the data behind the live view and the report.

Everything here was observed, with the time of its first sighting; nothing is filled in afterwards. It is
kept as JSON beside the page, so that the page can be drawn again and a reader can check it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moerl_operator.api import names

Obj = dict[str, Any]

CONTROLLER = f"{names.GROUP}/operator"  # how the operator signs its events


def now() -> str:
    """The time in RFC 3339, to the tenth of a second."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_between(start: str, end: str) -> float:
    """Seconds from one RFC 3339 time to another."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


@dataclass
class Record:
    """One run. Times are RFC 3339; `applied` is when the manifest was applied."""

    schema: int = 1
    started: str = field(default_factory=now)
    applied: str = ""
    finished: str = ""
    operator_mode: str = ""
    machine: Obj = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    steps: list[Obj] = field(default_factory=list)
    job: Obj = field(default_factory=dict)
    report: Obj = field(default_factory=dict)
    exact_match: list[tuple[int, float]] = field(default_factory=list)
    conditions: list[Obj] = field(default_factory=list)
    node_groups: list[Obj] = field(default_factory=list)
    pods: dict[str, Obj] = field(default_factory=dict)
    events: list[Obj] = field(default_factory=list)
    evaluation: Obj = field(default_factory=dict)

    def see_job(self, job: Obj) -> None:
        """A read of the MoERLJob: changes of conditions and node groups are noted."""
        self.job = {key: value for key, value in job.items() if key != "managedFields"}
        self.job.get("metadata", {}).pop("managedFields", None)
        status = job.get("status", {})
        for condition in status.get("conditions", []):
            seen = {key: condition.get(key, "") for key in ("type", "status", "reason", "message")}
            _note(self.conditions, seen, identity="type", compare=("status", "reason"))
        for group in status.get("nodeGroups", []):
            seen = {key: group.get(key, "") for key in ("name", "role", "status", "instanceType", "zone")}
            seen |= {"desired": group.get("desired", 0), "ready": group.get("ready", 0)}
            _note(self.node_groups, seen, identity="name", compare=("status", "desired", "ready"))

    def see_report(self, report: Obj) -> None:
        """A read of the report that the trainer's agent writes."""
        self.report = report
        exact, iteration = report.get("exactMatch"), report.get("iteration")
        if exact is not None and iteration is not None:
            point = (int(iteration), float(exact))
            if not self.exact_match or self.exact_match[-1] != point:
                self.exact_match.append(point)

    def see_pods(self, pods: list[Obj]) -> None:
        """A read of the job's pods; those that went since are marked gone."""
        present = set()
        for pod in pods:
            meta, status, labels = pod["metadata"], pod.get("status", {}), pod["metadata"].get("labels", {})
            present.add(meta["uid"])
            entry = self.pods.setdefault(meta["uid"], {"name": meta["name"], "created": meta["creationTimestamp"]})
            main = _main_state(pod)
            entry |= {
                "role": labels.get(names.LABEL_ROLE, ""),
                "pool": labels.get(names.LABEL_POOL, ""),
                "attempt": labels.get(names.LABEL_ATTEMPT, ""),
                "node": pod["spec"].get("nodeName", ""),
                "ip": status.get("podIP", ""),
                "phase": status.get("phase", ""),
                "containers": [c["name"] for c in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])],
                "image": pod["spec"]["containers"][0].get("image", ""),
                **main,
            }
            if _ready(status) and "ready" not in entry:
                entry["ready"] = now()
        for uid, entry in self.pods.items():
            if uid not in present and "gone" not in entry:
                entry["gone"] = now()

    def see_events(self, events: list[Obj]) -> None:
        """A read of the namespace's events, replacing the last one; those of an earlier run are left out."""
        self.events = sorted(
            (
                {
                    "time": event.get("eventTime")
                    or event.get("deprecatedLastTimestamp")
                    or event["metadata"]["creationTimestamp"],
                    "type": event.get("type", ""),
                    "reason": event.get("reason", ""),
                    "about": "/".join(event.get("regarding", {}).get(key, "") for key in ("kind", "name")),
                    "note": event.get("note", ""),
                    "by": event.get("reportingController") or event.get("deprecatedSource", {}).get("component", ""),
                }
                for event in events
            ),
            key=lambda event: str(event["time"]),
        )
        if self.applied:
            self.events = [e for e in self.events if seconds_between(self.applied, str(e["time"])) >= -1]

    @property
    def reward_history(self) -> list[tuple[float, float]]:
        """(iteration, reward) as the trainer reported it."""
        return [(float(x), float(y)) for x, y in self.report.get("history", [])]

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read what `save` wrote."""
        data = json.loads(path.read_text())
        data["exact_match"] = [(int(x), float(y)) for x, y in data["exact_match"]]
        return cls(**data)


def _note(log: list[Obj], seen: Obj, *, identity: str, compare: tuple[str, ...]) -> None:
    last = next((entry for entry in reversed(log) if entry[identity] == seen[identity]), None)
    if last is None or any(last[key] != seen[key] for key in compare):
        log.append({"time": now(), **seen})
    else:
        last["message"] = seen.get("message", "")


def _ready(status: Obj) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))


def _main_state(pod: Obj) -> Obj:
    """Start, end and exit code of the main container, as far as the kubelet has said."""
    statuses = {status["name"]: status for status in pod.get("status", {}).get("containerStatuses", [])}
    if not statuses:
        return {}
    status = statuses.get(names.CONTAINER_MAIN) or next(iter(statuses.values()))
    state = status.get("state", {})
    found: Obj = {"restarts": status.get("restartCount", 0)}
    ended = state.get("terminated")
    if began := (state.get("running") or ended or {}).get("startedAt"):
        found["started"] = began
    if ended:
        found |= {
            "finished": ended.get("finishedAt", ""),
            "exit_code": ended.get("exitCode"),
            "reason": ended.get("reason", ""),
        }
    if waiting := state.get("waiting"):
        found["waiting"] = f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip()
    return found
