"""Whatever is asked in whatever order: the books balance, time never sticks, a restart changes nothing, all can go."""

from __future__ import annotations

import json
from urllib.parse import urlencode

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moerl_local.aws.account import Account, Call, Settings
from moerl_local.aws.faults import Fault, Faults
from moerl_local.aws.world import AutoScalingGroup, World
from support.emulator import CLUSTER, NODE_ROLE, SUBNET_A

NAMES = ("a", "b")
ONE_OF = st.integers(0, 5)


class Histories(RuleBasedStateMachine):
    """Random API calls, faults and waits, against one account."""

    def __init__(self) -> None:
        super().__init__()
        self.account = Account(Settings(manual_clock=True))

    def eks(self, method: str, path: str, body: dict[str, object] | None = None) -> int:
        call = Call("eks", "us-east-1", "k", method, f"/clusters/{CLUSTER}{path}", "", json.dumps(body or {}).encode())
        return self.account.answer(call).status

    def scaling(self, action: str, **params: object) -> int:
        form = {"Action": action, "Version": "2011-01-01", **params}
        return self.account.answer(
            Call("autoscaling", "us-east-1", "k", "POST", "/", "", urlencode(form).encode())
        ).status

    @property
    def groups(self) -> list[AutoScalingGroup]:
        return list(self.account.world.scaling_groups.values())

    @rule(name=st.sampled_from(NAMES), size=st.integers(0, 4))
    def create(self, name: str, size: int) -> None:
        body = {
            "nodegroupName": name,
            "subnets": [SUBNET_A],
            "nodeRole": NODE_ROLE,
            "instanceTypes": ["c7i.4xlarge"],
            "scalingConfig": {"minSize": 0, "maxSize": 4, "desiredSize": size},
        }
        exists = f"{CLUSTER}/{name}" in self.account.world.node_groups
        assert self.eks("POST", "/node-groups", body) == (409 if exists else 200)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        assert self.eks("DELETE", f"/node-groups/{name}") in (200, 404)

    @rule(name=st.sampled_from(NAMES), size=st.integers(0, 4))
    def update(self, name: str, size: int) -> None:
        group = self.account.world.node_groups.get(f"{CLUSTER}/{name}")
        body = {"scalingConfig": {"minSize": 0, "maxSize": 4, "desiredSize": size}}
        status = self.eks("POST", f"/node-groups/{name}/update-config", body)
        assert status == (404 if group is None else status)
        assert status in (200, 404, 409)

    @precondition(lambda self: self.groups)
    @rule(which=ONE_OF, size=st.integers(0, 4))
    def desire(self, which: int, size: int) -> None:
        group = self.groups[which % len(self.groups)]
        deleting = group.deleting
        assert self.scaling("SetDesiredCapacity", AutoScalingGroupName=group.name, DesiredCapacity=size) == (
            400 if deleting else 200
        )

    @precondition(lambda self: self.account.world.instances)
    @rule(which=ONE_OF, decrement=st.booleans())
    def terminate(self, which: int, decrement: bool) -> None:
        instances = list(self.account.world.instances)
        self.scaling(
            "TerminateInstanceInAutoScalingGroup",
            InstanceId=instances[which % len(instances)],
            ShouldDecrementDesiredCapacity=str(decrement).lower(),
        )

    @precondition(lambda self: self.account.world.instances)
    @rule(which=ONE_OF)
    def kill(self, which: int) -> None:
        instances = list(self.account.world.instances.values())
        self.account.simulation.kill_instance(instances[which % len(instances)], reason="hardware")
        self.account.advance()

    @rule(available=st.integers(0, 3))
    def run_short(self, available: int) -> None:
        self.account.faults.add(Fault(kind="insufficient-capacity", available=available))

    @rule()
    def mend(self) -> None:
        self.account.faults.remove()

    @rule(seconds=st.sampled_from([1, 10, 45, 60, 150, 300, 2000]))
    def wait(self, seconds: int) -> None:
        self.account.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.account.world.now = self.account.clock.now()
        text = self.account.world.model_dump_json()
        self.account._start(World.model_validate_json(text))
        assert self.account.world.model_dump_json() == text

    @invariant()
    def time_never_sticks(self) -> None:
        due = self.account.simulation.next_due()
        assert due is None or due > self.account.world.now

    @invariant()
    def never_more_than_desired(self) -> None:
        world = self.account.world
        for group in world.scaling_groups.values():
            assert group.minimum <= group.desired <= group.maximum
            assert len(world.counted(group.name)) <= group.desired

    @invariant()
    def instances_belong_to_groups(self) -> None:
        world = self.account.world
        for instance in world.instances.values():
            if instance.state != "terminated":
                assert instance.asg in world.scaling_groups
            assert (instance.lifecycle == "") == (instance.state == "terminated")
        for group in world.scaling_groups.values():
            assert f"{group.cluster}/{group.nodegroup}" in world.node_groups
            assert group.template_id in world.templates

    def teardown(self) -> None:
        self.account.faults.remove()
        for name in NAMES:
            self.eks("DELETE", f"/node-groups/{name}")
        self.account.advance(3000)
        assert not any(self.account.world.leftovers().values())
        self.account.advance(4000)
        assert self.account.world.instances == {}
        assert self.account.simulation.next_due() is None
        assert Faults(self.account.world).all() == []


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestHistories = Histories.TestCase
