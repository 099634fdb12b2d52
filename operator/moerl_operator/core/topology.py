"""Nodes of a running or suspended job: which node groups there should be, and of what size.

A group is made at size 0, filled when it is ACTIVE, and given up for the next zone when its capacity
does not come; every step is decided from what AWS shows now. The trainer's gang is bought first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from moerl_operator.api import names
from moerl_operator.core import capacity, groups, idle, inventory
from moerl_operator.core.groups import Numbered
from moerl_operator.core.view import Part, View, node_ready
from moerl_operator.core.world import (
    Action,
    AwsError,
    CreateNodeGroup,
    DeleteLaunchTemplate,
    DeleteNodeGroup,
    ScaleNodeGroup,
    SetFinalizer,
    TerminateInstances,
)

Obj = dict[str, object]

POLL_SECONDS = 5.0  # while AWS is working; EKS sends no events
_BUSY = ("CREATING", "DELETING")
_SCALABLE = ("ACTIVE", "UPDATING", "DEGRADED")  # sizes are set through Auto Scaling, whatever EKS thinks
DEAD_AFTER = timedelta(minutes=5)  # a rebooting node is back before; the attempt itself ended after 30 s
_TOUR_SECONDS = 60  # wait after every zone was tried once, doubled for every further tour
_TOUR_MAX_SECONDS = 900


@dataclass(slots=True)
class Placement:
    """Where the pods of a part go, and how many of its nodes are there."""

    part: Part
    selector: dict[str, str] = field(default_factory=dict)
    group: str = ""
    ready: int = 0
    secured: bool = False  # all instances are ours, though they may still be booting
    reason: str = ""
    message: str = ""

    @property
    def placed(self) -> bool:
        """Whether pods can be given a place."""
        return bool(self.selector)

    @property
    def complete(self) -> bool:
        """Whether all nodes of the part are ready."""
        return self.ready >= self.part.count

    @property
    def usable(self) -> bool:
        """Whether enough nodes for the part to be called ready are there."""
        return self.ready >= self.part.needed


@dataclass(slots=True)
class Topology:
    """The outcome: AWS actions, the place of every part, and the rows for status.nodeGroups."""

    actions: list[Action] = field(default_factory=list)
    placements: dict[str, Placement] = field(default_factory=dict)
    rows: list[Obj] = field(default_factory=list)
    resolved_ami: list[str] | None = None
    requeue: float | None = None

    def wait(self, seconds: float) -> None:
        """Look again after so many seconds."""
        self.requeue = seconds if self.requeue is None else min(self.requeue, seconds)


def arrange(view: View, *, suspended: bool) -> Topology:
    """Decide on all parts; with an AWS error nothing is planned, and nodes are known from Kubernetes alone."""
    out = Topology()
    secured = True  # whether everything dearer has its instances
    for part in view.parts:
        if not part.managed:
            out.placements[part.key] = _existing(view, part)
            continue
        _Arranger(view, part, out, may_scale=secured, want=0 if suspended else part.count).run()
        if part.role == names.TRAINER:
            secured = out.placements[part.key].secured
    out.rows += inventory.deleted_rows(view, {str(row["name"]) for row in out.rows})
    out.resolved_ami = _resolved_ami(view, out.actions)
    _launch_templates(view, out)
    _gate(view, out)
    exist = groups.own(view) or view.snap.aws.launch_templates
    if not view.has_finalizer and (exist or any(isinstance(a, CreateNodeGroup) for a in out.actions)):
        out.actions.insert(0, SetFinalizer(True))
    return out


def _existing(view: View, part: Part) -> Placement:
    """Nodes that are there already: only counted."""
    selector = dict(part.nodes.node_selector or {})
    ready = sum(node_ready(n) for n in view.nodes_of_selector(selector))
    place = Placement(part, selector=selector, ready=min(ready, part.count), secured=True)
    if not place.complete:
        place.reason = "NodesPending"
        place.message = f"{part.key}: {place.ready} of {part.count} nodes with the given nodeSelector are ready"
    return place


@dataclass(slots=True)
class _Arranger:
    """One part's groups."""

    view: View
    part: Part
    out: Topology
    may_scale: bool
    want: int

    def run(self) -> None:
        view, part = self.view, self.part
        series = inventory.known_groups(view, part)
        live = [n for n in series if n.group.status not in ("DELETING", "DELETE_FAILED")]
        current = live[-1] if live else None
        place = self.out.placements[part.key] = Placement(part)
        if current is not None:
            place.group = current.name
            place.selector = {part.label: current.name}
            place.ready = min(inventory.ready_nodes(view, part, current.group), part.count)
            place.secured = current.group.in_service >= part.count
        self.out.rows += [inventory.row(view, part, n.group) for n in series]
        self._tell(place, current)
        if view.snap.aws.error is not None:
            place.secured = place.complete
            return
        older = [n for n in series if n is not current]
        if current is not None and current.revision != view.nodes_revision(part):
            older, current, before = [*older, current], None, current
            place.group, place.selector, place.ready, place.secured = "", {}, 0, False
        else:
            before = series[-1] if series else None
        for group in older:
            self._retire(group)
        if current is None:
            if self.want:
                self._create(before)
            return
        self._settle(current, older)

    # --- one group -------------------------------------------------------------------------------

    def _create(self, before: Numbered | None) -> None:
        self.out.actions.append(CreateNodeGroup(groups.new_group(self.view, self.part, before)))
        self.out.wait(POLL_SECONDS)

    def _settle(self, current: Numbered, older: list[Numbered]) -> None:
        """Bring the current group to its size, or give it up for the next zone."""
        group = current.group
        if group.status == "CREATE_FAILED":
            self._failed(current)
        elif group.status in _BUSY or not group.asg_name:
            self.out.wait(POLL_SECONDS)
        elif group.status in _SCALABLE:
            if self.want and self._give_up(current):
                self._create(current)  # before the size goes to 0, so that a crash between the two loses nothing
                self._scale(current, 0)
            elif self.want > group.desired:
                self._grow(current, older)
            elif self.want < group.desired:
                self._shrink(current)
            elif group.desired and (group.pending or self.out.placements[self.part.key].ready < self.part.count):
                self._replace_dead(current)
                self.out.wait(POLL_SECONDS)

    def _failed(self, current: Numbered) -> None:
        """A group that EKS could not make: another one, unless it would fail the same way."""
        found = capacity.trouble(current.group)
        if self.want and (found is None or found[0] != "Terminal"):
            self._create(current)
        if not self.want:
            self._retire(current)

    def _grow(self, current: Numbered, older: list[Numbered]) -> None:
        busy_elsewhere = any(n.group.desired or n.group.pending for n in older)
        delay = self._tour_delay(current)
        if not self.may_scale or busy_elsewhere or delay > 0:
            self.out.wait(min(POLL_SECONDS, delay) if delay > 0 else POLL_SECONDS)
            return
        self._scale(current, self.want)

    def _shrink(self, current: Numbered) -> None:
        """Give nodes back: what is not bought yet, then instances without pods; own pods end first."""
        group = current.group
        held = group.in_service + group.pending
        if self.want == 0 or self.part.nodes.instance_types == [groups.LOCAL]:
            if idle.group_is_idle(self.view, self.part, group.name):
                self._scale(current, self.want)
            else:
                self.out.wait(POLL_SECONDS)
            return
        if group.desired > held:
            self._scale(current, max(self.want, held))
            return
        spare = idle.idle_instances(self.view, self.part, group.name)[: group.desired - self.want]
        if spare:
            self.out.actions.append(TerminateInstances(group.name, group.asg_name, tuple(spare)))
        self.out.wait(POLL_SECONDS)

    def _replace_dead(self, current: Numbered) -> None:
        """Give back instances whose nodes have been dead for long: Auto Scaling thinks that they are well.

        The size goes down with them, and the next look buys them anew.
        """
        group = current.group
        if group.in_service < group.desired:
            return
        dead, soonest = idle.dead_instances(self.view, self.part, group.name, DEAD_AFTER)
        if dead:
            self.out.actions.append(TerminateInstances(group.name, group.asg_name, tuple(dead)))
        if soonest is not None:
            self.out.wait(max(soonest, 0.1))

    def _retire(self, old: Numbered) -> None:
        """A group that is no longer wanted: empty it, then delete it."""
        group = old.group
        if group.status == "DELETING":
            pass
        elif group.status in ("CREATING", "CREATE_FAILED", "DELETE_FAILED") or old.empty:
            self.out.actions.append(DeleteNodeGroup(group.name))
        elif group.desired and idle.group_is_idle(self.view, self.part, group.name):
            self._scale(old, 0)
        self.out.wait(POLL_SECONDS)

    def _scale(self, target: Numbered, size: int) -> None:
        group = target.group
        self.out.actions.append(
            ScaleNodeGroup(
                group.name,
                group.asg_name,
                size,
                drop_autoscaler_tags=group.autoscaler_tags,
                maximum=size if size > group.maximum else None,
            )
        )
        self.out.wait(POLL_SECONDS)

    # --- giving up -------------------------------------------------------------------------------

    def _give_up(self, current: Numbered) -> bool:
        """Whether the capacity does not come here: refused with nothing held, or incomplete for the hold time."""
        group, part = current.group, self.part
        gang = -(-part.count // part.pool.wanted) if part.pool else (part.count if part.role == names.TRAINER else 1)
        if part.reserved or group.desired == 0 or self.out.placements[part.key].ready >= max(1, gang):
            return False
        if not idle.group_is_idle(self.view, part, group.name):
            return False  # what runs is worth more than what is missing
        if group.in_service == 0:
            return capacity.refused(group) and len(groups.subnets(self.view, part)) > 1
        hold = timedelta(seconds=self.view.node_class(part).gang_hold_seconds)
        left = (inventory.since_of(self.view, group) + hold - self.view.now).total_seconds()
        if left > 0:
            self.out.wait(left)
        return left <= 0

    def _tour_delay(self, current: Numbered) -> float:
        """Seconds to wait before trying again when every zone was tried."""
        tours = (current.number - 1) // len(groups.subnets(self.view, self.part))
        if tours == 0 or current.group.desired:
            return 0.0
        pause = timedelta(seconds=min(_TOUR_SECONDS * 2 ** min(tours - 1, 10), _TOUR_MAX_SECONDS))
        return (inventory.since_of(self.view, current.group) + pause - self.view.now).total_seconds()

    # --- words -----------------------------------------------------------------------------------

    def _tell(self, place: Placement, current: Numbered | None) -> None:
        part = self.part
        if not self.want or place.complete:
            return
        place.reason = "NodesPending"
        place.message = f"{part.key}: {place.ready} of {part.count} nodes are ready"
        if current is None or current.group.status == "CREATING":
            place.reason = "NodeGroupCreating"
            place.message = f"{part.key}: its node group is being created"
            return
        found = capacity.trouble(current.group) if current.group.desired or current.group.status != "ACTIVE" else None
        if found is not None:
            kind, text = found
            place.reason = {"Capacity": "InsufficientCapacity", "Quota": "InstanceQuota"}.get(kind, "NodeGroupTrouble")
            place.message += f"; node group {current.name} in {current.group.zone}: {text}"


def _resolved_ami(view: View, actions: list[Action]) -> list[str] | None:
    """The AMI of each class, fixed by the first group that is made of it; later groups of the job get the same."""
    known = groups.resolved_amis(view)
    for part in view.parts:
        name, node_class = part.nodes.node_class_name, view.node_class(part)
        series = groups.of_part(view, part.key)
        making = any(isinstance(a, CreateNodeGroup) and a.spec.group_key == part.key for a in actions)
        pinned = groups.pinned_ami(node_class)
        if pinned and (making or series):
            known.setdefault(name, pinned)
        released = next((n.group.release_version for n in series if n.group.release_version), "")
        if released and not node_class.ami_id:
            known.setdefault(name, f"@{released}")
    return sorted(f"{key}={value}" for key, value in known.items()) or None


def _launch_templates(view: View, out: Topology) -> None:
    """A template without a group is left from an interrupted creation or a finished deletion."""
    if view.snap.aws.error is not None:
        return
    kept = {g.name for g in view.snap.aws.node_groups}
    kept |= {a.spec.name for a in out.actions if isinstance(a, CreateNodeGroup)}
    out.actions += [DeleteLaunchTemplate(name) for name in sorted(view.snap.aws.launch_templates) if name not in kept]


def _gate(view: View, out: Topology) -> None:
    """After a refused call nothing is sent before the control loop's backoff has passed."""
    retry_at = view.snap.aws.retry_at
    if retry_at is not None and retry_at > view.now and out.actions:
        out.actions = []
        out.requeue = (retry_at - view.now).total_seconds()


def refusal(error: AwsError) -> tuple[str, str]:
    """(reason, message) of NodesReady for a call that AWS refused or did not answer."""
    if error.kind == "Quota" and "Nodegroup" in error.operation:
        return "NodeGroupQuota", f"{error.operation}: {error.code}: {error.message}"
    return error.code, f"{error.operation}: {error.code}: {error.message}"
