"""What happens by itself as emulated time passes: groups become ready, instances launch, join, drain and go.

Every pending change is a moment (`..._due`) in the world's data. `advance` takes the moments in order, so that a jump
of an hour gives the same history as an hour of waiting, and a restart goes on where the file ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from . import facts
from .clock import Clock, ManualClock
from .faults import Faults
from .groups import GroupLife
from .timings import Timings
from .world import SUBNETS, Activity, AutoScalingGroup, Instance, NodeGroup, World, new_id


class Simulation:
    """Moves a world along a clock. Nothing here waits or does input and output."""

    def __init__(self, world: World, clock: Clock, faults: Faults, timings: Timings, *, has_cluster: bool) -> None:
        self.world = world
        self.clock = clock
        self.faults = faults
        self.timings = timings
        self._has_cluster = has_cluster  # then the joiner drains nodes and says when it is done
        self._groups = GroupLife(world, clock, faults, timings)

    def next_due(self) -> float | None:
        """The next emulated moment at which something happens by itself."""
        return min(self._moments(), default=None)

    def advance(self, target: float) -> None:
        """Let everything happen that is due until `target`, in order."""
        while (due := self.next_due()) is not None and due <= target:
            self._step(max(due, self.world.now))
        self._step(target)

    def settle(self) -> None:
        """Let the consequences of an API call at this moment happen."""
        self.advance(self.clock.now())

    def _moments(self) -> Iterator[float]:
        for group in self.world.node_groups.values():
            yield from self._groups.moments(group)
        for asg in self.world.scaling_groups.values():
            if asg.launch_due is not None:
                yield asg.launch_due
            for activity in asg.activities:
                if activity.status == "InProgress" and activity.due is not None:
                    yield activity.due
        for instance in self.world.instances.values():
            for due in (
                instance.running_due,
                instance.join_due,
                instance.drain_due,
                instance.gone_due,
                instance.forget_due,
            ):
                if due is not None:
                    yield due

    def _step(self, now: float) -> None:
        self.world.now = now
        if isinstance(self.clock, ManualClock):
            self.clock.set(now)
        for asg in list(self.world.scaling_groups.values()):
            self._scale(asg, now)
        for instance in list(self.world.instances.values()):
            self._live(instance, now)
        for group in list(self.world.node_groups.values()):
            self._groups.step(group, now)

    # --- Auto Scaling groups -------------------------------------------------------------------------------------

    def _scale(self, asg: AutoScalingGroup, now: float) -> None:
        self._finish_failures(asg, now)
        counted = self.world.counted(asg.name)
        if len(counted) > asg.desired:
            for index, instance in enumerate(counted[: len(counted) - asg.desired]):
                self.end_instance(asg, instance, cause=self._shrinking(asg, len(counted) - index, now))
        if len(counted) >= asg.desired or asg.deleting:
            asg.launch_due = None
        elif asg.launch_due is not None and asg.launch_due <= now:
            asg.launch_due = None
            self._launch_missing(asg, now)
        elif asg.launch_due is None and not any(a.status == "InProgress" and a.failure for a in asg.activities):
            asg.launch_due = now + self.timings.asg_react

    def _finish_failures(self, asg: AutoScalingGroup, now: float) -> None:
        for activity in asg.activities:
            if activity.status == "InProgress" and activity.due is not None and activity.due <= now:
                activity.status, activity.due, activity.progress = "Failed", None, 100
                activity.ended_at = self.clock.timestamp(now)
                activity.message = activity.failure
                activity.description = f"Launching a new EC2 instance.  Status Reason: {activity.failure}"
                asg.launch_due = now + self.timings.launch_retry
                self._groups.launch_failed(self._group_of(asg), now)

    def _launch_missing(self, asg: AutoScalingGroup, now: float) -> None:
        group = self._group_of(asg)
        have = len(self.world.counted(asg.name))
        for count in range(have, asg.desired):
            choice = self._choose(group, asg)
            cause = self._growing(asg, count, now)
            if isinstance(choice, str):
                due = now + self.timings.launch_failure
                self._record(
                    asg,
                    Activity(
                        description="Launching a new EC2 instance",
                        cause=cause,
                        started_at=self.clock.timestamp(now),
                        failure=choice,
                        due=due,
                    ),
                )
                return
            self._launch(group, asg, *choice, cause=cause, now=now)

    def _choose(self, group: NodeGroup, asg: AutoScalingGroup) -> tuple[str, str] | str:
        """(instance type, subnet) for the next instance, balanced over zones; or why there is none."""
        have = [instance.subnet for instance in self.world.counted(asg.name)]
        reasons = []
        for subnet in sorted(asg.subnets, key=have.count):
            zone = SUBNETS[subnet]
            for instance_type in group.instance_types:
                if not facts.offered(instance_type, zone):
                    reasons.append(
                        "Could not launch On-Demand Instances. Unsupported - Your requested instance type "
                        f"({instance_type}) is not supported in your requested Availability Zone ({zone}). "
                        "Launching EC2 instance failed."
                    )
                    continue
                reason = self.faults.shortage(group, instance_type=instance_type, zone=zone)
                if reason is None:
                    return instance_type, subnet
                reasons.append(reason)
        return reasons[0]

    def _launch(
        self, group: NodeGroup, asg: AutoScalingGroup, instance_type: str, subnet: str, *, cause: str, now: float
    ) -> None:
        address = self.world.next_address()
        name = f"ip-{address.replace('.', '-')}.ec2.internal"
        template = self.world.templates.get(asg.template_id)
        tags = {key: tag["value"] for key, tag in asg.tags.items() if tag["propagate"]}
        tags |= {"aws:autoscaling:groupName": asg.name, "aws:ec2launchtemplate:id": asg.template_id}
        instance = Instance(
            id=new_id("i"),
            asg=asg.name,
            nodegroup=group.name,
            cluster=group.cluster,
            type=instance_type,
            zone=SUBNETS[subnet],
            subnet=subnet,
            address=address,
            node_name=name,
            capacity_type=group.capacity_type,
            image=str(group.template_data.get("ImageId") or facts.EKS_IMAGE),
            template_id=asg.template_id,
            template_version=str(template.default if template else 1),
            tags=tags | template_tags(group.template_data, "instance"),
            launched_at=self.clock.timestamp(now),
            will_join=not self.faults.take("join-failure", nodegroup=group.name, instanceType=instance_type),
            running_due=now + self.timings.instance_running,
            join_due=now + self.timings.instance_joined,
        )
        activity = Activity(
            description=f"Launching a new EC2 instance: {instance.id}",
            cause=cause,
            started_at=self.clock.timestamp(now),
            instance=instance.id,
        )
        instance.launch_activity = activity.id
        self._record(asg, activity)
        self.world.instances[instance.id] = instance

    def end_instance(self, asg: AutoScalingGroup, instance: Instance, *, cause: str) -> Activity:
        """Take an instance out of its group: Terminating:Wait (EKS drains the node), then shutting-down."""
        now = self.world.now
        activity = Activity(
            description=f"Terminating EC2 instance: {instance.id}",
            cause=f"{cause} At {self.stamp(now)} instance {instance.id} was selected for termination.",
            started_at=self.clock.timestamp(now),
            instance=instance.id,
        )
        self._record(asg, activity)
        self._close(asg, instance.launch_activity, "Cancelled", now)
        instance.end_activity = activity.id
        instance.lifecycle = "Terminating:Wait"
        limit = self.timings.drain_limit_delete if asg.deleting else self.timings.drain_limit
        drains = instance.joined and self._has_cluster
        instance.drain_due = now + (limit if drains else self.timings.drain if instance.joined else 0)
        instance.join_due = None
        return activity

    def kill_instance(self, instance: Instance, *, reason: str) -> None:
        """An instance ends without its group having asked (TerminateInstances, hardware): it shuts down at once."""
        now = self.world.now
        asg = self.world.scaling_groups.get(instance.asg)
        if instance.state not in ("pending", "running"):
            return
        instance.state, instance.reason = "shutting-down", reason
        instance.gone_due = now + self.timings.instance_shutdown
        instance.running_due = instance.join_due = instance.drain_due = None
        if asg is not None and not instance.end_activity:
            activity = Activity(
                description=f"Terminating EC2 instance: {instance.id}",
                cause=f"At {self.stamp(now)} an instance was taken out of service in response to an EC2 health "
                "check indicating it has been terminated or stopped.",
                started_at=self.clock.timestamp(now),
                instance=instance.id,
            )
            self._record(asg, activity)
            self._close(asg, instance.launch_activity, "Cancelled", now)
            instance.end_activity = activity.id
            instance.lifecycle = "Terminating"

    # --- instances -----------------------------------------------------------------------------------------------

    def _live(self, instance: Instance, now: float) -> None:
        asg = self.world.scaling_groups.get(instance.asg)
        if instance.running_due is not None and instance.running_due <= now:
            instance.running_due = None
            instance.state = "running"
            if instance.lifecycle == "Pending":
                instance.lifecycle = "InService"
            self._close(asg, instance.launch_activity, "Successful", now)
        if instance.join_due is not None and instance.join_due <= now:
            instance.join_due, instance.joined = None, instance.will_join
        if instance.lifecycle == "Terminating:Wait" and (
            instance.drained or (instance.drain_due is not None and instance.drain_due <= now)
        ):
            instance.lifecycle, instance.state = "Terminating:Proceed", "shutting-down"
            instance.reason = "User initiated"
            instance.gone_due, instance.drain_due = now + self.timings.instance_shutdown, None
        if instance.gone_due is not None and instance.gone_due <= now:
            instance.gone_due, instance.running_due = None, None
            instance.state, instance.lifecycle, instance.joined = "terminated", "", False
            instance.forget_due = now + self.timings.instance_visible
            self._close(asg, instance.end_activity, "Successful", now)
        if instance.forget_due is not None and instance.forget_due <= now:
            del self.world.instances[instance.id]

    # --- activities ----------------------------------------------------------------------------------------------

    def stamp(self, now: float) -> str:
        """A moment as the texts of activities have it."""
        return datetime.fromtimestamp(self.clock.timestamp(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _growing(self, asg: AutoScalingGroup, count: int, now: float) -> str:
        text = (
            f"At {self.stamp(now)} an instance was started in response to a difference between desired and actual "
            f"capacity, increasing the capacity from {count} to {asg.desired}."
        )
        return f"{asg.cause}  {text}".strip()

    def _shrinking(self, asg: AutoScalingGroup, count: int, now: float) -> str:
        text = (
            f"At {self.stamp(now)} an instance was taken out of service in response to a difference between desired "
            f"and actual capacity, shrinking the capacity from {count} to {asg.desired}."
        )
        return f"{asg.cause}  {text}".strip()

    def _record(self, asg: AutoScalingGroup, activity: Activity) -> None:
        asg.activities.append(activity)
        closed = [entry for entry in asg.activities if entry.status != "InProgress"]
        for entry in closed[: max(0, len(asg.activities) - self.timings.activity_kept)]:
            asg.activities.remove(entry)

    def _close(self, asg: AutoScalingGroup | None, activity_id: str, status: str, now: float) -> None:
        for activity in asg.activities if asg else []:
            if activity.id == activity_id and activity.status == "InProgress":
                activity.status = "Cancelled" if status == "Cancelled" else "Successful"
                activity.ended_at, activity.progress = self.clock.timestamp(now), 100

    def _group_of(self, asg: AutoScalingGroup) -> NodeGroup:
        return self.world.node_groups[f"{asg.cluster}/{asg.nodegroup}"]


def template_tags(data: dict[str, Any], resource_type: str) -> dict[str, str]:
    """The tags that a launch template gives to what it launches: those of its own specification and no others."""
    tags: dict[str, str] = {}
    for entry in data.get("TagSpecifications", []):
        if entry.get("ResourceType") == resource_type:
            tags.update({tag["Key"]: tag.get("Value", "") for tag in entry.get("Tags", [])})
    return tags
