"""The demo as a person runs it, on a cluster of its own: real helm, real pods, a policy that learned.

While it trains, a rollout pod is deleted by force and the trainer is killed: the issue's promise is that the
first does not stop the run and the second goes on from the last checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import boto3
import pytest

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import Cluster
from moerl_operator.api import names
from support import local
from support.local import MOERL, node_obstacle

pytestmark = [pytest.mark.e2e, pytest.mark.node, pytest.mark.torch, pytest.mark.timeout(1800)]
NAME = f"demo{local.NAME}"
NAMESPACE, JOB = "demo", "reverse"
ACCOUNT = {"region_name": "us-east-1", "aws_access_key_id": "test", "aws_secret_access_key": "test"}
Obj = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen:
    """The job at one moment. `pods` maps the labels' (role, replica, attempt) to (UID, Ready)."""

    status: Obj
    report: Obj
    pods: dict[tuple[str, str, str], tuple[str, bool]]

    def uids(self, role: str) -> set[str]:
        """Of a role's pods."""
        return {uid for (of, _, _), (uid, _) in self.pods.items() if of == role}


@dataclass(frozen=True, slots=True)
class Strikes:
    """What was done to the job, and how it looked before and after each."""

    before: Seen
    without_rollout: Seen
    rollout_back: Seen
    trainer_back: Seen
    last_checkpoint: str


@dataclass(frozen=True, slots=True)
class Run:
    """The demo that ended, and what was done to it."""

    code: int
    said: str
    out: Path
    strikes: Strikes

    @property
    def record(self) -> Obj:
        """What the demo wrote down."""
        read: Obj = json.loads((self.out / "record.json").read_text())
        return read


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The finished demo, which lost a rollout pod and its trainer on the way."""
    if obstacle := node_obstacle():
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the tests with real pods, but {obstacle}")
        pytest.skip(obstacle)
    out, said = tmp_path_factory.mktemp("demo"), tmp_path_factory.mktemp("demo-log") / "said"
    command = [MOERL, "demo", "--cluster", NAME, "--out", str(out), "--timeout", "1200"]
    try:
        with said.open("wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            strikes = strike(process, said)
            code = process.wait()
        finally:
            process.terminate()
            process.wait()
        yield Run(code, said.read_text(), out, strikes)
    finally:
        subprocess.run([MOERL, "cluster", "down", "--name", NAME, "--purge"], capture_output=True, check=False)


def strike(process: subprocess.Popen[bytes], said: Path) -> Strikes:
    """Delete rollout replica 0 by force once the job trains, and kill the trainer once it has a checkpoint."""
    began = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    def until(what: str, look: Callable[[], T | None]) -> T:
        while process.poll() is None:
            try:
                if found := look():
                    return found
            except ClusterError:  # the cluster, the job or its report is not there yet
                pass
            time.sleep(1)
        raise AssertionError(f"the demo ended before {what}: {said.read_text()[-3000:]}")

    def seen_when(wanted: Callable[[Seen], bool]) -> Seen | None:
        seen = look_at(began)
        return seen if wanted(seen) else None

    before = until("it trained", lambda: seen_when(lambda seen: seen.status.get("iteration", 0) >= 1))
    cluster = Cluster.load(NAME)
    delete_by_force(cluster, f"{JOB}-rollout-spot-0-a1")
    gone = until("its pod went", lambda: seen_when(lambda seen: (names.ROLLOUT, "0", "1") not in seen.pods))
    back = until("the rollout was back and training went on", lambda: seen_when(lambda seen: went_on(gone, seen)))
    until("it had a checkpoint", lambda: checkpoints(cluster))
    kill(cluster, f"{JOB}-trainer-a1")
    resumed = until(
        "the trainer was back",
        lambda: seen_when(lambda seen: seen.report.get("attempt") == 2 and bool(seen.report.get("restoredFrom"))),
    )
    return Strikes(before, gone, back, resumed, checkpoints(cluster)[-1])


def look_at(began: str) -> Seen:
    """The job that was made since `began`. ClusterError while it is not there."""
    cluster = Cluster.load(NAME)
    job = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "moerljob", JOB, "-o", "json"))
    if job["metadata"]["creationTimestamp"] < began:
        raise ClusterError("an earlier demo's job")
    report = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "configmap", names.report(JOB), "-o", "json"))
    pods = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "pods", "-l", f"{names.LABEL_JOB}={JOB}", "-o", "json"))
    found = {}
    for pod in pods["items"]:
        labels = pod["metadata"]["labels"]
        key = [labels.get(label, "") for label in (names.LABEL_ROLE, names.LABEL_REPLICA, names.LABEL_ATTEMPT)]
        conditions = pod["status"].get("conditions", [])
        is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        found[key[0], key[1], key[2]] = (pod["metadata"]["uid"], is_ready)
    return Seen(job.get("status", {}), json.loads((report.get("data") or {}).get("report.json", "{}")), found)


def went_on(gone: Seen, seen: Seen) -> bool:
    """Whether the lost replica serves again, and the trainer has reported more than when it was lost."""
    _, is_ready = seen.pods.get((names.ROLLOUT, "0", "2"), ("", False))
    return is_ready and seen.report.get("iteration", 0) > gone.report.get("iteration", 0)


def pod_of(cluster: Cluster, child: str) -> Obj:
    """The one pod of a Job."""
    selector = f"batch.kubernetes.io/job-name={child}"
    (pod,) = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "pods", "-l", selector, "-o", "json"))["items"]
    found: Obj = pod
    return found


def delete_by_force(cluster: Cluster, child: str) -> None:
    """What an impatient person does to a pod."""
    name = pod_of(cluster, child)["metadata"]["name"]
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", name, "--grace-period=0", "--force", "--wait=false")


def kill(cluster: Cluster, child: str) -> None:
    """SIGKILL to the main program of a Job's pod, from outside: inside, a container's first process ignores it."""
    statuses = pod_of(cluster, child)["status"]["containerStatuses"]
    container = next(s["containerID"] for s in statuses if s["name"] == names.CONTAINER_MAIN)
    command = ["ctr", "--address", str(cluster.containerd_socket), "--namespace", "k8s.io", "task", "kill"]
    subprocess.run([*command, "--signal", "SIGKILL", container.removeprefix("containerd://")], check=True)


def s3(cluster: Cluster) -> Any:
    """The emulator's S3."""
    return boto3.client("s3", endpoint_url=cluster.aws_endpoint, **ACCOUNT)


def checkpoints(cluster: Cluster) -> list[str]:
    """Addresses of the first attempt's complete checkpoints, oldest first."""
    listed = s3(cluster).list_objects_v2(Bucket="moerl", Prefix=f"{JOB}/checkpoints/1/")
    steps = [key["Key"].split("/")[-2] for key in listed.get("Contents", []) if key["Key"].endswith("/COMPLETE")]
    return [f"s3://moerl/{JOB}/checkpoints/1/{step}" for step in sorted(steps, key=int)]


def test_it_ends_well_and_says_how_to_look_around(done: Run) -> None:
    assert done.code == 0, done.said[-3000:]
    assert "Complete" in done.said
    assert "Look around:" in done.said


def test_the_policy_learned_what_it_was_never_shown(done: Run) -> None:
    evaluation = done.record["evaluation"]
    assert evaluation["before"] <= 0.3
    assert evaluation["exactMatch"] >= 0.9
    assert evaluation["prompts"] >= 256


def test_every_role_ran_as_a_pod_on_its_own_node_group(done: Run) -> None:
    assert {pod["role"] for pod in done.record["pods"].values()} == {"trainer", "rollout", "environment", "buffer"}
    assert len({group["name"] for group in done.record["node_groups"]}) == 4
    assert (done.out / "index.html").stat().st_size > 10_000


def test_a_deleted_rollout_pod_comes_back_while_training_goes_on(done: Run) -> None:
    before, gone, back = done.strikes.before, done.strikes.without_rollout, done.strikes.rollout_back
    assert back.uids("trainer") == before.uids("trainer")
    assert ("rollout", "1", "1") in back.pods
    assert back.pods["rollout", "1", "1"] == before.pods["rollout", "1", "1"]
    assert back.report["attempt"] == 1
    assert back.report["iteration"] > gone.report["iteration"]
    failure = back.status["lastFailure"]
    assert (failure["child"], failure["kind"]) == (f"{JOB}-rollout-spot-0-a1", "Infrastructure")
    assert back.status["restarts"] == 1
    assert [role["restarts"] for role in back.status["roles"] if role["name"] == "spot"] == [0]


def test_a_killed_trainer_resumes_from_the_last_checkpoint(done: Run) -> None:
    assert done.strikes.trainer_back.uids("rollout") == done.strikes.rollout_back.uids("rollout")
    report, status = done.record["report"], done.record["job"]["status"]
    assert report["restoredFrom"] == done.strikes.last_checkpoint
    assert (report["attempt"], report["phase"], report["iteration"]) == (2, "Finished", report["iterations"])
    failure = status["lastFailure"]
    assert (failure["child"], failure["kind"], failure["exitCode"]) == (f"{JOB}-trainer-a1", "Application", 137)
    assert status["restarts"] == 2
    trainer = next(role for role in status["roles"] if role["name"] == "trainer")
    assert (trainer["attempt"], trainer["restarts"]) == (2, 1)
    marker = report["final"]["marker"].removeprefix("s3://moerl/")
    assert s3(Cluster.load(NAME)).head_object(Bucket="moerl", Key=marker)["ContentLength"] > 0


def test_a_deleted_job_leaves_nothing_in_aws(done: Run) -> None:
    endpoint = Cluster.load(NAME).aws_endpoint
    eks = boto3.client("eks", endpoint_url=endpoint, **ACCOUNT)
    ec2 = boto3.client("ec2", endpoint_url=endpoint, **ACCOUNT)
    assert eks.list_nodegroups(clusterName="moerl-local")["nodegroups"] == []
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []
