"""The five roles of a job, and what each may say about its pods, its nodes and its failures."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from moerl_operator.api import names
from moerl_operator.api.base import ApiModel, Cel, ListKind, ListMap, PreserveUnknown, immutable
from moerl_operator.api.changes import POOL_NAMES
from moerl_operator.api.nodes import Name, NodeRequirements

PodTemplate = Annotated[dict[str, Any], PreserveUnknown()]


class FailureRule(ApiModel):
    """What a failure means; the first rule whose every given field matches decides."""

    cel = (
        Cel(
            "has(self.exitCodes) || has(self.reason) || has(self.messagePattern)",
            "a failure rule needs exitCodes, reason or messagePattern",
        ),
    )

    exit_codes: Annotated[list[Annotated[int, Field(ge=1, le=255)]] | None, ListKind("set")] = Field(
        None, max_length=32
    )
    reason: str | None = Field(None, min_length=1, max_length=64, description="Container reason, such as OOMKilled.")
    message_pattern: str | None = Field(
        None, min_length=1, max_length=256, description="Regular expression searched in the termination message."
    )
    action: Literal["Restart", "Ignore", "Fail"] = Field(
        description="Restart spends budget, Ignore restarts without spending it, Fail ends the job."
    )


class Backoff(ApiModel):
    """Wait before the next attempt: initial x 2^(failures - 1), capped."""

    cel = (
        Cel(
            "self.initialSeconds <= self.maxSeconds", "backoff.initialSeconds must be <= maxSeconds", ".initialSeconds"
        ),
    )

    initial_seconds: int = Field(5, ge=0, le=3600)
    max_seconds: int = Field(300, ge=1, le=86400)


class FailurePolicy(ApiModel):
    """How often a role may fail, and which failures count."""

    max_restarts: int = Field(
        3, ge=0, le=1024, description="Application failures before the job fails; per replica for rollouts."
    )
    backoff: Backoff = Field(default_factory=Backoff)
    rules: Annotated[list[FailureRule] | None, ListKind("atomic")] = Field(None, max_length=20)


class Trainer(ApiModel):
    """The policy trainers: one gang, one pod per node."""

    cel = (
        Cel(
            "self.nodes.capacityType != 'Spot'",
            "trainers cannot run on Spot: one interruption stops the whole gang",
            ".nodes.capacityType",
        ),
        Cel("has(self.nodes.count)", "trainer.nodes.count is required", ".nodes"),
    )

    nodes: NodeRequirements
    template: PodTemplate | None = Field(None, description="PodTemplateSpec; the operator injects into it.")
    failure_policy: FailurePolicy = Field(default_factory=FailurePolicy)


class Pool(ApiModel):
    """A part of the rollout role with one capacity type."""

    cel = (
        Cel(
            f"!(self.name in {list(names.ROLES)})",
            f"a pool cannot have the name of a role ({', '.join(names.ROLES)})",
            ".name",
        ),
        Cel(
            "has(self.replicas) != (has(self.minReplicas) || has(self.maxReplicas))",
            "a pool has either replicas, or minReplicas and maxReplicas",
        ),
        Cel("has(self.minReplicas) == has(self.maxReplicas)", "minReplicas and maxReplicas go together"),
        Cel(
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must be <= maxReplicas",
            ".minReplicas",
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=names.MAX_POOL_NAME, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    replicas: int | None = Field(None, ge=1, le=1000, description="Number of EP groups.")
    min_replicas: int | None = Field(None, ge=0, le=1000, description="Replicas that RolloutsReady asks for.")
    max_replicas: int | None = Field(None, ge=1, le=1000, description="Replicas kept as far as capacity allows.")
    nodes_per_replica: int = Field(1, ge=1, le=64, description="Nodes of one replica (an EP group).")
    nodes: NodeRequirements

    @property
    def wanted(self) -> int:
        """Replicas to run as far as capacity allows."""
        return self.replicas if self.replicas is not None else (self.max_replicas or 0)

    @property
    def needed(self) -> int:
        """Replicas below which the pool is not ready."""
        return self.replicas if self.replicas is not None else (self.min_replicas or 0)

    @property
    def node_count(self) -> int:
        """Nodes to buy for the wanted replicas."""
        return self.nodes.count if self.nodes.count is not None else self.wanted * self.nodes_per_replica


class Engine(ApiModel):
    """The generation engine in a rollout pod."""

    type: Literal["Native"] = "Native"
    args: Annotated[list[Annotated[str, Field(max_length=1024)]] | None, ListKind("atomic")] = Field(
        None, max_length=64, description="Further arguments of the engine's command."
    )


class Rollout(ApiModel):
    """The rollout workers: pools of replicas that fail and return one by one."""

    engine: Engine = Field(default_factory=Engine)
    pools: Annotated[list[Pool], ListMap(("name",)), POOL_NAMES] = Field(min_length=1, max_length=8)
    template: PodTemplate | None = Field(None, description="PodTemplateSpec of every pool.")
    failure_policy: FailurePolicy = Field(default_factory=FailurePolicy)


class ServiceRole(ApiModel):
    """Reward or environment: stateless replicas behind a headless Service."""

    replicas: int = Field(1, ge=1, le=1000)
    nodes: NodeRequirements
    template: PodTemplate | None = None


class BufferStorage(ApiModel):
    """What the buffer keeps its data on."""

    cel = (
        Cel(
            "self.type == 'PVC' || !has(self.storageClassName)",
            "storageClassName is only for storage type PVC",
            ".storageClassName",
        ),
    )

    type: Literal["Memory", "PVC"] = "Memory"
    size: str = Field(
        "8Gi", max_length=20, pattern=r"^[1-9][0-9]*(Mi|Gi|Ti)$", description="Memory limit or volume size."
    )
    storage_class_name: Name | None = None


class Buffer(ApiModel):
    """The experience buffer and checkpoint cache."""

    nodes: NodeRequirements
    storage: Annotated[BufferStorage, immutable("buffer.storage")] = Field(default_factory=BufferStorage)
    template: PodTemplate | None = None
