"""EKS: node groups of one cluster, REST-JSON. What changes by itself afterwards is in groups.py."""

from __future__ import annotations

import json
import uuid
from typing import Any

from . import facts
from .clock import Clock
from .eks_rules import (
    NODEGROUPS_PER_CLUSTER,
    NODES_PER_GROUP,
    check_create,
    check_labels,
    check_scaling,
    check_taints,
    check_update_config,
    invalid,
    template_version,
)
from .errors import AwsError
from .faults import Faults
from .groups import GroupLife
from .timings import Timings
from .world import ACCOUNT, REGION, SECURITY_GROUP, SUBNETS, VPC, Issue, NodeGroup, Update, World

Params = dict[str, Any]


class Eks:
    """The operations; each takes checked parameters and returns the members of the answer."""

    def __init__(
        self, world: World, clock: Clock, faults: Faults, timings: Timings, *, cluster: str, endpoint: str
    ) -> None:
        self._world = world
        self._clock = clock
        self._faults = faults
        self._timings = timings
        self._cluster = cluster
        self._endpoint = endpoint
        self._created_at = clock.timestamp(0)
        self._life = GroupLife(world, clock, faults, timings)
        self._cluster_tags: dict[str, str] = {}

    # --- clusters ------------------------------------------------------------------------------------------------

    @property
    def _cluster_arn(self) -> str:
        return f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/{self._cluster}"

    def _need_cluster(self, name: str) -> None:
        if name != self._cluster:
            raise AwsError("ResourceNotFoundException", f"No cluster found for name: {name}.")

    def list_clusters(self, params: Params) -> Params:
        """The one cluster."""
        return {"clusters": [self._cluster]}

    def describe_cluster(self, params: Params) -> Params:
        """The pre-made cluster, ACTIVE."""
        self._need_cluster(params["name"])
        return {
            "cluster": {
                "name": self._cluster,
                "arn": self._cluster_arn,
                "createdAt": self._created_at,
                "version": facts.KUBERNETES_VERSION,
                "endpoint": self._endpoint,
                "roleArn": f"arn:aws:iam::{ACCOUNT}:role/moerl-cluster",
                "resourcesVpcConfig": {
                    "subnetIds": list(SUBNETS),
                    "securityGroupIds": [],
                    "clusterSecurityGroupId": SECURITY_GROUP,
                    "vpcId": VPC,
                    "endpointPublicAccess": False,
                    "endpointPrivateAccess": True,
                },
                "status": "ACTIVE",
                "platformVersion": "eks.1",
                "tags": self._cluster_tags,
                "health": {"issues": []},
                "accessConfig": {"authenticationMode": "API_AND_CONFIG_MAP"},
            }
        }

    # --- node groups ---------------------------------------------------------------------------------------------

    def create_nodegroup(self, params: Params) -> Params:
        """CREATING; idempotent by clientRequestToken for the same request."""
        self._need_cluster(params["clusterName"])
        name, token = params["nodegroupName"], params.pop("clientRequestToken", "")
        existing = self._world.node_groups.get(f"{self._cluster}/{name}")
        if existing is not None:
            if token and existing.token == token and existing.request["_sent"] == _fingerprint(params):
                return {"nodegroup": self._describe(existing)}
            raise AwsError(
                "ResourceInUseException",
                f"NodeGroup already exists with name {name} and cluster name {self._cluster}",
                fields={"clusterName": self._cluster, "nodegroupName": name},
            )
        sent = _fingerprint(params)
        self._world.node_groups[f"{self._cluster}/{name}"] = group = self._new_group(params, token, sent)
        return {"nodegroup": self._describe(group)}

    def _new_group(self, params: Params, token: str, sent: str) -> NodeGroup:
        template, data = None, None
        request = dict(params)
        if "launchTemplate" in request:
            template, number, data = template_version(self._world, request["launchTemplate"])
            request["launchTemplate"] = {"id": template.id, "name": template.name, "version": str(number)}
        # Sizes left out: EKS takes 2 for all three; what is given bounds what is not.
        given = request.get("scalingConfig", {})
        minimum = given.get("minSize", min(given.get("desiredSize", 1), given.get("maxSize", 1)))
        maximum = given.get("maxSize", max(2, minimum, given.get("desiredSize", 2)))
        desired = given.get("desiredSize", max(minimum, min(2, maximum)))
        request["scalingConfig"] = {"minSize": minimum, "maxSize": maximum, "desiredSize": desired}
        request.setdefault("capacityType", "ON_DEMAND")
        if template is None:
            request.setdefault("instanceTypes", ["t3.medium"])
            request.setdefault("diskSize", 20)
        if data is not None and self._faults.denies("ec2", "RunInstances"):
            text = "You are not authorized to launch instances with this launch template."
            raise AwsError("InvalidRequestException", text)
        check_create(request, data)
        check_scaling(request["scalingConfig"], nodes_quota=self._faults.quota("nodes", NODES_PER_GROUP))
        most = self._faults.quota("nodegroups", NODEGROUPS_PER_CLUSTER)
        if len(self._world.node_groups) >= most:
            raise AwsError(
                "ResourceLimitExceededException",
                f"Nodegroup limit exceeded: cluster {self._cluster} has the maximum of {most} node groups.",
                fields={"clusterName": self._cluster, "nodegroupName": params["nodegroupName"]},
            )
        custom = data is not None and "ImageId" in data
        types = [data["InstanceType"]] if data and "InstanceType" in data else request["instanceTypes"]
        request.setdefault("amiType", "CUSTOM" if custom else _default_ami(types))
        request.setdefault("updateConfig", {"maxUnavailable": 1})
        if not custom:
            request.setdefault("version", facts.KUBERNETES_VERSION)
            request.setdefault("releaseVersion", facts.RELEASE_VERSION)
        request["_sent"] = sent
        now, stamp = self._clock.now(), self._clock.timestamp()
        return NodeGroup(
            name=params["nodegroupName"],
            cluster=self._cluster,
            request=request,
            token=token,
            created_at=stamp,
            modified_at=stamp,
            template_data=data or {},
            asg_due=now + self._timings.group_asg_created,
            ready_due=now + self._timings.group_active,
            timeout_due=now + self._timings.group_create_timeout,
        )

    def _group(self, params: Params) -> NodeGroup:
        self._need_cluster(params["clusterName"])
        name = params["nodegroupName"]
        group = self._world.node_groups.get(f"{self._cluster}/{name}")
        if group is None:
            raise AwsError(
                "ResourceNotFoundException",
                f"No node group found for name: {name}.",
                fields={"clusterName": self._cluster, "nodegroupName": name},
            )
        return group

    def describe_nodegroup(self, params: Params) -> Params:
        """One group as it is now."""
        return {"nodegroup": self._describe(self._group(params))}

    def list_nodegroups(self, params: Params) -> Params:
        """Names, paged."""
        self._need_cluster(params["clusterName"])
        names = sorted(group.name for group in self._world.node_groups.values())
        page, token = _page(names, params)
        return {"nodegroups": page, "nextToken": token}

    def delete_nodegroup(self, params: Params) -> Params:
        """DELETING, from any state; asked again it answers the same."""
        group = self._group(params)
        busy = group.status in ("CREATING", "UPDATING")
        if busy and self._faults.has("busy-refuses-delete", nodegroup=group.name):
            raise AwsError(
                "ResourceInUseException",
                f"Nodegroup {group.name} cannot be deleted as it is currently in {group.status} state",
                fields={"clusterName": self._cluster, "nodegroupName": group.name},
            )
        if group.status != "DELETING":
            self._life.start_delete(group, self._clock.now())
        return {"nodegroup": self._describe(group)}

    def _describe(self, group: NodeGroup) -> Params:
        request = group.request
        kept = (
            "version", "releaseVersion", "capacityType", "subnets", "remoteAccess", "amiType", "nodeRole", "diskSize",
            "updateConfig", "nodeRepairConfig", "launchTemplate", "warmPoolConfig",
        )  # fmt: skip
        answer: Params = {name: request[name] for name in kept if name in request}
        if request.get("instanceTypes"):
            answer["instanceTypes"] = request["instanceTypes"]
        return answer | {
            "nodegroupName": group.name,
            "nodegroupArn": group.arn,
            "clusterName": group.cluster,
            "createdAt": group.created_at,
            "modifiedAt": group.modified_at,
            "status": group.status,
            "scalingConfig": group.scaling,
            "labels": request.get("labels", {}),
            "taints": request.get("taints", []),
            "tags": group.tags,
            "resources": {"autoScalingGroups": [{"name": group.asg}]} if group.asg else {},
            "health": {"issues": [_issue(issue) for issue in group.issues]},
        }

    # --- updates -------------------------------------------------------------------------------------------------

    def update_nodegroup_config(self, params: Params) -> Params:
        """UPDATING, one update at a time, only where the group is ACTIVE."""
        group = self._group(params)
        token = params.get("clientRequestToken", "")
        for update in group.updates.values():
            if token and update.token == token:
                return {"update": _update(update)}
        allowed = group.status == "ACTIVE" or (
            group.status == "DEGRADED" and self._faults.has("degraded-accepts-updates", nodegroup=group.name)
        )
        if not allowed:
            raise AwsError(
                "ResourceInUseException",
                "Nodegroup cannot be updated as it is currently not in Active State",
                fields={"clusterName": self._cluster, "nodegroupName": group.name},
            )
        names = ("labels", "taints", "scalingConfig", "updateConfig", "nodeRepairConfig", "warmPoolConfig")
        change = {name: params[name] for name in names if name in params}
        if not change:
            raise invalid("At least one of labels, taints, scalingConfig and updateConfig must be given.")
        self._check_change(group, change)
        now = self._clock.now()
        update = Update(
            id=str(uuid.uuid4()),
            params=_update_params(change),
            created_at=self._clock.timestamp(),
            due=now + self._timings.group_update,
            change=change,
            token=token,
        )
        group.updates[update.id] = update
        group.status, group.modified_at = "UPDATING", self._clock.timestamp()
        return {"update": _update(update)}

    def _check_change(self, group: NodeGroup, change: Params) -> None:
        if "scalingConfig" in change:
            quota = self._faults.quota("nodes", NODES_PER_GROUP)
            check_scaling(group.scaling | change["scalingConfig"], nodes_quota=quota)
        labels, taints = change.get("labels", {}), change.get("taints", {})
        check_labels(labels.get("addOrUpdateLabels", {}))
        both = set(labels.get("addOrUpdateLabels", {})) & set(labels.get("removeLabels", []))
        if both:
            raise invalid(f"Labels cannot be both updated and removed: {', '.join(sorted(both))}")
        check_taints(taints.get("addOrUpdateTaints", []))
        check_update_config(change.get("updateConfig"))

    def describe_update(self, params: Params) -> Params:
        """One update of a group."""
        self._need_cluster(params["name"])
        if "nodegroupName" not in params:
            raise AwsError("ResourceNotFoundException", f"No update found for ID: {params['updateId']}")
        group = self._group({"clusterName": params["name"], "nodegroupName": params["nodegroupName"]})
        update = group.updates.get(params["updateId"])
        if update is None:
            raise AwsError("ResourceNotFoundException", f"No update found for ID: {params['updateId']}")
        return {"update": _update(update)}

    def list_updates(self, params: Params) -> Params:
        """Update ids of a group, paged."""
        self._need_cluster(params["name"])
        ids: list[str] = []
        if "nodegroupName" in params:
            group = self._group({"clusterName": params["name"], "nodegroupName": params["nodegroupName"]})
            ids = list(group.updates)
        page, token = _page(ids, params)
        return {"updateIds": page, "nextToken": token}

    # --- tags ----------------------------------------------------------------------------------------------------

    def _tags_of(self, arn: str) -> dict[str, str]:
        if arn == self._cluster_arn:
            return self._cluster_tags
        for group in self._world.node_groups.values():
            if group.arn == arn:
                return group.tags
        if not arn.startswith("arn:aws:eks:"):
            raise AwsError("BadRequestException", f"Invalid ARN: {arn}")
        raise AwsError("NotFoundException", f"Resource not found: {arn}")

    def tag_resource(self, params: Params) -> Params:
        """Add tags to a cluster or a node group (they reach no instance)."""
        tags = self._tags_of(params["resourceArn"])
        if len(tags | params["tags"]) > 50:
            raise AwsError("BadRequestException", "A resource has at most 50 tags.")
        tags.update(params["tags"])
        return {}

    def untag_resource(self, params: Params) -> Params:
        """Remove tags."""
        tags = self._tags_of(params["resourceArn"])
        for key in params["tagKeys"]:
            tags.pop(key, None)
        return {}

    def list_tags_for_resource(self, params: Params) -> Params:
        """The tags."""
        return {"tags": self._tags_of(params["resourceArn"])}


def _fingerprint(params: Params) -> str:
    return json.dumps(params, sort_keys=True)


def _default_ami(types: list[str]) -> str:
    info = facts.instance_type(types[0]) or {}
    arm = "arm64" in info.get("ProcessorInfo", {}).get("SupportedArchitectures", [])
    flavour = "NVIDIA" if facts.gpus(info) else "STANDARD"
    return f"AL2023_{'ARM_64' if arm else 'x86_64'}_{flavour}"


def _issue(issue: Issue) -> Params:
    return {"code": issue.code, "message": issue.message, "resourceIds": issue.resource_ids}


def _update(update: Update) -> Params:
    errors = [{"errorCode": e.code, "errorMessage": e.message, "resourceIds": e.resource_ids} for e in update.errors]
    return {
        "id": update.id,
        "status": update.status,
        "type": "ConfigUpdate",
        "params": update.params,
        "createdAt": update.created_at,
        "errors": errors,
    }


def _update_params(change: Params) -> list[dict[str, str]]:
    words = {"labels": "LabelsToAdd", "taints": "TaintsToAdd", "updateConfig": "MaxUnavailable"}
    params: list[dict[str, str]] = []
    for name, value in change.items():
        if name == "scalingConfig":
            for key in ("minSize", "maxSize", "desiredSize"):
                if key in value:
                    params.append({"type": key[0].upper() + key[1:], "value": str(value[key])})
        elif name in words:
            params.append({"type": words[name], "value": json.dumps(value, sort_keys=True)})
    return params


def _page(items: list[str], params: Params) -> tuple[list[str], str | None]:
    size, token = params.get("maxResults", 100), params.get("nextToken", "0")
    if not token.isdecimal():
        raise invalid("Invalid nextToken.")
    start = int(token)
    following = start + size
    return items[start:following], str(following) if following < len(items) else None
