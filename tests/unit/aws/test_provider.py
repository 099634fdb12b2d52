"""The provider against the emulator, over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from moerl_operator.api import names
from moerl_operator.core.world import (
    CreateNodeGroup,
    DeleteLaunchTemplate,
    DeleteNodeGroup,
    NodeGroupObservation,
    NodeGroupSpec,
    RetagNodeGroup,
    ScaleNodeGroup,
    TerminateInstances,
)
from support.emulator import Emulator

from .conftest import CLUSTER_ARN, SPEC, UID, Watched

Make = Callable[..., NodeGroupSpec]


async def only_group(aws: Watched) -> NodeGroupObservation:
    aws.provider._memo.__init__()  # type: ignore[misc]  # let no answer be kept
    observation = await aws.provider.observe(UID)
    assert observation.error is None
    (group,) = observation.node_groups
    return group


async def active_group(aws: Watched, emulator: Emulator) -> NodeGroupObservation:
    assert await aws.provider.apply(UID, CreateNodeGroup(SPEC)) is None
    emulator.advance(600)
    return await only_group(aws)


async def test_an_empty_account_is_observed_as_empty(aws: Watched) -> None:
    observation = await aws.provider.observe(UID)
    assert (observation.error, observation.node_groups, observation.launch_templates) == (None, (), {})
    assert aws.provider.cluster_arn == CLUSTER_ARN


async def test_a_group_lives_from_creation_at_size_zero_to_deletion(aws: Watched, emulator: Emulator) -> None:
    await aws.provider.observe(UID)
    assert await aws.provider.apply(UID, CreateNodeGroup(SPEC)) is None
    assert (await only_group(aws)).status == "CREATING"

    emulator.advance(600)
    group = await only_group(aws)
    assert (group.status, group.desired, group.minimum, group.maximum) == ("ACTIVE", 0, 0, 16)
    assert group.autoscaler_tags
    assert (await aws.provider.observe(UID)).launch_templates == {SPEC.name: group.launch_template_id}

    scale = ScaleNodeGroup(SPEC.name, group.asg_name, 2, drop_autoscaler_tags=True)
    assert await aws.provider.apply(UID, scale) is None
    emulator.advance(600)
    group = await only_group(aws)
    assert (group.desired, group.in_service, group.pending, group.autoscaler_tags) == (2, 2, 0, False)

    assert await aws.provider.apply(UID, DeleteNodeGroup(SPEC.name)) is None
    assert (await only_group(aws)).status == "DELETING"
    emulator.advance(1800)
    assert await aws.provider.apply(UID, DeleteLaunchTemplate(SPEC.name)) is None
    assert not any(emulator.leftovers().values())


async def test_every_mutation_may_be_repeated(aws: Watched, emulator: Emulator) -> None:
    await aws.provider.observe(UID)
    for _ in range(2):
        assert await aws.provider.apply(UID, CreateNodeGroup(SPEC)) is None
    emulator.advance(600)
    group = await only_group(aws)
    for _ in range(2):
        assert await aws.provider.apply(UID, ScaleNodeGroup(SPEC.name, group.asg_name, 1)) is None
    emulator.advance(600)
    assert await aws.provider.apply(UID, DeleteNodeGroup(SPEC.name)) is None
    emulator.advance(1800)
    assert await aws.provider.apply(UID, DeleteNodeGroup(SPEC.name)) is None
    for _ in range(2):
        assert await aws.provider.apply(UID, DeleteLaunchTemplate(SPEC.name)) is None


@pytest.mark.parametrize("action", ["CreateLaunchTemplate", "CreateNodegroup"])
async def test_a_lost_answer_is_made_good_by_the_next_try(aws: Watched, emulator: Emulator, action: str) -> None:
    await aws.provider.observe(UID)
    emulator.fault("lost-answer", action=action, times=4)
    error = await aws.provider.apply(UID, CreateNodeGroup(SPEC))
    emulator.clear_faults()
    if error is not None:
        assert error.kind == "Retry"
        assert (await aws.provider.observe(UID)).refused == error
        assert await aws.provider.apply(UID, CreateNodeGroup(SPEC)) is None
    assert (await only_group(aws)).name == SPEC.name
    assert (await aws.provider.observe(UID)).refused is None
    assert len(emulator.state()["templates"]) == 1


async def test_no_capacity_is_told_by_the_activities_of_the_present_size(aws: Watched, emulator: Emulator) -> None:
    group = await active_group(aws, emulator)
    emulator.fault("insufficient-capacity", instanceType="p5en.48xlarge")
    await aws.provider.apply(UID, ScaleNodeGroup(SPEC.name, group.asg_name, 2, drop_autoscaler_tags=True))
    emulator.advance(300)

    group = await only_group(aws)
    assert (group.desired, group.in_service) == (2, 0)
    assert group.failures
    assert "capacity" in group.failures[0].lower()

    await aws.provider.apply(UID, ScaleNodeGroup(SPEC.name, group.asg_name, 0))
    emulator.clear_faults()
    await aws.provider.apply(UID, ScaleNodeGroup(SPEC.name, group.asg_name, 1))
    assert (await only_group(aws)).failures == ()


async def test_chosen_instances_end_and_the_group_shrinks(aws: Watched, emulator: Emulator) -> None:
    group = await active_group(aws, emulator)
    await aws.provider.apply(UID, ScaleNodeGroup(SPEC.name, group.asg_name, 3))
    emulator.advance(600)
    scaling = emulator.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group.asg_name])
    victim = scaling["AutoScalingGroups"][0]["Instances"][1]["InstanceId"]

    assert await aws.provider.apply(UID, TerminateInstances(SPEC.name, group.asg_name, (victim,))) is None
    emulator.advance(600)

    group = await only_group(aws)
    assert (group.desired, group.in_service) == (2, 2)
    assert await aws.provider.apply(UID, TerminateInstances(SPEC.name, group.asg_name, (victim,))) is None


async def test_a_retained_group_changes_hands_with_everything_in_it(aws: Watched, emulator: Emulator) -> None:
    group = await active_group(aws, emulator)
    await aws.provider.apply(UID, ScaleNodeGroup(SPEC.name, group.asg_name, 1))
    emulator.advance(600)
    tags = {names.TAG_OWNER: "class/default"}

    assert await aws.provider.apply(UID, RetagNodeGroup(SPEC.name, group.arn, group.asg_name, tags)) is None

    aws.provider._memo.__init__()  # type: ignore[misc]
    observation = await aws.provider.observe(UID)
    assert (observation.node_groups, observation.launch_templates) == ((), {})
    described = emulator.client("eks").describe_nodegroup(clusterName="moerl-local", nodegroupName=SPEC.name)
    assert described["nodegroup"]["tags"][names.TAG_OWNER] == "class/default"


async def test_groups_of_another_installation_do_not_exist_for_us(aws: Watched, emulator: Emulator, spec: Make) -> None:
    await aws.provider.observe(UID)
    foreign = spec(tags={**SPEC.tags, names.TAG_INSTALLATION: "another"})
    await aws.provider.apply(UID, CreateNodeGroup(foreign))
    emulator.advance(60)

    observation = await aws.provider.observe(UID)
    assert observation.node_groups == ()
    assert observation.launch_templates == {}


async def test_wrong_credentials_are_one_sorted_error(aws: Watched, emulator: Emulator) -> None:
    emulator.fault("credentials")
    observation = await aws.provider.observe(UID)
    assert observation.error is not None
    assert observation.error.kind == "Retry"
    assert observation.error.code in ("UnrecognizedClientException", "InvalidClientTokenId", "AuthFailure")


async def test_no_aws_at_all_is_one_sorted_error() -> None:
    nowhere = Watched("http://127.0.0.1:1")
    observation = await nowhere.provider.observe(UID)
    nowhere.provider.close()
    assert observation.error is not None
    assert (observation.error.kind, observation.error.code) == ("Retry", "EndpointConnectionError")


async def test_a_full_quota_is_told_apart(aws: Watched, emulator: Emulator) -> None:
    await aws.provider.observe(UID)
    emulator.fault("quota", name="nodegroups", value=0)
    error = await aws.provider.apply(UID, CreateNodeGroup(SPEC))
    assert error is not None
    assert (error.kind, error.operation) == ("Quota", "eks:CreateNodegroup")
    observation = await aws.provider.observe(UID)
    assert observation.refused == error
    assert observation.retry_at is not None


async def test_what_ec2_would_never_launch_is_terminal_and_leaves_the_template_to_be_deleted(
    aws: Watched, emulator: Emulator, spec: Make
) -> None:
    await aws.provider.observe(UID)
    error = await aws.provider.apply(UID, CreateNodeGroup(spec(placement_group="none-such")))
    assert error is not None
    assert error.kind == "Terminal"
    assert "none-such" in error.message
    assert list((await aws.provider.observe(UID)).launch_templates) == [SPEC.name]


@pytest.mark.parametrize(
    ("instance_type", "layout"),
    [
        ("p5.48xlarge", {"efa_interfaces": 32, "network_cards": 32}),
        ("p6-b300.48xlarge", {"efa_interfaces": 16, "network_cards": 17, "efa_on_card_zero": False}),
        ("c7i.8xlarge", {"efa_interfaces": 0, "network_cards": 1}),
    ],
)
async def test_ec2_accepts_the_interfaces_made_from_the_types_facts(
    aws: Watched, emulator: Emulator, spec: Make, instance_type: str, layout: dict[str, int]
) -> None:
    facts = (await aws.provider.facts([instance_type]))[instance_type]
    for name, value in layout.items():
        assert getattr(facts, name) == value
    await aws.provider.observe(UID)
    wanted = spec(
        instance_types=(instance_type,),
        ami_type="AL2023_x86_64_NVIDIA" if facts.gpus else "AL2023_x86_64_STANDARD",
        efa_interfaces=facts.efa_interfaces,
        network_cards=facts.network_cards,
        efa_on_card_zero=facts.efa_on_card_zero,
        hugepages_2mi=5128,
    )
    assert await aws.provider.apply(UID, CreateNodeGroup(wanted)) is None


async def test_facts_of_a_type_that_does_not_exist_are_missing_and_known_ones_are_asked_for_once(
    aws: Watched,
) -> None:
    for _ in range(2):
        facts = await aws.provider.facts(["p5en.48xlarge", "p99.huge"])
        assert set(facts) == {"p5en.48xlarge"}
    assert facts["p5en.48xlarge"].gpus == 8
    assert facts["p5en.48xlarge"].usd_per_hour == pytest.approx(63.296)
    assert len([call for call in aws.made if call[1] == "DescribeInstanceTypes"]) == 2


async def test_a_storm_of_observations_asks_aws_once(aws: Watched, emulator: Emulator) -> None:
    await active_group(aws, emulator)
    aws.made.clear()
    aws.provider._memo.__init__()  # type: ignore[misc]

    await asyncio.gather(*(aws.provider.observe(UID) for _ in range(50)))
    await asyncio.gather(*(aws.provider.observe(UID) for _ in range(50)))

    assert len(aws.made) <= 6, aws.made


async def test_a_storm_of_observations_that_fail_asks_aws_once(aws: Watched, emulator: Emulator) -> None:
    emulator.fault("access-denied")
    for _ in range(20):
        observation = await aws.provider.observe(UID)
        assert observation.error is not None
    assert len(aws.made) == 1
