"""What was observed of a job. No floats and nothing fast-changing: rates are rounded and rarely written."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moerl_operator.api.base import ApiModel, ListKind, ListMap

Text = Annotated[str, Field(max_length=1024)]
Short = Annotated[str, Field(max_length=253)]
Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(ApiModel):
    """metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=63)]
    status: ConditionStatus
    observed_generation: int = Field(0, ge=0)
    last_transition_time: Time
    reason: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z]([A-Za-z0-9]*)$")]
    message: Annotated[str, Field(max_length=4096)] = ""


class RoleStatus(ApiModel):
    """One role, or one pool of the rollout role."""

    name: Annotated[str, Field(max_length=63)]
    role: Annotated[str, Field(max_length=63)]
    desired: int = 0
    ready: int = 0
    failed: int = 0
    attempt: int = Field(0, description="Highest attempt of the trainer; 0 for roles that have none.")
    restarts: int = Field(0, description="Budget spent by application failures.")
    message: Text | None = None


class NodeGroupStatus(ApiModel):
    """One node group, as EKS and Auto Scaling describe it."""

    name: Annotated[str, Field(max_length=63)]
    role: Annotated[str, Field(max_length=63)]
    status: Annotated[str, Field(max_length=40)]
    instance_type: Annotated[str, Field(max_length=40)] | None = None
    zone: Annotated[str, Field(max_length=40)] | None = None
    desired: int = 0
    ready: int = 0
    since: Time | None = Field(None, description="When the group became complete or incomplete.")
    message: Text | None = None


class Throughput(ApiModel):
    """Rates over the last reporting interval, rounded."""

    samples_per_second: Annotated[str, Field(max_length=24)] | None = None
    tokens_per_second: Annotated[str, Field(max_length=24)] | None = None


class TransportStatus(ApiModel):
    """Requested against effective transport; Unknown until something has measured it."""

    requested: Annotated[str, Field(max_length=24)]
    effective: Annotated[str, Field(max_length=24)] = "Unknown"
    evidence: Text | None = None


class LastFailure(ApiModel):
    """The latest failure of any role."""

    role: Annotated[str, Field(max_length=63)]
    child: Short
    attempt: int = 0
    kind: Literal["Application", "Infrastructure"]
    pod: Short | None = None
    container: Annotated[str, Field(max_length=63)] | None = None
    reason: Annotated[str, Field(max_length=63)]
    exit_code: int | None = None
    message: Text = ""
    time: Time


class Display(ApiModel):
    """The printed columns."""

    state: Annotated[str, Field(max_length=40)]
    iteration: Annotated[str, Field(max_length=40)] | None = None
    reward: Annotated[str, Field(max_length=24)] | None = None
    trainers: Annotated[str, Field(max_length=24)] | None = None
    rollouts: Annotated[str, Field(max_length=24)] | None = None
    samples_per_second: Annotated[str, Field(max_length=24)] | None = None
    transport: Annotated[str, Field(max_length=24)] | None = None
    cost_per_hour: Annotated[str, Field(max_length=24)] | None = None


class Status(ApiModel):
    """Written by the operator alone, once per reconcile, by server-side apply."""

    observed_generation: int = Field(0, ge=0)
    conditions: Annotated[list[Condition], ListMap(("type",))] = Field(default_factory=list, max_length=32)
    roles: Annotated[list[RoleStatus], ListMap(("name",))] = Field(default_factory=list, max_length=16)
    node_groups: Annotated[list[NodeGroupStatus], ListMap(("name",))] = Field(default_factory=list, max_length=64)
    policy_version: int | None = None
    iteration: int | None = None
    throughput: Throughput | None = None
    transport: TransportStatus | None = None
    cost_per_hour_usd: Annotated[str, Field(max_length=24)] | None = None
    restarts: int = Field(0, description="Attempts beyond the first, over all roles.")
    last_failure: LastFailure | None = None
    final_policy: Annotated[str, Field(max_length=1024)] | None = Field(None, description="Where the result is.")
    start_time: Time | None = None
    completion_time: Time | None = None
    last_progress_time: Time | None = None
    resolved_ami: Annotated[list[Annotated[str, Field(max_length=253)]], ListKind("atomic")] | None = Field(
        None, max_length=16, description="AMI release resolved once per job, per node class."
    )
    display: Display | None = None
