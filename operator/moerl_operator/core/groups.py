"""Node groups of one job as data: their names and numbers, and the full wish for a new one."""

from __future__ import annotations

from dataclasses import dataclass

from moerl_operator.api import names
from moerl_operator.api.nodes import NodeClassSpec, Subnet
from moerl_operator.core.view import Part, View
from moerl_operator.core.world import NodeGroupObservation, NodeGroupSpec
from moerl_operator.manifests import pods
from moerl_operator.manifests.context import RoleContext

# 2 MiB pages that the EFA driver of one process may take (EKS user guide, node-efa), above what the pods ask for.
EFA_HUGEPAGES = 5128
LOCAL = "local"  # the instance type whose instances are all the one real node of the local cluster


@dataclass(frozen=True, slots=True)
class Numbered:
    """A group of this job with its place in the series of its part."""

    number: int
    group: NodeGroupObservation

    @property
    def name(self) -> str:
        """Name in EKS."""
        return self.group.name

    @property
    def revision(self) -> str:
        """The words of the user that it was made from."""
        return self.group.tags.get(names.TAG_REVISION, "")

    @property
    def zone(self) -> str:
        """Its availability zone, also before it has an Auto Scaling group."""
        return self.group.zone or self.group.tags.get(names.TAG_ZONE, "")

    @property
    def empty(self) -> bool:
        """Nothing bought and nothing being bought."""
        return self.group.desired == 0 and self.group.in_service == 0 and self.group.pending == 0


def split_name(uid: str, name: str) -> tuple[str, int] | None:
    """(part, number) of a group's or launch template's name, None when it is not of this job."""
    prefix = f"moerl-{names.uid8(uid)}-"
    key, _, number = name.removeprefix(prefix).rpartition("-")
    if not name.startswith(prefix) or not key or not number.isdigit():
        return None
    return key, int(number)


def of_part(view: View, key: str) -> list[Numbered]:
    """Groups of a part that AWS has, oldest first."""
    found = []
    for group in own(view):
        split = split_name(view.uid, group.name)
        if split and split[0] == key:
            found.append(Numbered(split[1], group))
    return sorted(found, key=lambda n: n.number)


def own(view: View) -> list[NodeGroupObservation]:
    """Groups that belong to this job; one handed over to a class no longer does."""
    return [g for g in view.snap.aws.node_groups if g.tags.get(names.TAG_OWNER) == owner_tag(view)]


def owner_tag(view: View) -> str:
    """Value of the owner tag on everything that this job makes in AWS."""
    return f"job/{view.uid}"


def next_number(view: View, key: str) -> int:
    """One more than the highest number that AWS or the status knows: a number is never used twice."""
    known = [n.number for n in of_part(view, key)]
    for row in view.status.get("nodeGroups") or ():
        split = split_name(view.uid, str(row.get("name", "")))
        if split and split[0] == key:
            known.append(split[1])
    return max(known, default=0) + 1


def subnets(view: View, part: Part) -> list[Subnet]:
    """Subnets to try, in the order in which the user prefers their zones, else in the class's order."""
    offered = view.node_class(part).subnets
    if not part.nodes.zones:
        return list(offered)
    return [s for zone in part.nodes.zones for s in offered if s.zone == zone]


def next_subnet(view: View, part: Part, before: Numbered | None) -> Subnet:
    """The subnet after the one that just failed, round and round; the first one for another revision."""
    choice = subnets(view, part)
    if before is None or before.revision != view.nodes_revision(part):
        return choice[0]
    zones = [s.zone for s in choice]
    position = zones.index(before.zone) + 1 if before.zone in zones else 0
    return choice[position % len(choice)]


def tags(view: View, *, role: str, group: str, zone: str, revision: str) -> dict[str, str]:
    """Tags of the group, and through its launch template of every instance, volume and interface."""
    inst = view.snap.installation
    return {
        names.TAG_INSTALLATION: inst.id,
        names.TAG_CLUSTER: inst.cluster_arn,
        names.TAG_OWNER: owner_tag(view),
        names.TAG_JOB: f"{view.namespace}/{view.name}",
        names.TAG_ROLE: role,
        names.TAG_GROUP: group,
        names.TAG_ZONE: zone,
        names.TAG_REVISION: revision,
    }


def resolved_amis(view: View) -> dict[str, str]:
    """AMI by class as resolved when the job's first group was made: `<class>=<ami id>` or `<class>=@<release>`."""
    out = {}
    for item in view.status.get("resolvedAmi") or ():
        name, _, value = str(item).partition("=")
        out[name] = value
    return out


def pinned_ami(node_class: NodeClassSpec) -> str:
    """The AMI that a class names, in the words of the status; empty when AWS chooses the release."""
    if node_class.ami_id:
        return node_class.ami_id
    return f"@{node_class.release_version}" if node_class.release_version else ""


def ami_type(view: View, part: Part) -> str:
    """EKS AMI type by what the instances have."""
    wished = view.node_class(part).ami_type
    if wished:
        return wished
    facts = view.facts(part)
    cpu = "ARM_64" if facts.architecture == "arm64" else "x86_64"
    return f"AL2023_{cpu}_NVIDIA" if facts.gpus else f"AL2023_{cpu}_STANDARD"


def role_context(view: View, part: Part) -> RoleContext:
    """The part as the builders see it, without a place yet."""
    return RoleContext(
        job=view.job_context,
        role=part.role,
        part=part.key,
        revision=view.pods_revision(part),
        node_class=view.node_class(part),
        facts=view.facts(part),
        gang=gang_size(part),
        pool=part.pool.name if part.pool else "",
        template=part.template(view.raw_spec),
    )


def gang_size(part: Part) -> int:
    """Pods that run as one."""
    if part.pool:
        return part.pool.nodes_per_replica
    return part.count if part.role == names.TRAINER else 1


def new_group(view: View, part: Part, before: Numbered | None) -> NodeGroupSpec:
    """The complete wish for the next group of a part."""
    node_class = view.node_class(part)
    facts = view.facts(part)
    name = names.node_group(view.uid, part.key, next_number(view, part.key))
    subnet = next_subnet(view, part, before)
    ami = resolved_amis(view).get(part.nodes.node_class_name, pinned_ami(node_class))
    efa = pods.wants_efa(role_context(view, part))
    revision = view.nodes_revision(part)
    return NodeGroupSpec(
        name=name,
        role=part.role,
        group_key=part.key,
        instance_types=tuple(part.nodes.instance_types or ()),
        capacity_type=part.nodes.capacity_type,
        subnet=subnet.id,
        zone=subnet.zone,
        maximum=part.count,
        node_role_arn=node_class.node_role_arn,
        security_groups=tuple(node_class.security_group_ids),
        labels={part.label: name},
        taints=((names.TAINT_DEDICATED, names.uid8(view.uid)),),
        tags=tags(view, role=part.role, group=name, zone=subnet.zone, revision=revision),
        ami_type=ami_type(view, part),
        ami_id=ami if ami.startswith("ami-") else None,
        release_version=ami[1:] if ami.startswith("@") else None,
        root_volume_gib=node_class.root_volume.size_gib,
        root_volume_type=node_class.root_volume.type,
        root_volume_iops=node_class.root_volume.iops,
        root_volume_throughput=node_class.root_volume.throughput_mib,
        user_data=node_class.user_data,
        efa_interfaces=facts.efa_interfaces if efa else 0,
        network_cards=facts.network_cards,
        efa_on_card_zero=facts.efa_on_card_zero,
        hugepages_2mi=EFA_HUGEPAGES if efa else 0,
        capacity_reservation=part.nodes.capacity_reservation,
        placement_group=part.nodes.placement_group,
        revision=revision,
    )
