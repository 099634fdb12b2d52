"""MoERLJob: one reinforcement-learning run of a Mixture-of-Experts model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moerl_operator.api import names
from moerl_operator.api.base import ApiModel, Cel, immutable
from moerl_operator.api.changes import JOB_CHANGES, JOB_SPEC_CHANGES
from moerl_operator.api.nodes import Name, NodeRequirements
from moerl_operator.api.roles import Buffer, FailurePolicy, Rollout, ServiceRole, Trainer
from moerl_operator.api.status import Status

Transport = Literal["Auto", "EFAGDA", "EFAProxy", "NVLink", "TCP"]
Backend = Literal["Auto", "DeepEP", "NVLink", "NCCLAllToAll", "NCCLAllGather", "Reference"]
# A decimal as a string: floats are not allowed in specs (they do not survive a round trip).
Decimal = Annotated[str, Field(max_length=24, pattern=r"^[0-9]+(\.[0-9]+)?([eE]-?[0-9]+)?$")]
Uri = Annotated[str, Field(min_length=6, max_length=1024, pattern=r"^(s3|file)://.+$")]
DatasetUri = Annotated[str, Field(min_length=6, max_length=1024, pattern=r"^(s3|file|builtin)://.+$")]


class Framework(ApiModel):
    """Whose programs run in the pods."""

    type: Literal["Native", "Custom"] = Field(
        "Native", description="Native: this project's own runtime. Custom: the templates bring image and command."
    )


class Algorithm(ApiModel):
    """The algorithm of the native runtime (GRPO, arXiv 2402.03300)."""

    type: Literal["GRPO"] = "GRPO"
    group_size: int = Field(16, ge=2, le=1024, description="Samples of one prompt.")
    prompts_per_iteration: int = Field(32, ge=1, le=65536, description="Groups of one optimizer step.")
    iterations: int = Field(ge=1, le=10_000_000, description="Optimizer steps of the run.")
    max_staleness_versions: int = Field(1, ge=0, le=64, description="Oldest admissible policy version, behind current.")
    max_new_tokens: int = Field(1024, ge=1, le=1_048_576)
    temperature: Decimal = "1.0"
    learning_rate: Decimal = Field(
        "1e-6", description="Of AdamW: constant for the first half of the iterations, then falling linearly to a tenth."
    )
    clip_low: Decimal = "0.2"
    clip_high: Decimal = "0.28"
    entropy_bonus: Decimal = "0"
    gradient_clip: Decimal = "1.0"
    off_policy_correction: Literal["decoupled", "bypass"] = "decoupled"
    checkpoint_every_iterations: int = Field(50, ge=1, le=1_000_000)
    evaluate_every_iterations: int = Field(10, ge=1, le=1_000_000)
    seed: int = Field(0, ge=0, le=2_147_483_647)


class Model(ApiModel):
    """The policy to start from."""

    cel = (Cel("has(self.uri) != has(self.preset)", "model has either uri or preset"),)

    uri: Uri | None = Field(None, description="Folder in Hugging Face format.")
    preset: Literal["TinyQwen3MoE"] | None = Field(
        None, description="Random weights of a small built-in configuration."
    )


class Storage(ApiModel):
    """Where data that outlives the job is."""

    dataset: DatasetUri | None = Field(None, description="Prompts; builtin:// names a task of the native runtime.")
    checkpoints: Uri | None = Field(None, description="Folder for checkpoints, <attempt>/<step> below it.")
    artifacts: Uri | None = Field(None, description="Folder for the final policy.")


class ExpertParallel(ApiModel):
    """Dispatch and combine between experts."""

    backend: Backend = Field(
        "Auto",
        description="Framework Custom: passed on to the pods as MOERL_EP_BACKEND. Native: Auto only.",
    )
    transport: Transport = Field("Auto", description="Requested transport; compared with the effective one.")
    on_mismatch: Literal["Fail", "Warn"] = Field("Fail", description="When the effective transport is another one.")


class Communication(ApiModel):
    """What moves tensors between pods."""

    expert_parallel: ExpertParallel = Field(default_factory=ExpertParallel)


class RunPolicy(ApiModel):
    """Deadlines and cleaning up."""

    active_deadline_seconds: int | None = Field(None, ge=1, description="From start to end of the run.")
    provisioning_deadline_seconds: int = Field(7200, ge=1, description="Until all nodes are ready.")
    progress_deadline_seconds: int = Field(
        1800, ge=1, description="Without a new iteration the job is not Progressing."
    )
    ttl_seconds_after_finished: int | None = Field(None, ge=0, description="Then the job itself is deleted.")
    cleanup_policy: Literal["Workloads", "None"] = Field(
        "Workloads", description="Workloads: pods go when the job ends. None: all but the GPUs' pods stay for a look."
    )


class JobSpec(ApiModel):
    """What the user wishes."""

    cel = (
        Cel(
            "self.framework.type != 'Native' || has(self.algorithm)",
            "algorithm is required for framework Native",
            ".algorithm",
        ),
        Cel(
            "self.framework.type == 'Native' || !has(self.algorithm)",
            "algorithm is only for framework Native",
            ".algorithm",
        ),
        Cel("self.framework.type != 'Native' || has(self.model)", "model is required for framework Native", ".model"),
        Cel(
            "self.framework.type != 'Native' || (has(self.storage) && has(self.storage.dataset) && "
            "has(self.storage.checkpoints) && has(self.storage.artifacts))",
            "storage.dataset, storage.checkpoints and storage.artifacts are required for framework Native",
            ".storage",
        ),
        Cel(
            "self.framework.type != 'Native' || has(self.environment) || has(self.reward)",
            "framework Native needs an environment or a reward role, else nothing gives a reward",
        ),
        Cel(
            "self.framework.type != 'Custom' || (has(self.trainer.template) && has(self.rollout.template))",
            "framework Custom needs trainer.template and rollout.template",
        ),
        *JOB_SPEC_CHANGES,
    )

    suspend: bool = Field(False, description="Stop all pods and give back the nodes; false continues.")
    priority_class_name: Name | None = None
    service_account_name: Name | None = Field(None, description="Default: the class's, else one made for the job.")
    framework: Annotated[Framework, immutable("framework")] = Field(default_factory=Framework)
    algorithm: Algorithm | None = None
    model: Model | None = None
    storage: Storage | None = None
    communication: Communication = Field(default_factory=Communication)
    trainer: Trainer
    rollout: Rollout
    reward: ServiceRole | None = None
    environment: ServiceRole | None = None
    buffer: Buffer
    run_policy: RunPolicy = Field(default_factory=RunPolicy)

    def role_nodes(self) -> dict[str, NodeRequirements]:
        """Node requirements by role, or by pool for rollouts (pool names never equal role names)."""
        out = {names.TRAINER: self.trainer.nodes}
        out |= {pool.name: pool.nodes for pool in self.rollout.pools}
        if self.reward:
            out[names.REWARD] = self.reward.nodes
        if self.environment:
            out[names.ENVIRONMENT] = self.environment.nodes
        out[names.BUFFER] = self.buffer.nodes
        return out


class Job(ApiModel):
    """MoERLJob, plural moerljobs, short name mrj, namespaced."""

    cel = (
        Cel(
            f"size(self.metadata.name) <= {names.MAX_JOB_NAME}",
            f"metadata.name is at most {names.MAX_JOB_NAME} characters: children's host names are limited to 63",
        ),
        Cel(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name is a letter, then letters, digits and dashes: it becomes part of Services' names",
        ),
        *JOB_CHANGES,
    )

    spec: JobSpec
    status: Status | None = None


__all__ = ["Algorithm", "FailurePolicy", "Job", "JobSpec"]
