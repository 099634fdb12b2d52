"""What the control loop needs of AWS, as a protocol: control knows no boto3, and a test of it needs none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from moerl_operator.core.world import (
    AwsError,
    AwsObservation,
    CreateNodeGroup,
    DeleteLaunchTemplate,
    DeleteNodeGroup,
    InstanceFacts,
    RetagNodeGroup,
    ScaleNodeGroup,
    TerminateInstances,
)

AwsAction = (
    CreateNodeGroup | ScaleNodeGroup | TerminateInstances | DeleteNodeGroup | DeleteLaunchTemplate | RetagNodeGroup
)


class AwsFailure(Exception):
    """A question that AWS did not answer, sorted."""

    def __init__(self, error: AwsError) -> None:
        super().__init__(f"{error.operation}: {error.code}: {error.message}")
        self.error = error


class Aws(Protocol):
    """The AWS layer; implemented by moerl_operator.aws.provider."""

    @property
    def cluster_arn(self) -> str:
        """ARN of the cluster; '' until it is known."""

    async def observe(self, uid: str) -> AwsObservation:
        """What AWS holds for a job; failures are in the answer, not raised."""

    async def facts(self, types: Iterable[str]) -> dict[str, InstanceFacts]:
        """Facts of the types that exist. Raises AwsFailure."""

    async def apply(self, uid: str, action: AwsAction) -> AwsError | None:
        """Carry out one action of a job; None when it is done."""

    def forget(self, uid: str) -> None:
        """The job is gone."""
