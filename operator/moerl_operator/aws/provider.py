"""What AWS holds for a job, and the mutations the policy may ask for.

EKS makes, labels, taints and deletes node groups; sizes are read and set at their Auto Scaling groups, because
EKS's own numbers lag and a degraded group may refuse updates while its Auto Scaling group goes on buying.
Only groups that carry this installation's and this cluster's tags exist for us.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from moerl_operator.api import names
from moerl_operator.aws.calls import Calls
from moerl_operator.aws.catalog import Catalog
from moerl_operator.aws.memo import Memo
from moerl_operator.aws.mutations import Mutations
from moerl_operator.aws.node_group import observed, scaling_group_name
from moerl_operator.aws.refusals import Refusals
from moerl_operator.aws.user_data import ClusterAddress
from moerl_operator.control.ports import AwsAction, AwsFailure
from moerl_operator.core.world import (
    AwsError,
    AwsObservation,
    InstanceFacts,
    NodeGroupObservation,
    ScaleNodeGroup,
)

# Seconds for which answers are believed. A job's events come in bursts, its groups change over minutes.
LIST_SECONDS = 5.0
MOVING_SECONDS = 4.0
STEADY_SECONDS = 20.0
CLUSTER_SECONDS = 600.0
ERROR_SECONDS = 2.0  # a storm of events must not become a storm of calls that fail

_STEADY = ("ACTIVE", "DEGRADED", "CREATE_FAILED", "DELETE_FAILED")


class AwsProvider:
    """EKS, EC2 and Auto Scaling of one cluster and one installation."""

    def __init__(self, calls: Calls, *, cluster_name: str, installation_id: str, rng: Random) -> None:
        self._calls = calls
        self._cluster_name = cluster_name
        self._installation = installation_id
        self._memo = Memo()
        self._catalog = Catalog(calls)
        self._mutations = Mutations(calls, cluster_name)
        self._refusals = Refusals(rng)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._cluster: dict[str, Any] | None = None
        self._failed: tuple[float, AwsError] | None = None  # (until when it is believed, the latest failure)
        self._last_activity: dict[str, str] = {}  # group -> newest activity when we last changed its size

    @property
    def cluster_arn(self) -> str:
        """ARN of the cluster; '' until an observation has succeeded once."""
        return str(self._cluster["arn"]) if self._cluster else ""

    def close(self) -> None:
        """Take no more calls."""
        self._calls.close()

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._refusals.clear(uid)

    # --- observing -------------------------------------------------------------------------------------

    async def observe(self, uid: str) -> AwsObservation:
        """Groups and launch templates of the job; never raises for what AWS answers, see AwsObservation.error."""
        now = asyncio.get_running_loop().time()
        try:
            if self._failed is not None and now < self._failed[0]:
                raise AwsFailure(self._failed[1])
            await self._know_cluster()
            groups, templates = await asyncio.gather(self._groups_of(uid), self._templates_of(uid))
            observation = AwsObservation(node_groups=groups, launch_templates=templates)
            self._failed = None
        except AwsFailure as failure:
            if self._failed is None or now >= self._failed[0]:
                self._failed = (now + ERROR_SECONDS, failure.error)
            observation = AwsObservation(error=failure.error)
        if refusal := self._refusals.get(uid):
            return replace(observation, refused=refusal.error, retry_at=refusal.retry_at)
        return observation

    async def facts(self, types: Iterable[str]) -> dict[str, InstanceFacts]:
        """Facts of the types that exist. Raises AwsFailure."""
        return await self._catalog.facts(types)

    async def _know_cluster(self) -> None:
        answer = await self._memo.get(
            "cluster", CLUSTER_SECONDS, lambda: self._calls("eks", "describe_cluster", name=self._cluster_name)
        )
        self._cluster = answer["cluster"]

    async def _groups_of(self, uid: str) -> tuple[NodeGroupObservation, ...]:
        listed = await self._memo.get(
            "list", LIST_SECONDS, lambda: self._calls("eks", "list_nodegroups", clusterName=self._cluster_name)
        )
        mine = [name for name in listed.get("nodegroups") or [] if name.startswith(prefix_of(uid))]
        observations = await asyncio.gather(*(self._group(name) for name in sorted(mine)))
        return tuple(group for group in observations if group is not None and self._is_ours(group.tags, f"job/{uid}"))

    def _is_ours(self, tags: Mapping[str, str], owner: str) -> bool:
        """Another installation's groups, and what was handed over to a class, are not the job's any more."""
        return (
            tags.get(names.TAG_INSTALLATION) == self._installation
            and tags.get(names.TAG_CLUSTER) == self.cluster_arn
            and tags.get(names.TAG_OWNER) == owner
        )

    async def _group(self, name: str) -> NodeGroupObservation | None:
        return await self._memo.get(("group", name), _life, lambda: self._describe(name))

    async def _describe(self, name: str) -> NodeGroupObservation | None:
        try:
            answer = await self._calls("eks", "describe_nodegroup", clusterName=self._cluster_name, nodegroupName=name)
        except AwsFailure as error:
            if error.error.kind == "NotFound":
                return None  # gone between the list and this call
            raise
        group = answer["nodegroup"]
        scaling_name = scaling_group_name(group)
        if not scaling_name:
            return observed(group, None)
        found = await self._calls("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[scaling_name])
        scaling = next(iter(found.get("AutoScalingGroups") or []), None)
        activities = await self._activities(scaling)
        return observed(group, scaling, activities, last_before_resize=self._last_activity.get(name, ""))

    async def _activities(self, scaling: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
        """Only of a group that lacks instances: what else happened is nobody's question."""
        if scaling is None or not _lacks_instances(scaling):
            return []
        answer = await self._calls(
            "autoscaling",
            "describe_scaling_activities",
            AutoScalingGroupName=scaling["AutoScalingGroupName"],
            MaxRecords=50,
        )
        return list(answer.get("Activities") or [])

    async def _templates_of(self, uid: str) -> dict[str, str]:
        filters = [
            {"Name": f"tag:{names.TAG_INSTALLATION}", "Values": [self._installation]},
            {"Name": f"tag:{names.TAG_CLUSTER}", "Values": [self.cluster_arn]},
        ]
        answer = await self._memo.get(
            "templates", LIST_SECONDS, lambda: self._calls("ec2", "describe_launch_templates", Filters=filters)
        )
        return {
            template["LaunchTemplateName"]: template["LaunchTemplateId"]
            for template in answer.get("LaunchTemplates") or []
            if _tags(template).get(names.TAG_OWNER) == f"job/{uid}"
        }

    # --- mutating --------------------------------------------------------------------------------------

    async def apply(self, uid: str, action: AwsAction) -> AwsError | None:
        """Carry one action out; the error is also what observe() shows as `refused` until a mutation succeeds.

        One mutation of a group at a time. What was known of the group is forgotten either way: a lost answer may
        hide a success.
        """
        async with self._locks[action_name(action)]:
            try:
                if isinstance(action, ScaleNodeGroup):
                    self._last_activity[action.name] = await self._newest_activity(action.asg_name)
                await self._mutations.carry_out(action, self._address())
            except AwsFailure as error:
                self._refusals.add(uid, error.error, datetime.now(UTC))
                return error.error
            finally:
                self._memo.forget("list", "templates", ("group", action_name(action)))
        self._refusals.clear(uid)
        return None

    async def _newest_activity(self, asg_name: str) -> str:
        answer = await self._calls(
            "autoscaling", "describe_scaling_activities", AutoScalingGroupName=asg_name, MaxRecords=1
        )
        return str(next((activity["ActivityId"] for activity in answer.get("Activities") or []), ""))

    def _address(self) -> ClusterAddress | None:
        if not self._cluster:
            return None
        return ClusterAddress(
            name=self._cluster_name,
            endpoint=self._cluster.get("endpoint") or "",
            certificate_authority=(self._cluster.get("certificateAuthority") or {}).get("data") or "",
            service_cidr=(self._cluster.get("kubernetesNetworkConfig") or {}).get("serviceIpv4Cidr") or "",
        )


def prefix_of(uid: str) -> str:
    """How the names of all groups of a job begin."""
    return names.node_group(uid, "", 0).removesuffix("-0")


def action_name(action: AwsAction) -> str:
    """The group that an action changes."""
    return str(getattr(action, "name", "") or getattr(action, "spec").name)  # noqa: B009


def _life(group: NodeGroupObservation | None) -> float:
    if group is None or group.status not in _STEADY:
        return MOVING_SECONDS
    return STEADY_SECONDS if group.in_service == group.desired and not group.pending else MOVING_SECONDS


def _lacks_instances(scaling: Mapping[str, Any]) -> bool:
    ready = sum(1 for instance in scaling.get("Instances") or [] if instance.get("LifecycleState") == "InService")
    return bool(ready < int(scaling.get("DesiredCapacity") or 0))


def _tags(resource: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag.get("Value", "") for tag in resource.get("Tags") or []}
