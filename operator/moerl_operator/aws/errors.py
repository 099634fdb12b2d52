"""Sorts what AWS answers into the five kinds that the policy tells apart.

The codes are those that the EKS, EC2 and Auto Scaling documentation and the error sets of Karpenter and
eksctl name. A code in no set is Terminal: the same request will be refused again.
"""

from __future__ import annotations

from typing import Literal

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)

from moerl_operator.core.world import AwsError

ErrorKind = Literal["Retry", "Terminal", "NotFound", "Capacity", "Quota"]

NOT_FOUND = frozenset(
    {
        "ResourceNotFoundException",
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateId.NotFoundException",
        "InvalidInstanceID.NotFound",
    }
)
ALREADY_EXISTS = frozenset({"ResourceInUseException", "InvalidLaunchTemplateName.AlreadyExistsException"})
CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientCapacity",
        "UnfulfillableCapacity",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "Unsupported",  # "... is not supported in your requested Availability Zone"
    }
)
QUOTA = frozenset(
    {
        "ResourceLimitExceededException",
        "VcpuLimitExceeded",
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "MaxSpotFleetRequestCountExceeded",
        "LimitExceeded",
        "LimitExceededException",
        "LimitExceededFault",
        "LaunchTemplateLimitExceeded",
        "NetworkInterfaceLimitExceeded",
        "VolumeLimitExceeded",
    }
)
RETRY = frozenset(
    {
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "TooManyRequestsException",
        "ServerException",
        "ServiceUnavailableException",
        "ServiceUnavailable",
        "Unavailable",
        "InternalFailure",
        "InternalError",
        "InternalServerError",
        "RequestTimeout",
        "RequestTimeoutException",
        "ResourceInUseException",  # the group is busy with another change
        "ResourceContention",
        "ResourceContentionFault",
        "ScalingActivityInProgress",
        "ScalingActivityInProgressFault",
        # Mended by an administrator, with the job unchanged: asked again, slowly.
        "AccessDenied",
        "AccessDeniedException",
        "UnauthorizedOperation",
        "AuthFailure",
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "ExpiredTokenException",
        "OptInRequired",
    }
)


def sort(error: Exception, operation: str) -> AwsError:
    """An exception of botocore, or of a request we could not build, as the policy sees it."""
    if isinstance(error, ClientError):
        detail = error.response.get("Error", {})
        code, message = str(detail.get("Code") or "Unknown"), str(detail.get("Message") or error)
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
        return AwsError(operation, code, message, _kind(code, message, status))
    name = type(error).__name__
    if isinstance(error, ParamValidationError | ValueError):
        return AwsError(operation, name, str(error), "Terminal")
    if isinstance(error, ConnectionError | HTTPClientError | NoCredentialsError | PartialCredentialsError | OSError):
        return AwsError(operation, name, str(error), "Retry")
    if isinstance(error, BotoCoreError):
        return AwsError(operation, name, str(error), "Retry")
    raise error


def _kind(code: str, message: str, status: int) -> ErrorKind:
    if code in NOT_FOUND or (code == "ValidationError" and "not found" in message):
        return "NotFound"
    if code in CAPACITY:
        return "Capacity"
    if code in QUOTA:
        return "Quota"
    # EKS wraps EC2's throttling of many parallel changes in its code for bad requests (aws-sdk issue 652).
    if code in RETRY or status >= 500 or status == 429 or "Request limit exceeded" in message:
        return "Retry"
    return "Terminal"
