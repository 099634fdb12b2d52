"""Each kind of AWS answer is sorted by what can be done about it."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ParamValidationError

from moerl_operator.aws.errors import sort


def client_error(code: str, message: str = "", status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Op"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (client_error("ThrottlingException", status=429), "Retry"),
        (client_error("ServerException", status=500), "Retry"),
        (client_error("NeverHeardOf", status=503), "Retry"),
        (client_error("InvalidRequestException", "Request limit exceeded."), "Retry"),
        (client_error("ResourceInUseException", "Nodegroup cannot be updated", 409), "Retry"),
        (client_error("UnrecognizedClientException", "The security token is invalid", 403), "Retry"),
        (client_error("InvalidRequestException", "You are not authorized to launch instances"), "Terminal"),
        (client_error("InvalidParameterException"), "Terminal"),
        (client_error("ResourceNotFoundException", status=404), "NotFound"),
        (client_error("ValidationError", "AutoScalingGroup name not found - x"), "NotFound"),
        (client_error("ValidationError", "New SetDesiredCapacity value 9 is above max value 4"), "Terminal"),
        (client_error("InsufficientInstanceCapacity", status=500), "Capacity"),
        (client_error("ResourceLimitExceededException", "maximum number of node groups"), "Quota"),
        (client_error("MaxSpotInstanceCountExceeded"), "Quota"),
        (NoCredentialsError(), "Retry"),
        (EndpointConnectionError(endpoint_url="http://x"), "Retry"),
        (ParamValidationError(report="bad"), "Terminal"),
    ],
)
def test_sorting(error: Exception, kind: str) -> None:
    assert sort(error, "eks:op").kind == kind


def test_a_bug_of_ours_is_not_an_answer_of_aws() -> None:
    with pytest.raises(KeyError):
        sort(KeyError("x"), "eks:op")
