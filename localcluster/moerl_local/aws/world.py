"""What exists in the emulated account: plain data, written to one JSON file so that a restart loses nothing."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

ACCOUNT = "111122223333"
REGION = "us-east-1"
ZONES = {"us-east-1a": "use1-az1", "us-east-1b": "use1-az2", "us-east-1c": "use1-az4"}
VPC = "vpc-00000000000000001"
SUBNETS = {f"subnet-0000000000000000{zone[-1]}": zone for zone in ZONES}
SECURITY_GROUP = "sg-00000000000000001"
NODE_ROLE = f"arn:aws:iam::{ACCOUNT}:role/moerl-node"
LOCAL_TYPE = "local"

GroupStatus = Literal["CREATING", "ACTIVE", "UPDATING", "DELETING", "CREATE_FAILED", "DELETE_FAILED", "DEGRADED"]
LIVE = ("pending", "running")


class Issue(BaseModel):
    """One entry of a node group's health."""

    code: str
    message: str
    resource_ids: list[str] = []


class Update(BaseModel):
    """One UpdateNodegroupConfig: what it will apply when `due`."""

    id: str
    status: Literal["InProgress", "Failed", "Cancelled", "Successful"] = "InProgress"
    params: list[dict[str, str]]
    created_at: float
    due: float
    change: dict[str, Any]
    errors: list[Issue] = []
    token: str = ""


class NodeGroup(BaseModel):
    """An EKS managed node group. Times called `..._at` are Unix times, `..._due` emulated moments."""

    name: str
    cluster: str
    uid: str = Field(default_factory=lambda: str(uuid.uuid4()))
    request: dict[str, Any]  # the parameters of CreateNodegroup, with defaults filled in
    token: str = ""
    status: GroupStatus = "CREATING"
    issues: list[Issue] = []
    created_at: float
    modified_at: float
    asg: str | None = None
    template_data: dict[str, Any] = {}  # the launch template as it was when the group was made
    updates: dict[str, Update] = {}
    labels_revision: int = 0
    asg_due: float | None = None
    ready_due: float | None = None
    timeout_due: float | None = None
    degrade_due: float | None = None
    sync_due: float | None = None
    delete_due: float | None = None

    @property
    def arn(self) -> str:
        """The group's ARN."""
        return f"arn:aws:eks:{REGION}:{ACCOUNT}:nodegroup/{self.cluster}/{self.name}/{self.uid}"

    @property
    def scaling(self) -> dict[str, int]:
        """EKS's own idea of minSize, maxSize, desiredSize; the Auto Scaling group's may be ahead of it."""
        scaling: dict[str, int] = self.request["scalingConfig"]
        return scaling

    @property
    def instance_types(self) -> list[str]:
        """The types it may launch, in order of preference."""
        own = self.template_data.get("InstanceType")
        return [own] if own else list(self.request.get("instanceTypes", []))

    @property
    def capacity_type(self) -> str:
        """ON_DEMAND, SPOT or CAPACITY_BLOCK."""
        return str(self.request["capacityType"])

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the EKS resource; they reach no instance."""
        tags: dict[str, str] = self.request.setdefault("tags", {})
        return tags


class Activity(BaseModel):
    """One scaling activity. `failure` is the text that it will fail with when `due`."""

    id: str = Field(default_factory=lambda: str(uuid.uuid4()))
    description: str
    cause: str
    started_at: float
    ended_at: float | None = None
    status: Literal["InProgress", "Successful", "Failed", "Cancelled"] = "InProgress"
    message: str = ""
    progress: int = 30
    details: str = "{}"
    failure: str = ""
    due: float | None = None
    instance: str = ""


class AutoScalingGroup(BaseModel):
    """The Auto Scaling group of a node group."""

    name: str
    uid: str = Field(default_factory=lambda: str(uuid.uuid4()))
    cluster: str
    nodegroup: str
    minimum: int
    maximum: int
    desired: int
    tags: dict[str, dict[str, Any]] = {}  # key -> {value, propagate}
    subnets: list[str]
    template_id: str
    created_at: float
    deleting: bool = False
    cause: str = ""  # why desired last changed, for the next activities
    launch_due: float | None = None
    activities: list[Activity] = []

    @property
    def arn(self) -> str:
        """The group's ARN."""
        return f"arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:{self.uid}:autoScalingGroupName/{self.name}"

    @property
    def failing(self) -> Activity | None:
        """The newest launch that has an outcome, where that is a failure."""
        ended = [a for a in self.activities if a.description.startswith("Launching") and a.status != "InProgress"]
        return ended[-1] if ended and ended[-1].status == "Failed" else None


class Instance(BaseModel):
    """One EC2 instance of an Auto Scaling group."""

    id: str
    asg: str
    nodegroup: str
    cluster: str
    type: str
    zone: str
    subnet: str
    address: str
    node_name: str
    capacity_type: str
    image: str
    template_id: str
    template_version: str
    tags: dict[str, str] = {}
    launched_at: float
    state: Literal["pending", "running", "shutting-down", "terminated"] = "pending"
    lifecycle: str = "Pending"  # the Auto Scaling lifecycle state; "" once it has left the group
    launch_activity: str = ""
    end_activity: str = ""
    reason: str = ""
    joined: bool = False
    will_join: bool = True
    drained: bool = False
    running_due: float | None = None
    join_due: float | None = None
    drain_due: float | None = None
    gone_due: float | None = None
    forget_due: float | None = None

    @property
    def counts(self) -> bool:
        """Whether it counts towards the group's desired size."""
        return self.lifecycle in ("Pending", "InService") and self.state in LIVE

    @property
    def provider_id(self) -> str:
        """The node's spec.providerID."""
        return f"aws:///{self.zone}/{self.id}"


class TemplateVersion(BaseModel):
    """One version of a launch template."""

    number: int
    description: str = ""
    data: dict[str, Any]
    created_at: float


class LaunchTemplate(BaseModel):
    """An EC2 launch template; `managed` marks the copies that EKS makes for itself."""

    id: str
    name: str
    token: str = ""
    request: dict[str, Any] = {}
    created_at: float
    default: int = 1
    versions: list[TemplateVersion]
    tags: dict[str, str] = {}
    managed: bool = False


class World(BaseModel):
    """Everything in the account."""

    now: float = 0.0
    node_groups: dict[str, NodeGroup] = {}  # cluster/name
    scaling_groups: dict[str, AutoScalingGroup] = {}
    instances: dict[str, Instance] = {}
    templates: dict[str, LaunchTemplate] = {}
    faults: list[dict[str, Any]] = []
    local_labels: list[str] = []  # label keys that the joiner has put on the real node
    addresses: int = 0  # how many private addresses were ever given out

    def instances_of(self, asg: str) -> list[Instance]:
        """Instances that a group ever had, oldest first, without those that are forgotten."""
        return [instance for instance in self.instances.values() if instance.asg == asg]

    def counted(self, asg: str) -> list[Instance]:
        """Instances that count towards a group's desired size, oldest first."""
        return [instance for instance in self.instances_of(asg) if instance.counts]

    def next_address(self) -> str:
        """A private address in 10.1.0.0/16 that was never used before (wraps after 64,000)."""
        self.addresses += 1
        index = self.addresses + 9
        return f"10.1.{index // 250 % 256}.{index % 250 + 4}"

    def leftovers(self) -> dict[str, list[str]]:
        """What a test may want to be empty in the end: everything that costs money or blocks a name."""
        return {
            "nodeGroups": sorted(self.node_groups),
            "autoScalingGroups": sorted(self.scaling_groups),
            "instances": sorted(i.id for i in self.instances.values() if i.state != "terminated"),
            "launchTemplates": sorted(t.name for t in self.templates.values()),
        }


def new_id(prefix: str) -> str:
    """An EC2-shaped identifier: prefix and 17 hexadecimal digits."""
    return f"{prefix}-0{uuid.uuid4().hex[:16]}"


class Store:
    """Keeps a World in a file, replaced in one step; without a folder it keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / "aws.json" if folder else None

    def load(self) -> World:
        """The world of the last run, or an empty one. Raises ValueError with the file's name if it is unreadable."""
        if self._path is None or not self._path.exists():
            return World()
        try:
            return World.model_validate_json(self._path.read_text())
        except ValueError as error:
            raise ValueError(f"{self._path} is not a state of this emulator; move it away: {error}") from error

    def save(self, world: World) -> None:
        """Write it down."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(world.model_dump_json())
        os.replace(temporary, self._path)
