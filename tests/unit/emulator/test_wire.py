"""The three protocols against botocore's own serializers and parsers: what it sends we read, what we write it reads."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import given, settings
from hypothesis import strategies as st

from moerl_local.aws.errors import AwsError
from moerl_local.aws.wire import check, parse, render
from moerl_local.aws.wire.models import service

TEXT = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
# Shapes that no client sends as query parameters of the emulated operations, or that are cut to keep examples small.
MAX_DEPTH = 4


def values(shape: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Any value that a shape allows, empty lists and structures left out (they do not exist on the query wire)."""
    kind = shape.type_name
    if kind == "structure":
        members = {name: member for name, member in shape.members.items() if depth < MAX_DEPTH}
        optional = {name: _later(member, depth + 1) for name, member in members.items() if _plain(member, depth)}
        required = {name: optional.pop(name) for name in shape.required_members if name in optional}
        chosen = st.dictionaries(st.sampled_from(sorted(optional)), st.none(), max_size=3) if optional else st.just({})
        return chosen.flatmap(lambda keys: st.fixed_dictionaries(required | {key: optional[key] for key in keys}))
    if kind == "list":
        return st.lists(values(shape.member, depth + 1), min_size=1, max_size=2)
    if kind == "map":
        return st.dictionaries(st.text("abc", min_size=1, max_size=3), values(shape.value, depth + 1), max_size=2)
    if kind in ("integer", "long"):
        return st.integers(0, 1000)
    if kind == "boolean":
        return st.booleans()
    if kind in ("float", "double"):
        return st.floats(0, 100)
    return st.sampled_from(shape.metadata["enum"]) if shape.metadata.get("enum") else TEXT


def _later(shape: Any, depth: int) -> st.SearchStrategy[Any]:
    return st.deferred(lambda: values(shape, depth))


def _plain(shape: Any, depth: int) -> bool:
    if shape.type_name in ("timestamp", "blob"):
        return False
    if shape.type_name == "structure":
        return depth + 1 < MAX_DEPTH and bool(shape.members)
    return shape.type_name != "list" or _plain(shape.member, depth + 1)


def pruned(value: Any) -> Any:
    """Without empty structures, which the query protocols cannot say."""
    if isinstance(value, dict):
        return {key: inner for key, item in value.items() if (inner := pruned(item)) not in ({}, [])}
    return [inner for item in value if (inner := pruned(item)) not in ({}, [])] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ec2", "CreateLaunchTemplate"),
        ("ec2", "DescribeInstances"),
        ("autoscaling", "UpdateAutoScalingGroup"),
        ("autoscaling", "CreateOrUpdateTags"),
    ],
)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_query_requests_of_botocore_are_read_as_they_were_meant(name: str, operation: str, data: Any) -> None:
    model = service(name).model.operation_model(operation)
    params = data.draw(values(model.input_shape))
    sent = create_serializer(service(name).protocol, include_validation=False).serialize_to_request(params, model)
    body = urlencode(sent["body"])
    form = {key: items[0] for key, items in parse_qs(body, keep_blank_values=True).items()}
    assert pruned(parse.query(model, form, ec2=name == "ec2")) == pruned(params)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_rest_requests_of_botocore_are_read_as_they_were_meant(data: Any) -> None:
    model = service("eks").model.operation_model("CreateNodegroup")
    params = data.draw(values(model.input_shape)) | {
        "clusterName": data.draw(st.text("a/ %+é", min_size=1, max_size=6))
    }
    sent = create_serializer("rest-json", include_validation=False).serialize_to_request(params, model)
    found = service("eks").match("POST", sent["url_path"])
    assert found is not None
    assert found[0] == "CreateNodegroup"
    assert parse.rest_json(model, found[1], {}, sent["body"]) == params


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ec2", "DescribeLaunchTemplateVersions"),
        ("ec2", "DescribeInstances"),
        ("autoscaling", "DescribeAutoScalingGroups"),
        ("eks", "DescribeNodegroup"),
    ],
)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_botocore_reads_answers_as_they_were_meant(name: str, operation: str, data: Any) -> None:
    described = service(name)
    model = described.model.operation_model(operation)
    value = data.draw(values(model.output_shape))
    answer = render.result(described, model, value, "request-1")
    headers = {key.lower(): text for key, text in answer.headers.items()}
    reading = {"body": answer.body, "status_code": answer.status, "headers": headers}
    parsed = create_parser(described.protocol).parse(reading, model.output_shape)
    assert parsed.pop("ResponseMetadata")["HTTPStatusCode"] == 200
    # The EKS parser fills nothing in; the XML parsers give empty lists for what is not there.
    assert pruned(parsed) == pruned(value)


def test_an_unknown_ec2_parameter_is_refused_and_an_unknown_json_member_is_not() -> None:
    create = service("ec2").model.operation_model("CreateLaunchTemplate")
    with pytest.raises(parse.Malformed, match=r"LaunchTemplateData\.Bogus is not recognized"):
        parse.query(create, {"LaunchTemplateData.Bogus": "1"}, ec2=True)
    delete = service("eks").model.operation_model("CreateNodegroup")
    assert parse.rest_json(delete, {}, {}, b'{"bogus": 1}') == {}


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"scalingConfig": 3}', b'{"scalingConfig": {"minSize": "1"}}'])
def test_malformed_json_is_refused(body: bytes) -> None:
    model = service("eks").model.operation_model("CreateNodegroup")
    with pytest.raises(parse.Malformed):
        parse.rest_json(model, {}, {}, body)


def test_every_bound_of_a_model_is_checked() -> None:
    shape = service("eks").model.operation_model("CreateNodegroup").input_shape
    broken = check.violations(
        shape,
        {
            "clusterName": "c",
            "nodegroupName": "n",
            "subnets": [],
            "capacityType": "FREE",
            "scalingConfig": {"minSize": -1, "maxSize": 0},
            "taints": [{"key": "", "value": "v" * 64, "effect": "NoSchedule"}],
            "tags": {str(index): "" for index in range(51)},
        },
    )
    assert {(item.path, item.kind) for item in broken} == {
        ("nodeRole", "required"),
        ("capacityType", "enum"),
        ("scalingConfig.minSize", "min"),
        ("scalingConfig.maxSize", "min"),
        ("taints.1.member.key", "min"),
        ("taints.1.member.value", "max"),
        ("taints.1.member.effect", "enum"),
        ("tags", "max"),
    }


def test_patterns_written_for_java_are_checked() -> None:
    shape = service("autoscaling").model.operation_model("SetDesiredCapacity").input_shape
    params = {"AutoScalingGroupName": "a\x00b", "DesiredCapacity": 1}
    assert [item.kind for item in check.violations(shape, params)] == ["pattern"]
    assert check.violations(shape, params | {"AutoScalingGroupName": "grün 🙂"}) == []


def test_an_answer_with_a_member_that_the_model_lacks_is_a_bug_of_ours() -> None:
    described = service("eks")
    with pytest.raises(KeyError):
        render.result(described, described.operation("DescribeNodegroup"), {"nodegroup": {"bogus": 1}}, "r")


def test_error_statuses_come_from_the_model() -> None:
    answer = render.error(service("eks"), AwsError("ResourceInUseException", "no"), "r")
    assert (answer.status, answer.headers["x-amzn-ErrorType"]) == (409, "ResourceInUseException")
    assert render.error(service("ec2"), AwsError("InvalidParameterValue", "no"), "r").status == 400
