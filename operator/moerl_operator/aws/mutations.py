"""The mutations, each safe to repeat: after a lost answer or a crash the same action is simply asked for again."""

from __future__ import annotations

from typing import Any

from moerl_operator.aws.calls import Calls
from moerl_operator.aws.errors import ALREADY_EXISTS, sort
from moerl_operator.aws.launch_template import fingerprint, tag_list, template_data
from moerl_operator.aws.node_group import AUTOSCALER_TAG_PREFIX, create_request
from moerl_operator.aws.user_data import ClusterAddress
from moerl_operator.control.ports import AwsAction, AwsFailure
from moerl_operator.core.world import (
    AwsError,
    CreateNodeGroup,
    DeleteLaunchTemplate,
    DeleteNodeGroup,
    NodeGroupSpec,
    RetagNodeGroup,
    ScaleNodeGroup,
    TerminateInstances,
)


class Mutations:
    """Translates actions into calls; every method raises AwsFailure."""

    def __init__(self, calls: Calls, cluster_name: str) -> None:
        self._calls = calls
        self._cluster_name = cluster_name

    async def carry_out(self, action: AwsAction, cluster: ClusterAddress | None) -> None:
        """One action; `cluster` is what nodes with a custom image must be told."""
        match action:
            case CreateNodeGroup(spec):
                await self._create(spec, cluster)
            case ScaleNodeGroup():
                await self._scale(action)
            case TerminateInstances():
                await self._terminate(action)
            case DeleteNodeGroup(name):
                await self._gone_is_fine("eks", "delete_nodegroup", clusterName=self._cluster_name, nodegroupName=name)
            case DeleteLaunchTemplate(name):
                await self._gone_is_fine("ec2", "delete_launch_template", LaunchTemplateName=name)
            case RetagNodeGroup():
                await self._retag(action)

    async def _create(self, spec: NodeGroupSpec, cluster: ClusterAddress | None) -> None:
        try:
            data = template_data(spec, cluster)
        except ValueError as error:
            raise AwsFailure(sort(error, "ec2:CreateLaunchTemplate")) from None
        await self._exists_is_fine(
            "ec2",
            "create_launch_template",
            LaunchTemplateName=spec.name,
            ClientToken=fingerprint(spec.name, data),
            LaunchTemplateData=data,
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": tag_list(spec.tags)}],
        )
        request = create_request(spec, self._cluster_name)
        await self._exists_is_fine(
            "eks", "create_nodegroup", **request, clientRequestToken=fingerprint(spec.name, request)
        )

    async def _scale(self, action: ScaleNodeGroup) -> None:
        if action.drop_autoscaler_tags:
            await self._drop_autoscaler_tags(action.asg_name)
        if action.maximum is not None:
            await self._calls(
                "eks",
                "update_nodegroup_config",
                clusterName=self._cluster_name,
                nodegroupName=action.name,
                scalingConfig={"minSize": 0, "maxSize": action.maximum},
            )
        await self._calls(
            "autoscaling",
            "set_desired_capacity",
            AutoScalingGroupName=action.asg_name,
            DesiredCapacity=action.desired,
            HonorCooldown=False,
        )

    async def _drop_autoscaler_tags(self, asg_name: str) -> None:
        """Cluster Autoscaler would lower a group whose gang is still incomplete, 15 minutes after it was scaled."""
        answer = await self._calls("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[asg_name])
        groups = answer.get("AutoScalingGroups") or []
        keys = [tag["Key"] for group in groups for tag in group.get("Tags") or []]
        tags = [
            {"ResourceId": asg_name, "ResourceType": "auto-scaling-group", "Key": key}
            for key in keys
            if key.startswith(AUTOSCALER_TAG_PREFIX)
        ]
        if tags:
            await self._calls("autoscaling", "delete_tags", Tags=tags)

    async def _terminate(self, action: TerminateInstances) -> None:
        for instance in action.instance_ids:
            await self._gone_is_fine(
                "autoscaling",
                "terminate_instance_in_auto_scaling_group",
                InstanceId=instance,
                ShouldDecrementDesiredCapacity=True,
            )

    async def _retag(self, action: RetagNodeGroup) -> None:
        """New owner on everything that carries the old one; the group comes last, since it is what observe reads."""
        tags = dict(action.tags)
        if action.asg_name:
            await self._retag_scaling_group(action.asg_name, tags)
        found = await self._calls(
            "ec2", "describe_launch_templates", Filters=[{"Name": "launch-template-name", "Values": [action.name]}]
        )
        templates = [template["LaunchTemplateId"] for template in found.get("LaunchTemplates") or []]
        if templates:
            await self._calls("ec2", "create_tags", Resources=templates, Tags=tag_list(tags))
        await self._calls("eks", "tag_resource", resourceArn=action.arn, tags=tags)

    async def _retag_scaling_group(self, asg_name: str, tags: dict[str, str]) -> None:
        mark = {"ResourceId": asg_name, "ResourceType": "auto-scaling-group", "PropagateAtLaunch": True}
        await self._calls("autoscaling", "create_or_update_tags", Tags=[mark | tag for tag in tag_list(tags)])
        answer = await self._calls("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[asg_name])
        groups = answer.get("AutoScalingGroups") or []
        instances = [item["InstanceId"] for group in groups for item in group.get("Instances") or []]
        if instances:
            await self._calls("ec2", "create_tags", Resources=instances, Tags=tag_list(tags))

    async def _exists_is_fine(self, service: str, operation: str, **parameters: Any) -> None:
        """Names are never reused, so what stands under ours was made by an earlier try of the same action."""
        try:
            await self._calls(service, operation, **parameters)
        except AwsFailure as error:
            if not _is_there(error.error):
                raise

    async def _gone_is_fine(self, service: str, operation: str, **parameters: Any) -> None:
        try:
            await self._calls(service, operation, **parameters)
        except AwsFailure as error:
            if error.error.kind != "NotFound":
                raise


def _is_there(error: AwsError) -> bool:
    """EKS has one code for "exists already" and for "busy"; only the first says so."""
    return error.code in ALREADY_EXISTS and ("exist" in error.message or "in use" in error.message)
