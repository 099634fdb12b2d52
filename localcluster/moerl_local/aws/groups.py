"""The life of an EKS managed node group, from CREATING to gone, with what it may fail of on the way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from .clock import Clock
from .faults import Faults
from .timings import Timings
from .world import AutoScalingGroup, Issue, LaunchTemplate, NodeGroup, TemplateVersion, Update, World, new_id


class GroupLife:
    """Takes one node group one step along its state machine."""

    def __init__(self, world: World, clock: Clock, faults: Faults, timings: Timings) -> None:
        self._world = world
        self._clock = clock
        self._faults = faults
        self._timings = timings

    def moments(self, group: NodeGroup) -> Iterator[float]:
        """The emulated moments at which this group changes by itself."""
        for due in (
            group.asg_due,
            group.ready_due,
            group.timeout_due,
            group.degrade_due,
            group.sync_due,
            group.delete_due,
        ):
            if due is not None:
                yield due
        for update in group.updates.values():
            if update.status == "InProgress":
                yield update.due

    def step(self, group: NodeGroup, now: float) -> None:
        """Everything that is due for a group at `now`."""
        if group.asg_due is not None and group.asg_due <= now:
            group.asg_due = None
            self._make_asg(group, now)
        if group.status == "CREATING":
            self._creating(group, now)
        if group.degrade_due is not None and group.degrade_due <= now:
            # EKS judges a group that is being updated when the update is over.
            group.degrade_due = now + self._timings.group_update if group.status == "UPDATING" else None
            self._degrade(group, now)
        for update in group.updates.values():
            if update.status == "InProgress" and update.due <= now:
                self._finish_update(group, update, now)
        if group.sync_due is not None and group.sync_due <= now:
            group.sync_due = None
            asg = self._world.scaling_groups.get(group.asg or "")
            if asg is not None:
                group.scaling.update(minSize=asg.minimum, maxSize=asg.maximum, desiredSize=asg.desired)
        if group.status == "DELETING":
            self._deleting(group, now)

    def launch_failed(self, group: NodeGroup, now: float) -> None:
        """The Auto Scaling group could not launch: EKS notices a little later."""
        if group.status in ("ACTIVE", "UPDATING") and group.degrade_due is None:
            group.degrade_due = now + self._timings.group_degrade_lag

    def start_delete(self, group: NodeGroup, now: float) -> None:
        """DeleteNodegroup was accepted."""
        self._set(group, "DELETING", now)
        group.issues = []
        group.asg_due = group.ready_due = group.timeout_due = group.degrade_due = group.sync_due = None
        group.delete_due = now + self._timings.group_delete
        for update in group.updates.values():
            if update.status == "InProgress":
                update.status = "Cancelled"
        asg = self._world.scaling_groups.get(group.asg or "")
        if asg is not None:
            asg.deleting, asg.minimum, asg.desired = True, 0, 0
            asg.cause = ""

    def _set(self, group: NodeGroup, status: str, now: float) -> None:
        group.status = status  # type: ignore[assignment]
        group.modified_at = self._clock.timestamp(now)

    def _make_asg(self, group: NodeGroup, now: float) -> None:
        name = f"eks-{group.name}-{uuid.uuid4()}"
        copy = LaunchTemplate(
            id=new_id("lt"),
            name=f"eks-{uuid.uuid4()}",
            created_at=self._clock.timestamp(now),
            versions=[TemplateVersion(number=1, data=group.template_data, created_at=self._clock.timestamp(now))],
            tags={"eks:cluster-name": group.cluster, "eks:nodegroup-name": group.name},
            managed=True,
        )
        self._world.templates[copy.id] = copy
        tags = {
            "eks:cluster-name": (group.cluster, True),
            "eks:nodegroup-name": (group.name, True),
            f"kubernetes.io/cluster/{group.cluster}": ("owned", True),
            "k8s.io/cluster-autoscaler/enabled": ("true", True),
            f"k8s.io/cluster-autoscaler/{group.cluster}": ("owned", True),
        }
        self._world.scaling_groups[name] = AutoScalingGroup(
            name=name,
            cluster=group.cluster,
            nodegroup=group.name,
            minimum=group.scaling["minSize"],
            maximum=group.scaling["maxSize"],
            desired=group.scaling["desiredSize"],
            tags={key: {"value": value, "propagate": propagate} for key, (value, propagate) in tags.items()},
            subnets=list(group.request["subnets"]),
            template_id=copy.id,
            created_at=self._clock.timestamp(now),
        )
        group.asg = name
        # A new Auto Scaling group reacts in the same step of the clock only if something makes it: this does.
        self._world.scaling_groups[name].launch_due = now + self._timings.asg_react

    def _creating(self, group: NodeGroup, now: float) -> None:
        if group.ready_due is not None and group.ready_due <= now:
            group.ready_due = None
        asg = self._world.scaling_groups.get(group.asg or "")
        if asg is None or group.ready_due is not None:
            return
        counted = self._world.counted(asg.name)
        if sum(instance.joined for instance in counted) >= asg.desired:
            group.timeout_due = None
            self._set(group, "ACTIVE", now)
        elif group.timeout_due is not None and group.timeout_due <= now:
            group.timeout_due = None
            self._set(group, "CREATE_FAILED", now)
            if asg.failing is not None:
                group.issues.append(self._launch_issue(asg))
            absent = [instance.id for instance in counted if not instance.joined]
            if absent or not group.issues:
                message = "Instances failed to join the kubernetes cluster"
                group.issues.append(Issue(code="NodeCreationFailure", message=message, resource_ids=absent))

    def _degrade(self, group: NodeGroup, now: float) -> None:
        asg = self._world.scaling_groups.get(group.asg or "")
        short = asg is not None and len(self._world.counted(asg.name)) < asg.desired
        if asg is not None and asg.failing is not None and short and group.status in ("ACTIVE", "DEGRADED"):
            group.issues = [self._launch_issue(asg)]
            self._set(group, "DEGRADED", now)  # and stays so, even at size 0 (containers-roadmap 2326)

    @staticmethod
    def _launch_issue(asg: AutoScalingGroup) -> Issue:
        message = asg.failing.message if asg.failing else ""
        return Issue(code="AsgInstanceLaunchFailures", message=message, resource_ids=[asg.name])

    def _finish_update(self, group: NodeGroup, update: Update, now: float) -> None:
        fault = self._faults.take("update-failed", nodegroup=group.name)
        if fault is not None:
            code = fault.code or "OperationNotPermitted"
            update.status = "Failed"
            update.errors = [Issue(code=code, message=fault.message or "The update failed.", resource_ids=[group.name])]
        else:
            update.status = "Successful"
            self._apply(group, update, now)
        if group.status == "UPDATING":
            self._set(group, "DEGRADED" if group.issues else "ACTIVE", now)

    def _apply(self, group: NodeGroup, update: Update, now: float) -> None:
        change = update.change
        labels = change.get("labels", {})
        own_labels = group.request.setdefault("labels", {})
        for key in labels.get("removeLabels", []):
            own_labels.pop(key, None)
        own_labels.update(labels.get("addOrUpdateLabels", {}))
        taints = {(taint["key"], taint["effect"]): taint for taint in group.request.get("taints", [])}
        for taint in change.get("taints", {}).get("removeTaints", []):
            taints.pop((taint["key"], taint["effect"]), None)
        for taint in change.get("taints", {}).get("addOrUpdateTaints", []):
            taints[(taint["key"], taint["effect"])] = taint
        group.request["taints"] = list(taints.values())
        if labels or change.get("taints"):
            group.labels_revision += 1
        for name in ("updateConfig", "nodeRepairConfig", "warmPoolConfig"):
            if name in change:
                group.request[name] = change[name]
        scaling = change.get("scalingConfig")
        if scaling:
            group.scaling.update(scaling)
            group.sync_due = None
            asg = self._world.scaling_groups.get(group.asg or "")
            if asg is not None:
                asg.minimum = group.scaling["minSize"]
                asg.maximum = group.scaling["maxSize"]
                asg.desired = group.scaling["desiredSize"]
                # Wakes the group in this very moment; without it nothing would be due.
                asg.launch_due = now

    def _deleting(self, group: NodeGroup, now: float) -> None:
        if group.delete_due is not None:
            if group.delete_due > now:
                return
            group.delete_due = None
        asg = self._world.scaling_groups.get(group.asg or "")
        if asg is not None and any(i.state != "terminated" for i in self._world.instances_of(asg.name)):
            return
        fault = self._faults.take("delete-failed", nodegroup=group.name)
        if fault is not None:
            code = fault.code or "Ec2SecurityGroupDeletionFailure"
            message = fault.message or (
                "We couldn't delete the remote access security group for your managed node group. "
                "Remove any dependencies from the security group."
            )
            group.issues = [Issue(code=code, message=message, resource_ids=[group.name])]
            self._set(group, "DELETE_FAILED", now)
            return
        if asg is not None:
            self._world.templates.pop(asg.template_id, None)
            del self._world.scaling_groups[asg.name]
        del self._world.node_groups[f"{group.cluster}/{group.name}"]
