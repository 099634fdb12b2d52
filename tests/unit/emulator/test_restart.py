"""The emulator as a program: a killed one goes on where it was, a bad start says why in one line, time is time."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moerl_local.aws.__main__ import main
from support.emulator import CLUSTER, Emulator, running_emulator


@contextmanager
def program(folder: Path, *options: str) -> Iterator[tuple[Emulator, subprocess.Popen[bytes]]]:
    """`python -m moerl_local.aws` with its state in a folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moerl_local.aws", "--port", str(port), "--state-dir", str(folder), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    emulator = Emulator(f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{emulator.url}/healthz", timeout=1).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield emulator, process
    finally:
        process.kill()
        process.communicate()


def test_a_killed_emulator_loses_nothing_and_a_stopped_one_ends_in_order(tmp_path: Path) -> None:
    with program(tmp_path, "--manual-clock") as (emulator, process):
        emulator.create_group("done", size=2, tags={"a": "b"})
        emulator.fault("throttle", service="sts", times=3)
        emulator.client("ec2").create_launch_template(LaunchTemplateName="tpl", LaunchTemplateData={"KeyName": "k"})
        emulator.create_group("half", active=False)
        emulator.advance(100)
        s3 = emulator.client("s3", key="AKIDOFTHISTEST")
        s3.put_object(Bucket="moerl", Key="a/1 é/model.safetensors", Body=b"weights" * 1000, Metadata={"step": "7"})
        s3.put_object(Bucket="moerl", Key="gone", Body=b"x")
        _eventually(lambda: "gone" in copied(tmp_path))
        s3.delete_object(Bucket="moerl", Key="gone")
        _eventually(lambda: "gone" not in copied(tmp_path))
        before = emulator.state()
        process.kill()
    with program(tmp_path, "--manual-clock") as (emulator, process):
        assert emulator.state() == before
        emulator.advance(50)
        eks = emulator.client("eks", key="AKIDOFTHISTEST")
        assert eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName="half")["nodegroup"]["status"] == "ACTIVE"
        s3 = emulator.client("s3")
        found = s3.get_object(Bucket="moerl", Key="a/1 é/model.safetensors")
        assert (found["Body"].read(), found["Metadata"]) == (b"weights" * 1000, {"step": "7"})
        assert [entry["Key"] for entry in s3.list_objects_v2(Bucket="moerl")["Contents"]] == ["a/1 é/model.safetensors"]
        s3.put_object(Bucket="moerl", Key="last", Body=b"just before the end")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        said = process.stderr.read().decode() if process.stderr else ""
    assert set(copied(tmp_path)) == {"a/1 é/model.safetensors", "last"}
    assert "Traceback" not in said
    assert '"action": "DescribeNodegroup", "status": 200' in said
    assert "AKIDOFTHISTEST" not in said


def copied(folder: Path) -> dict[str, object]:
    """The objects of bucket `moerl` that are on disk."""
    index = folder / "s3" / "index.json"
    stored: dict[str, dict[str, object]] = json.loads(index.read_text()) if index.exists() else {}
    return stored.get("moerl", {})


def _eventually(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_emulator_that_runs_in_scaled_time(tmp_path: Path) -> None:
    with running_emulator(time_scale=600, state_dir=tmp_path) as emulator:
        started = time.time()
        emulator.create_group("g", active=False)
        eks = emulator.client("eks")
        waiter = eks.get_waiter("nodegroup_active")
        key = {"clusterName": CLUSTER, "nodegroupName": "g"}
        waiter.wait(**key, WaiterConfig={"Delay": 0.05, "MaxAttempts": 400})
        assert 0.2 <= time.time() - started < 10
        created = eks.describe_nodegroup(**key)["nodegroup"]["createdAt"].timestamp()
        assert abs(created - started) < 2  # timestamps are wall-clock times, whatever the scale
        eks.delete_nodegroup(**key)
        emulator.advance(400)  # a person may jump ahead too
        assert not any(emulator.leftovers().values())


@pytest.mark.parametrize("step", [5.0, 73.1, 5000.0])
def test_small_steps_and_one_jump_give_the_same_history(emulator: Emulator, step: float) -> None:
    emulator.fault("insufficient-capacity", available=2)
    asg = emulator.create_group("g")
    emulator.client("autoscaling").set_desired_capacity(AutoScalingGroupName=asg, DesiredCapacity=3)
    begin = emulator.state()["now"]
    passed = 0.0
    while passed < 1000:
        emulator.advance(min(step, 1000 - passed))
        passed += step
    activities = emulator.state()["scaling_groups"][asg]["activities"]
    origin = activities[0]["started_at"] - 10
    history = [
        (round(a["started_at"] - origin), a["status"], a["ended_at"] and round(a["ended_at"] - origin))
        for a in activities
    ]
    launched = [(10, "Successful", 55)] * 2
    failed = [(10 + 180 * n, "Failed", 70 + 180 * n) for n in range(6)]
    assert history == [*launched, *failed]
    assert round(emulator.state()["now"] - begin) == 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time-scale", "0"], "--time-scale must be above 0"),
        (["--kubeconfig", "/nowhere"], "--kubeconfig /nowhere cannot be used"),
        (["--bind", "203.0.113.1"], "cannot listen on 203.0.113.1"),
    ],
)
def test_a_bad_start_says_why_in_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "0", *options]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_broken_state_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "aws.json").write_text("{")
    assert main(["--port", "0", "--state-dir", str(tmp_path)]) == 1
    assert f"{tmp_path}/aws.json is not a state of this emulator" in capsys.readouterr().err
    assert (tmp_path / "aws.json").read_text() == "{"
