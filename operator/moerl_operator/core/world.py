"""The two ends of the pure policy: a Snapshot of what was observed, and the Plan of what to do.

The control loop fills a Snapshot (observe), core.plan.plan turns it into a Plan, and the control
loop carries the Plan out (apply) and writes the status once. Both are plain data, so that a test
is a Snapshot and an assertion, without an API server and without AWS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Obj = dict[str, Any]


# --- what was observed -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Installation:
    """Facts of this operator installation; the same for every job."""

    id: str
    cluster_name: str
    cluster_arn: str
    operator_image: str = ""
    watched_namespaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """What an instance type has (ec2:DescribeInstanceTypes), and its price."""

    name: str
    gpus: int = 0
    efa_interfaces: int = 0
    network_cards: int = 1
    efa_on_card_zero: bool = True
    vcpus: int = 0
    memory_mib: int = 0
    architecture: str = "x86_64"
    usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class NodeGroupObservation:
    """One node group as EKS and its Auto Scaling group describe it, at one moment.

    `status` is EKS's word (CREATING, ACTIVE, UPDATING, DEGRADED, CREATE_FAILED, DELETING,
    DELETE_FAILED). `desired` and `in_service` come from Auto Scaling, because EKS's own numbers lag.
    `failures` are the messages of failed scaling activities since `desired` last changed, newest first.
    """

    name: str
    status: str
    tags: Mapping[str, str]
    desired: int = 0
    minimum: int = 0
    maximum: int = 0
    in_service: int = 0
    pending: int = 0
    asg_name: str = ""
    instance_types: tuple[str, ...] = ()
    zone: str = ""
    launch_template_id: str = ""
    issues: tuple[tuple[str, str], ...] = ()  # (health issue code, message)
    failures: tuple[str, ...] = ()
    release_version: str = ""  # of the AMI, as EKS resolved it
    autoscaler_tags: bool = False  # k8s.io/cluster-autoscaler/* still on the Auto Scaling group
    arn: str = ""


@dataclass(frozen=True, slots=True)
class AwsError:
    """A failed AWS call, sorted: Retry, Terminal, NotFound, Capacity or Quota."""

    operation: str
    code: str
    message: str
    kind: Literal["Retry", "Terminal", "NotFound", "Capacity", "Quota"]


@dataclass(frozen=True, slots=True)
class AwsObservation:
    """What AWS holds for one job; `error` set means that nothing is known, not that nothing is there.

    `refused` is the latest mutation of this job that AWS refused, kept by the control loop until one
    succeeds; no further mutation is planned before `retry_at`, which the control loop sets with its
    exponential backoff. Launch templates are named like their group.
    """

    node_groups: tuple[NodeGroupObservation, ...] = ()
    launch_templates: Mapping[str, str] = field(default_factory=dict)  # name -> id
    error: AwsError | None = None
    refused: AwsError | None = None
    retry_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the policy may know about one job.

    `job` is the custom resource as the server sent it (metadata, spec, status). Children are the
    objects whose label moerl.dev/job-uid is this job's UID; `foreign` names children that stand
    under a name of ours with another UID. `nodes` are all nodes carrying a label of one of the job's
    groups (or matching an Existing selector). `now` is the only clock. `dry_run_error` is the server's
    answer to a dry-run create of the rendered children of this generation (None: not asked or accepted);
    a conflict with a child that exists counts as accepted, because the server validates first.
    `service_accounts` holds, beside the children, every ServiceAccount that the job or its classes name,
    whoever made it: one that exists is never made, changed or owned by us.
    """

    job: Obj
    now: datetime
    installation: Installation
    node_classes: Mapping[str, Obj] = field(default_factory=dict)
    instance_facts: Mapping[str, InstanceFacts] = field(default_factory=dict)
    jobs: tuple[Obj, ...] = ()
    pods: tuple[Obj, ...] = ()
    deployments: tuple[Obj, ...] = ()
    stateful_sets: tuple[Obj, ...] = ()
    services: tuple[Obj, ...] = ()
    config_maps: tuple[Obj, ...] = ()
    secrets: tuple[Obj, ...] = ()  # metadata only: values never enter the policy
    service_accounts: tuple[Obj, ...] = ()
    roles: tuple[Obj, ...] = ()
    role_bindings: tuple[Obj, ...] = ()
    network_policies: tuple[Obj, ...] = ()
    disruption_budgets: tuple[Obj, ...] = ()
    nodes: tuple[Obj, ...] = ()
    aws: AwsObservation = field(default_factory=AwsObservation)
    foreign: tuple[str, ...] = ()
    dry_run_error: str | None = None
    dry_run_done: bool = False  # the server has accepted this generation's children in a dry run


# --- what to do ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateChild:
    """POST a child that is made once and then left alone (Jobs, the buffer's Secret); existing is success."""

    obj: Obj
    generate_password: bool = False  # the Secret's value is made at apply time; the plan knows no randomness


@dataclass(frozen=True, slots=True)
class ApplyChild:
    """Server-side apply of a child that follows the spec."""

    obj: Obj


@dataclass(frozen=True, slots=True)
class PatchChild:
    """Merge patch of a child (a Job's suspend, an annotation)."""

    api_version: str
    kind: str
    name: str
    patch: Obj


@dataclass(frozen=True, slots=True)
class DeleteChild:
    """Delete a child of this job, by UID so that a namesake is left alone."""

    api_version: str
    kind: str
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class NodeGroupSpec:
    """A node group to create, complete: the AWS layer only translates it.

    Created at size 0 with min 0; `maximum` is the largest size it will be asked for.
    """

    name: str
    role: str
    group_key: str  # role, or pool name for rollouts
    instance_types: tuple[str, ...]
    capacity_type: str
    subnet: str
    zone: str
    maximum: int
    node_role_arn: str
    security_groups: tuple[str, ...]
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str], ...]  # (key, value), effect NO_SCHEDULE
    tags: Mapping[str, str]
    ami_type: str
    ami_id: str | None = None
    release_version: str | None = None
    root_volume_gib: int = 200
    root_volume_type: str = "gp3"
    root_volume_iops: int | None = None
    root_volume_throughput: int | None = None
    user_data: str | None = None
    efa_interfaces: int = 0
    network_cards: int = 1
    efa_on_card_zero: bool = True
    hugepages_2mi: int = 0
    capacity_reservation: str | None = None
    placement_group: str | None = None
    revision: str = ""


@dataclass(frozen=True, slots=True)
class CreateNodeGroup:
    """Create the launch template (if absent) and the group at size 0."""

    spec: NodeGroupSpec


@dataclass(frozen=True, slots=True)
class ScaleNodeGroup:
    """SetDesiredCapacity through Auto Scaling; the autoscaler's tags come off first.

    `maximum` is set when the group must be allowed to grow beyond what it was created for (eks:UpdateNodegroupConfig).
    """

    name: str
    asg_name: str
    desired: int
    drop_autoscaler_tags: bool = False
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class TerminateInstances:
    """TerminateInstanceInAutoScalingGroup with ShouldDecrementDesiredCapacity, for each of these idle instances."""

    name: str
    asg_name: str
    instance_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteNodeGroup:
    """Delete the group; its launch template follows once the group is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class DeleteLaunchTemplate:
    """Delete a launch template whose group is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class RetagNodeGroup:
    """Hand a retained group over to its class: new owner tags on group, template and Auto Scaling group."""

    name: str
    arn: str
    asg_name: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Present exactly while AWS objects of this job may exist."""

    present: bool


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the MoERLJob itself (ttlSecondsAfterFinished)."""


Action = (
    CreateChild
    | ApplyChild
    | PatchChild
    | DeleteChild
    | CreateNodeGroup
    | ScaleNodeGroup
    | TerminateInstances
    | DeleteNodeGroup
    | DeleteLaunchTemplate
    | RetagNodeGroup
    | SetFinalizer
    | DeleteJob
)


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """A Kubernetes Event about the job, posted only after its status write succeeded."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    action: str = "Reconcile"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in order; `status` is the whole status to apply, None to leave it.

    `dry_run` holds children to be validated by a dry-run create before anything is made; the control
    loop then reconciles again with `dry_run_error` or `dry_run_done` set.
    """

    actions: tuple[Action, ...] = ()
    status: Obj | None = None
    events: tuple[PlannedEvent, ...] = ()
    requeue_after: float | None = None  # seconds
    dry_run: tuple[Obj, ...] = ()
