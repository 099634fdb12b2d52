"""TransportVerified: what the preflights of the gangs and the trainer's report measured, against what was asked for.

Only what was measured counts. A mismatch anywhere decides; what is on fake nodes, or was not measured, is Unknown with
its reason. A gang whose preflight still runs is passed over, so that one that starts anew takes no proof from the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from moerl_operator.api import names
from moerl_operator.core import attempts as att
from moerl_operator.core import conditions as cond
from moerl_operator.core import display, groups, preflight
from moerl_operator.core.conditions import Conditions
from moerl_operator.core.progress import Report
from moerl_operator.core.topology import Placement, Topology
from moerl_operator.core.view import Part, View, annotations_of, labels_of
from moerl_operator.manifests.transport import resolve, uses_efa

Obj = dict[str, Any]
Outcome = Literal["Mismatch", "Unknown", "Match", "NothingToProve"]

# The roles that hold tensors; the nodes of the others carry nothing of what is proven.
ROLES = (names.TRAINER, names.ROLLOUT)
_MAX_EVIDENCE = 1024
_ANY_EFA = "EFA"


@dataclass(frozen=True, slots=True)
class Proof:
    """One measurement by `source`. `wish`: what its gang was to use; `whole`: no pod of the gang is still at it."""

    source: str
    effective: str
    pods: int
    words: str
    wish: str
    whole: bool = True

    @property
    def outcome(self) -> Outcome:
        """Against the wish, which constrains what goes between pods; within one pod only NVLink can be asked for."""
        if self.effective == preflight.UNKNOWN:
            return "Unknown"
        if self.wish in ("Auto", self.effective) or (self.wish == _ANY_EFA and uses_efa(self.effective)):
            return "Match"
        if self.effective == "Local" or (self.pods == 1 and self.wish != "NVLink"):
            return "NothingToProve"
        return "Mismatch"


def judge(view: View, conditions: Conditions, report: Report, topo: Topology) -> Obj:
    """Set the condition; returns status.transport."""
    requested = view.spec.communication.expert_parallel.transport
    found, running = _proofs(view, report)
    by: dict[Outcome, list[Proof]] = {}
    for proof in found:
        if proof.whole or proof.outcome in ("Mismatch", "Unknown"):
            by.setdefault(proof.outcome, []).append(proof)
    told = next((by[kind][0] for kind in ("Mismatch", "Unknown", "Match", "NothingToProve") if kind in by), None)
    fake = on_fake_nodes(view, topo)
    out: Obj = {"requested": requested, "effective": told.effective if told else preflight.UNKNOWN}
    if told is not None:
        out["evidence"] = f"{told.source}: {told.words}"[:_MAX_EVIDENCE]
    if told is not None and "Mismatch" in by:
        asked = "Auto means EFA on nodes that have it" if requested == "Auto" else f"{requested} was asked for"
        text = f"{asked}; {told.source}: {told.words}"
        conditions.set(cond.TRANSPORT_VERIFIED, False, "TransportMismatch", text)
    elif told is not None and "Unknown" in by:
        conditions.set(cond.TRANSPORT_VERIFIED, None, "TransportUnknown", f"{told.source}: {told.words}")
    elif fake:
        out |= {"effective": preflight.UNKNOWN, "evidence": "nodes are fake: nothing was measured on them"}
        conditions.set(cond.TRANSPORT_VERIFIED, None, "FakeNodes", "nodes are fake and prove nothing")
    elif told is not None and "Match" in by:
        text = f"{told.effective} was measured" + ("" if requested == "Auto" else ", as was asked for")
        conditions.set(cond.TRANSPORT_VERIFIED, True, "TransportMatches", text)
    elif told is not None:
        over = "a network" if requested == "Auto" else requested
        text = f"no gang spans pods: nothing has gone over {over}, {told.effective} was measured"
        conditions.set(cond.TRANSPORT_VERIFIED, None, "NothingToProve", text)
    elif running:
        conditions.set(cond.TRANSPORT_VERIFIED, None, "PreflightRunning", "the preflight has not ended yet")
    else:
        conditions.set(cond.TRANSPORT_VERIFIED, None, "NotReported", "nothing has measured the transport")
    return out


def word(view: View, topo: Topology, status: Obj) -> str:
    """The printed TRANSPORT."""
    effective = str(status["effective"])
    return display.UNVERIFIED if effective == preflight.UNKNOWN and on_fake_nodes(view, topo) else effective


def on_fake_nodes(view: View, topo: Topology) -> bool:
    """Whether a pod that holds tensors runs, or would run, on a fake node."""
    places = [place for place in topo.placements.values() if place.part.role in ROLES]
    return any(labels_of(n).get(names.LABEL_FAKE_NODE) == "true" for n in _nodes(view, places))


def _proofs(view: View, report: Report) -> tuple[list[Proof], bool]:
    """What was measured, the trainer's first; and whether a preflight still runs."""
    out: list[Proof] = []
    running = False
    trainer = next(part for part in view.parts if part.role == names.TRAINER)
    if report.transport is not None and not _outdated(view, report, trainer):
        words = report.transport_evidence or f"{report.transport} was measured"
        out.append(Proof("the trainer's report", report.transport, trainer.count, words, _wish(view, trainer)))
    over = {_attempt(job) for job in view.snap.jobs if _suspended(job)}
    for role in ROLES:
        for gang in _latest(view.pods_of_role(role)):
            if _attempt(gang[0]) in over:
                continue  # its pods may still be ending when the job goes on, by then with another wish
            seen = [(p, *preflight.of_pod(p.get("status") or {}, names.CONTAINER_PREFLIGHT)) for p in gang]
            part = view.part(labels_of(gang[0]).get(names.LABEL_POOL) or role)
            wish = _wish(view, part) if part else view.spec.communication.expert_parallel.transport
            busy = any(state == "Running" for _, state, _ in seen)
            running = running or busy
            out += [
                Proof(f"pod {pod['metadata']['name']}", said.effective, said.pods, said.words, wish, whole=not busy)
                for pod, _, said in seen
                if said is not None
            ]
    return out, running


def _outdated(view: View, report: Report, trainer: Part) -> bool:
    """Whether the report is an earlier attempt's: it outlives its pods, and the wish may have changed since."""
    series = att.of_slot(view, att.Slot(trainer))
    if not series:
        return False
    return _suspended(series[-1].job) or (report.attempt is not None and report.attempt < series[-1].number)


def _suspended(job: Obj) -> bool:
    return annotations_of(job).get(names.ANNOTATION_ENDED) == att.SUSPENDED


def _attempt(obj: Obj) -> tuple[str, ...]:
    """Which attempt of which gang a Job or a pod is of."""
    have = labels_of(obj)
    keys = (names.LABEL_ROLE, names.LABEL_POOL, names.LABEL_REPLICA, names.LABEL_ATTEMPT)
    return tuple(have.get(key, "") for key in keys)


def _wish(view: View, part: Part) -> str:
    """The request, where Auto stands for EFA on nodes that have it: a fallback from there is never silent."""
    requested = view.spec.communication.expert_parallel.transport
    resolved = resolve(requested, view.facts(part), groups.gang_size(part))
    return _ANY_EFA if requested == "Auto" and uses_efa(resolved) else requested


def _latest(pods: Iterable[Obj]) -> list[list[Obj]]:
    """Pods of each gang's latest attempt: what an earlier one measured was on other pods, and maybe other nodes."""
    newest: dict[tuple[str, str, str], tuple[int, list[Obj]]] = {}
    for pod in pods:
        have = labels_of(pod)
        key = (have.get(names.LABEL_ROLE, ""), have.get(names.LABEL_POOL, ""), have.get(names.LABEL_REPLICA, ""))
        text = have.get(names.LABEL_ATTEMPT, "")
        number = int(text) if text.isdigit() else 0
        best = newest.get(key, (-1, []))
        if number >= best[0]:
            newest[key] = (number, [*(best[1] if number == best[0] else ()), pod])
    gangs = [group for _, group in (newest[key] for key in sorted(newest))]
    return [sorted(gang, key=lambda pod: str(pod["metadata"]["name"])) for gang in gangs]


def _nodes(view: View, places: Iterable[Placement]) -> list[Obj]:
    out: list[Obj] = []
    for place in places:
        if place.group:
            out += view.nodes_of_group(place.part, place.group)
        elif place.selector:
            out += view.nodes_of_selector(place.selector)
    return out
