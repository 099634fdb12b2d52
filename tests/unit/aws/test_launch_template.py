"""Launch templates: what each kind of group must say, and must not say."""

from __future__ import annotations

import base64
import email
from collections.abc import Callable

import pytest

from moerl_operator.aws.launch_template import fingerprint, network_interfaces, template_data
from moerl_operator.aws.user_data import ClusterAddress
from moerl_operator.core.world import NodeGroupSpec

Make = Callable[..., NodeGroupSpec]
ADDRESS = ClusterAddress("c1", "https://example", "Q0E=", "10.100.0.0/16")


@pytest.mark.parametrize(
    ("efa", "cards", "on_zero", "efa_places"),
    [
        (16, 16, True, [(0, 1), *((card, 0) for card in range(1, 16))]),  # p5en
        (32, 32, True, [(0, 1), *((card, 0) for card in range(1, 32))]),  # p5
        (16, 17, False, [(card, 0) for card in range(1, 17)]),  # p6-b300: its first card takes no EFA
        (1, 1, True, [(0, 1)]),  # p5.4xlarge, g6e.8xlarge
    ],
)
def test_one_ordinary_interface_first_and_one_efa_only_interface_per_device(
    spec: Make, efa: int, cards: int, on_zero: bool, efa_places: list[tuple[int, int]]
) -> None:
    interfaces = network_interfaces(spec(efa_interfaces=efa, network_cards=cards, efa_on_card_zero=on_zero))

    first, *rest = interfaces
    assert (first["NetworkCardIndex"], first["DeviceIndex"], first["InterfaceType"]) == (0, 0, "interface")
    assert [(each["NetworkCardIndex"], each["DeviceIndex"]) for each in rest] == efa_places
    assert {each["InterfaceType"] for each in rest} == {"efa-only"}
    assert all(each["Groups"] == ["sg-00000000000000001"] for each in interfaces)


def test_security_groups_are_on_the_interfaces_or_on_the_instance_never_on_both(spec: Make) -> None:
    assert "SecurityGroupIds" not in template_data(spec())
    plain = template_data(spec(efa_interfaces=0))
    assert plain["SecurityGroupIds"] == ["sg-00000000000000001"]
    assert "NetworkInterfaces" not in plain


def test_what_eks_forbids_in_a_template_is_not_there(spec: Make) -> None:
    data = template_data(spec())
    assert not {"IamInstanceProfile", "InstanceInitiatedShutdownBehavior", "HibernationOptions", "ImageId"} & set(data)
    assert all("SubnetId" not in interface for interface in data["NetworkInterfaces"])


def test_everything_launched_carries_the_tags(spec: Make) -> None:
    data = template_data(spec())
    by_resource = {item["ResourceType"]: item["Tags"] for item in data["TagSpecifications"]}
    assert set(by_resource) == {"instance", "volume", "network-interface"}
    for tags in by_resource.values():
        assert {"Key": "moerl.dev/installation", "Value": "test-installation"} in tags


def test_pods_reach_the_instance_metadata_by_tokens_only(spec: Make) -> None:
    options = template_data(spec())["MetadataOptions"]
    assert options == {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 2}


def test_on_demand_leaves_the_reservations_of_others_alone(spec: Make) -> None:
    preference = template_data(spec())["CapacityReservationSpecification"]
    assert preference == {"CapacityReservationPreference": "none"}
    assert "CapacityReservationSpecification" not in template_data(spec(capacity_type="Spot"))


def test_a_reservation_is_targeted(spec: Make) -> None:
    data = template_data(spec(capacity_type="Reserved", capacity_reservation="cr-0123456789abcdef0"))
    target = data["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-0123456789abcdef0"}
    assert "InstanceMarketOptions" not in data


def test_a_capacity_block_needs_market_target_and_type(spec: Make) -> None:
    data = template_data(spec(capacity_type="CapacityBlock", capacity_reservation="cr-0123456789abcdef0"))
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert data["InstanceType"] == "p5en.48xlarge"
    with pytest.raises(ValueError, match="needs a reservation"):
        template_data(spec(capacity_type="CapacityBlock"))


def parts(data: dict[str, str]) -> list[tuple[str, str]]:
    message = email.message_from_bytes(base64.b64decode(data["UserData"]))
    assert message.is_multipart()
    return [(part.get_content_type(), str(part.get_payload())) for part in message.get_payload()]  # type: ignore[union-attr]


def test_user_data_is_a_mime_document_of_boothooks(spec: Make) -> None:
    hugepages, extra = parts(template_data(spec(hugepages_2mi=5128, user_data="echo hello")))
    assert hugepages[0] == extra[0] == "text/cloud-boothook"
    assert hugepages[1].startswith("#cloud-boothook\n#!/bin/bash\n")
    assert "vm.nr_hugepages = 5128" in hugepages[1]
    assert "#!/bin/bash\necho hello" in extra[1]


def test_without_anything_to_say_there_is_no_user_data(spec: Make) -> None:
    assert "UserData" not in template_data(spec())


def test_a_custom_image_is_told_how_to_join(spec: Make) -> None:
    data = template_data(spec(ami_id="ami-0123456789abcdef0"), ADDRESS)
    ((media_type, content),) = parts(data)
    assert media_type == "application/node.eks.aws"
    assert '"apiServerEndpoint": "https://example"' in content
    assert "--register-with-taints=moerl.dev/dedicated=0a1b2c3d:NoSchedule" in content
    assert "--node-labels=role.moerl.dev/trainer=moerl-0a1b2c3d-trainer-1" in content
    with pytest.raises(ValueError, match="custom image"):
        template_data(spec(ami_id="ami-0123456789abcdef0"))


def test_user_data_beyond_ec2s_limit_is_refused_here(spec: Make) -> None:
    with pytest.raises(ValueError, match="at most 16384"):
        template_data(spec(user_data="x" * 17_000))


def test_the_client_token_follows_the_content(spec: Make) -> None:
    one, same, other = template_data(spec()), template_data(spec()), template_data(spec(root_volume_gib=300))
    assert fingerprint("a", one) == fingerprint("a", same) != fingerprint("a", other)
    assert fingerprint("a", one) != fingerprint("b", one)
