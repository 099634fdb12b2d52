"""An AWS emulator with a clock that only the test moves, served from a thread for sync and async tests alike.

Use the fixture by importing it: `from support.emulator import emulator` (and `Emulator` for the type).
"""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from moerl_local.aws.account import Account, Settings
from moerl_local.aws.moto_proxy import MotoProxy
from moerl_local.aws.server import Server, serve

CLUSTER = "moerl-local"
NODE_ROLE = "arn:aws:iam::111122223333:role/moerl-node"
SECURITY_GROUP = "sg-00000000000000001"
SUBNET_A, SUBNET_B, SUBNET_C = (f"subnet-0000000000000000{zone}" for zone in "abc")


@dataclass(frozen=True, slots=True)
class Emulator:
    """A running emulator. Times are emulated seconds."""

    url: str

    def _call(self, method: str, path: str, document: Any = None) -> Any:
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(self.url + path, method=method, data=body)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from None

    def advance(self, seconds: float) -> dict[str, Any]:
        """Let time pass; everything that is due in it has happened when this returns."""
        return self._call("POST", "/_moerl/clock", {"advanceSeconds": seconds})

    def fault(self, kind: str, **fields: Any) -> str:
        """Inject a fault (see moerl_local.aws.faults.Fault); returns its id."""
        return self._call("POST", "/_moerl/faults", {"kind": kind, **fields})["id"]

    def clear_faults(self, fault_id: str | None = None) -> None:
        """Lift one fault, or all."""
        self._call("DELETE", "/_moerl/faults" + (f"/{fault_id}" if fault_id else ""))

    def state(self) -> dict[str, Any]:
        """Everything that exists: node_groups, scaling_groups, instances, templates, faults, leftovers, now."""
        return self._call("GET", "/_moerl/state")

    def leftovers(self) -> dict[str, list[str]]:
        """What is not cleaned up: four empty lists when all is."""
        return self.state()["leftovers"]

    def calls(self, *, service: str = "", action: str = "") -> list[dict[str, Any]]:
        """API calls answered so far: time, service, action, status, code, ms."""
        found = self._call("GET", "/_moerl/calls")["calls"]
        return [
            call
            for call in found
            if (not service or call["service"] == service) and (not action or call["action"] == action)
        ]

    def reset(self) -> None:
        """Empty the account and lift all faults."""
        self._call("POST", "/_moerl/reset")

    def client(
        self, service: str, *, region: str = "us-east-1", retries: int = 0, key: str = "test", validate: bool = True
    ) -> Any:
        """A stock boto3 client of a service, without retries unless asked for, with the client's own checks or not."""
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name=region,
            aws_access_key_id=key,
            aws_secret_access_key="test",
            config=Config(
                retries={"total_max_attempts": retries + 1, "mode": "standard"},
                read_timeout=30,
                parameter_validation=validate,
            ),
        )

    def create_group(
        self,
        name: str,
        *,
        types: tuple[str, ...] = ("c7i.4xlarge",),
        size: int = 0,
        maximum: int = 8,
        active: bool = True,
        **more: Any,
    ) -> str:
        """A node group in zone a, waited for (in emulated time); the name of its Auto Scaling group ("" if not)."""
        eks = self.client("eks")
        request = {
            "clusterName": CLUSTER,
            "nodegroupName": name,
            "subnets": [SUBNET_A],
            "nodeRole": NODE_ROLE,
            "scalingConfig": {"minSize": 0, "maxSize": maximum, "desiredSize": size},
            **({"instanceTypes": list(types)} if types else {}),
            **more,
        }
        eks.create_nodegroup(**request)
        if not active:
            return ""
        self.advance(150 if size == 0 else 400)
        group = eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName=name)["nodegroup"]
        assert group["status"] == "ACTIVE"
        return str(group["resources"]["autoScalingGroups"][0]["name"])


def efa_interfaces(count: int = 16) -> list[dict[str, Any]]:
    """AWS's recommended network interfaces of a template for a type with that many cards, all with EFA."""
    first = {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface", "Groups": [SECURITY_GROUP]}
    rest = [
        {
            "NetworkCardIndex": card,
            "DeviceIndex": 1 if card == 0 else 0,
            "InterfaceType": "efa-only",
            "Groups": [SECURITY_GROUP],
        }
        for card in range(count)
    ]
    return [first, *rest]


@contextmanager
def running_emulator(*, state_dir: Path | None = None, time_scale: float | None = None) -> Iterator[Emulator]:
    """An emulator on a free loopback port: manual clock, unless a time scale is given."""
    ready = threading.Event()
    address: list[str] = []
    failure: list[BaseException] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        manual = time_scale is None
        account = Account(
            Settings(cluster_name=CLUSTER, state_dir=state_dir, manual_clock=manual, time_scale=time_scale or 1.0)
        )
        moto = MotoProxy(state_dir / "s3" if state_dir else None)
        server = Server(account, moto)
        account.on_change = server.changed
        runner, port = await serve(server, bind="127.0.0.1", port=0)
        clock = None if manual else asyncio.create_task(server.run_clock())
        address.append(f"http://127.0.0.1:{port}")
        ready.set()
        await stop.wait()
        if clock is not None:
            clock.cancel()
        await runner.cleanup()
        await moto.close()
        account.save()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failure.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="aws-emulator", daemon=True)
    thread.start()
    ready.wait(60)
    if failure or not address:
        raise RuntimeError("the AWS emulator did not start") from (failure[0] if failure else None)
    try:
        yield Emulator(address[0])
    finally:
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        if failure:
            raise RuntimeError("the AWS emulator ended with an error") from failure[0]


@pytest.fixture(scope="session")
def _shared_emulator() -> Iterator[Emulator]:
    with running_emulator() as emulator:
        yield emulator


@pytest.fixture
def emulator(_shared_emulator: Emulator) -> Emulator:
    """An empty emulator with a manual clock."""
    _shared_emulator.reset()
    return _shared_emulator
