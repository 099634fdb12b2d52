"""Where a role's pods run: the node requirements of a role, and the MoERLNodeClass that an admin owns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moerl_operator.api.base import ApiModel, Cel, ListKind, ListMap, immutable

CapacityType = Literal["OnDemand", "Spot", "CapacityBlock", "Reserved"]
Provisioner = Literal["ManagedNodeGroup", "Existing"]
OnFinish = Literal["Delete", "ScaleToZero", "Retain"]

Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
# EC2 instance types are family.size; `local` is the one real node of the local cluster.
InstanceType = Annotated[str, Field(min_length=2, max_length=40, pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)?$")]
Zone = Annotated[str, Field(min_length=4, max_length=40, pattern=r"^[a-z0-9-]+$")]


class NodeRequirements(ApiModel):
    """The nodes of one role or pool."""

    cel = (
        Cel(
            "self.provisioner != 'ManagedNodeGroup' || (has(self.instanceTypes) && size(self.instanceTypes) > 0)",
            "instanceTypes is required when provisioner is ManagedNodeGroup",
            ".instanceTypes",
        ),
        Cel(
            "self.provisioner != 'Existing' || has(self.nodeSelector)",
            "nodeSelector is required when provisioner is Existing",
            ".nodeSelector",
        ),
        Cel(
            "self.provisioner == 'Existing' || !has(self.nodeSelector)",
            "nodeSelector is only for provisioner Existing",
            ".nodeSelector",
        ),
        Cel(
            "!(self.capacityType in ['CapacityBlock', 'Reserved']) || has(self.capacityReservation)",
            "capacityReservation is required when capacityType is CapacityBlock or Reserved",
            ".capacityReservation",
        ),
        Cel(
            "self.capacityType in ['CapacityBlock', 'Reserved'] || !has(self.capacityReservation)",
            "capacityReservation is only for capacityType CapacityBlock or Reserved",
            ".capacityReservation",
        ),
        Cel(
            "self.capacityType != 'CapacityBlock' || !has(self.instanceTypes) || size(self.instanceTypes) == 1",
            "a Capacity Block is of one instance type: give exactly one of instanceTypes",
            ".instanceTypes",
        ),
    )

    node_class_name: Name = Field("default", description="The MoERLNodeClass that says what these nodes may be.")
    provisioner: Annotated[Provisioner, immutable("provisioner")] = Field(
        "ManagedNodeGroup", description="ManagedNodeGroup makes EKS node groups; Existing uses nodes that are there."
    )
    count: int | None = Field(
        None,
        ge=1,
        le=450,
        description="Number of nodes. Trainer: one pod per node, required. Pools: default replicas x nodesPerReplica.",
    )
    instance_types: Annotated[list[InstanceType] | None, ListKind("atomic")] = Field(
        None, max_length=20, description="EC2 instance types in order of preference; all with the same EFA layout."
    )
    capacity_type: CapacityType = Field("OnDemand", description="How the instances are bought.")
    capacity_reservation: str | None = Field(
        None, min_length=3, max_length=64, pattern=r"^cr-[a-z0-9]+$", description="Id of a reservation or block."
    )
    zones: Annotated[list[Zone] | None, ListKind("atomic")] = Field(
        None, max_length=6, description="Availability zones in order of preference; default: the class's subnets."
    )
    placement_group: str | None = Field(None, min_length=1, max_length=255, description="Name of a placement group.")
    node_selector: dict[Annotated[str, Field(max_length=316)], Annotated[str, Field(max_length=63)]] | None = Field(
        None, max_length=16, description="Labels of the nodes to use; only for provisioner Existing."
    )
    on_finish: OnFinish | None = Field(
        None,
        description="What becomes of the nodes when the job ends. Default Retain for reserved capacity, else Delete.",
    )


class Subnet(ApiModel):
    """One subnet that node groups may use; every node group is in exactly one."""

    id: str = Field(min_length=8, max_length=32, pattern=r"^subnet-[a-z0-9]+$")
    zone: Zone


class RootVolume(ApiModel):
    """The root volume of every instance."""

    size_gib: int = Field(200, ge=20, le=16384, alias="sizeGiB")
    type: Literal["gp3", "io2"] = "gp3"
    iops: int | None = Field(None, ge=3000, le=256000)
    throughput_mib: int | None = Field(None, ge=125, le=2000, alias="throughputMiB")


class EnvVar(ApiModel):
    """A plain environment variable; secrets belong into the pod template."""

    name: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    value: str = Field("", max_length=4096)


class ClassDefaults(ApiModel):
    """What pods of jobs that use this class get unless their template says otherwise."""

    image: str | None = Field(None, min_length=1, max_length=512)
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    service_account_name: Name | None = None
    env: Annotated[list[EnvVar] | None, ListMap(("name",))] = Field(None, max_length=64)


class NodeClassSpec(ApiModel):
    """What nodes and pods jobs may ask for; a job names a class and can never name an ARN."""

    node_role_arn: str = Field(
        min_length=20,
        max_length=256,
        pattern=r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$",
        description="IAM role of the instances. Dedicated to the node groups of this installation: EKS unmaps it "
        "with the last group.",
    )
    subnets: Annotated[list[Subnet], ListMap(("id",))] = Field(min_length=1, max_length=16)
    security_group_ids: Annotated[
        list[Annotated[str, Field(max_length=32, pattern=r"^sg-[a-z0-9]+$")]], ListKind("set")
    ] = Field(min_length=1, max_length=5, description="Must let all traffic within the group through (EFA is not IP).")
    ami_id: str | None = Field(None, max_length=32, pattern=r"^ami-[a-z0-9]+$", description="Custom AMI.")
    ami_type: str | None = Field(
        None, max_length=40, pattern=r"^[A-Z0-9a-z_]+$", description="EKS AMI type; default by instance type."
    )
    release_version: str | None = Field(None, max_length=64)
    root_volume: RootVolume = Field(default_factory=RootVolume)
    user_data: str | None = Field(
        None, max_length=12288, description="Extra shell script of the instances, run before the node joins."
    )
    allowed_instance_types: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z0-9*.-]+$")]] | None, ListKind("set")
    ] = Field(None, max_length=128, description="Exact types or globs such as p5*; absent: all.")
    allowed_namespaces: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9*-]+$")]] | None, ListKind("set")
    ] = Field(None, max_length=256, description="Namespaces or globs; absent: all.")
    allowed_reservations: Annotated[
        list[Annotated[str, Field(max_length=64, pattern=r"^cr-[a-z0-9]+$")]] | None, ListKind("set")
    ] = Field(None, max_length=64, description="Capacity reservations that jobs may name; absent: none.")
    max_nodes: int | None = Field(None, ge=1, le=10000, description="Most nodes one job may ask of this class.")
    gang_hold_seconds: int = Field(
        900, ge=60, le=86400, description="How long an incomplete gang holds its nodes before they are given back."
    )
    permitted_host_paths: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=512, pattern=r"^/.*$")]] | None, ListKind("set")
    ] = Field(None, max_length=32, description="hostPath volumes (these folders and below) that templates may use.")
    permitted_capabilities: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[A-Z_]+$")]] | None, ListKind("set")
    ] = Field(None, max_length=16, description="Linux capabilities that templates may add.")
    allow_privileged: bool = Field(False, description="Whether templates may be privileged or use host namespaces.")
    defaults: ClassDefaults = Field(default_factory=ClassDefaults)


class NodeClass(ApiModel):
    """MoERLNodeClass: cluster-scoped, owned by the admin."""

    cel = (Cel("size(self.metadata.name) <= 63", "the name of a MoERLNodeClass is at most 63 characters"),)

    spec: NodeClassSpec
