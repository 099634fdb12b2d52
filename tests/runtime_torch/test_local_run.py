"""`moerl local`: a manifest as real processes; interrupted, resumed, with a rollout and the trainer killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner

from moerl_runtime.agent import progress
from moerl_runtime.checkpoint import dcp, marker, storage
from moerl_runtime.config import ConfigError
from moerl_runtime.local import table
from moerl_runtime.local.cli import local
from moerl_runtime.local.layout import Layout, lay_out, load_manifest
from moerl_runtime.local.supervisor import LocalRun
from moerl_runtime.model.tiny import build_tiny, load_folder
from moerl_runtime.trainer import collective
from moerl_runtime.trainer.update import make_optimizer

pytestmark = pytest.mark.torch

ITERATIONS, BATCH, EVERY = 60, 8, 10


def manifest(folder: Path, **changes: Any) -> Path:
    """A small job's manifest; `changes` replace parts of its spec."""
    one = {"nodes": {"count": 1, "instanceTypes": ["local"]}}
    spec = {
        "algorithm": {
            "groupSize": 4,
            "promptsPerIteration": BATCH,
            "iterations": ITERATIONS,
            "maxNewTokens": 4,
            "learningRate": "1e-3",
            "checkpointEveryIterations": EVERY,
            "evaluateEveryIterations": EVERY,
        },
        "model": {"preset": "TinyQwen3MoE"},
        "storage": {
            "dataset": "builtin://reverse-4",
            "checkpoints": f"s3://moerl/{folder.name}/checkpoints",
            "artifacts": f"s3://moerl/{folder.name}/artifacts",
        },
        "trainer": one,
        "rollout": {"pools": [{"name": "main", "replicas": 2, "nodes": {"instanceTypes": ["local"]}}]},
        "environment": {"replicas": 1, **one},
        "buffer": {"storage": {"type": "Memory", "size": "1Gi"}, **one},
    } | changes
    path = folder / "job.yaml"
    job = {"apiVersion": "moerl.dev/v1alpha1", "kind": "MoERLJob", "metadata": {"name": "small"}, "spec": spec}
    path.write_text(yaml.safe_dump(job))
    return path


def prepare(path: Path, *, first_attempt: int) -> tuple[LocalRun, Layout]:
    name, raw = load_manifest(path)
    state = path.parent / f"state-{first_attempt}"
    layout = lay_out(name, raw, state=state)
    return LocalRun(layout, first_attempt=first_attempt, logs=state / "logs", max_restarts=3), layout


async def until(task: asyncio.Task[int], layout: Layout, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The trainer's progress once it is as wanted; fails if the run ends before."""
    while not task.done():
        document = progress.read(layout.run_dir)
        if document is not None and wanted(document):
            return document
        await asyncio.sleep(0.01)
    raise AssertionError(f"the run ended with {task.result()} before that")


def kill(run: LocalRun, name: str) -> None:
    process = run.children[name].process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)


@pytest.mark.timeout(1200)
async def test_it_survives_an_interruption_a_lost_rollout_and_a_lost_trainer(s3: str, tmp_path: Path) -> None:
    path = manifest(tmp_path)
    checkpoints = f"{s3}/{tmp_path.name}/checkpoints"

    first, layout = prepare(path, first_attempt=1)
    stop = asyncio.Event()
    task = asyncio.create_task(first.run(stop))
    await until(task, layout, lambda seen: seen["iteration"] >= 3)
    stop.set()
    assert await task == 143
    interrupted = marker.latest(checkpoints)
    assert interrupted is not None
    assert interrupted.attempt == 1
    assert interrupted.step >= 3
    assert not any(child.running for child in first.children.values())

    second, layout = prepare(path, first_attempt=2)
    task = asyncio.create_task(second.run(asyncio.Event()))
    seen = await until(task, layout, lambda seen: seen["iteration"] > interrupted.step)
    assert seen["restoredFrom"] == f"{checkpoints}/1/{interrupted.step}"
    assert seen["policyVersion"] > interrupted.version, "a version is never used twice"
    kill(second, "rollout-main-0-engine")
    at_kill = await until(task, layout, lambda seen: seen["iteration"] >= interrupted.step + EVERY + 3)
    kill(second, "trainer")
    resumed = await until(task, layout, lambda seen: seen["restoredFrom"] not in (None, at_kill["restoredFrom"]))
    restored = marker.read(checkpoints, attempt=2, step=int(str(resumed["restoredFrom"]).rsplit("/", 1)[1]))
    assert await asyncio.wait_for(task, 600) == 0
    assert second.attempt == 3
    assert second.children["rollout-main-0-engine"].starts >= 2

    last = progress.read(layout.run_dir)
    assert last is not None
    assert (last["phase"], last["iteration"]) == ("Finished", ITERATIONS)
    assert last["policyVersion"] > restored.version
    assert last["stalenessVersions"]["max"] <= 1
    assert second.receipt is not None
    assert second.receipt.problems == ()
    assert second.receipt.ledger.balanced
    trained_here = (ITERATIONS - interrupted.step) * BATCH
    assert second.receipt.ledger.consumed == trained_here, "each group of the lineage was trained once"
    assert "audit clean" in table.receipt(second.receipt)
    assert not any(child.running for child in second.children.values())
    _final_policy_is_the_trainers(last, checkpoints, tmp_path)


def _final_policy_is_the_trainers(last: dict[str, Any], checkpoints: str, tmp_path: Path) -> None:
    """The exported folder gives bit by bit the logits of the trainer's last checkpoint."""
    raw = storage.read(last["final"]["marker"])
    assert raw is not None
    assert json.loads(raw)["version"] == last["final"]["version"] == last["policyVersion"]
    folder = storage.download_folder(last["final"]["uri"], tmp_path / "final")
    exported = load_folder(folder)
    trained = build_tiny(vocab_size=12, pad=0, bos=1, eos=3, seed=123)
    collective.start({})
    try:
        uri = marker.folder(checkpoints, attempt=3, step=ITERATIONS)
        dcp.load(uri, trained, make_optimizer(trained, learning_rate=1e-3), extra={"step": 0, "version": 0})
    finally:
        collective.stop()
    ids = torch.randint(0, 12, (64, 10), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(exported(input_ids=ids).logits, trained(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"algorithm": {"iterations": 1, "groupSiz": 4}}, "spec.algorithm.groupSiz"),
        ({"framework": {"type": "Custom"}}, "spec.framework.type is Custom"),
        (
            {"trainer": {"nodes": {"count": 2, "instanceTypes": ["local"]}}},
            "spec.trainer.nodes.count is 2; one machine runs 1",
        ),
    ],
)
def test_a_manifest_that_cannot_run_here_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = manifest(tmp_path, **change)
    with pytest.raises(ConfigError) as raised:
        load_manifest(path)
    assert named in str(raised.value)
    outcome = CliRunner().invoke(local, ["run", str(path)])
    assert outcome.exit_code == 2
    assert len(outcome.output.strip().splitlines()) == 1


def test_ports_are_distinct_and_the_password_is_in_no_command(tmp_path: Path) -> None:
    _, layout = prepare(manifest(tmp_path), first_attempt=1)
    members = [*layout.services, *layout.rollouts, *layout.trainer(1)]
    password = layout.common["MOERL_BUFFER_PASSWORD"]
    assert not any(password in part for member in members for part in member.command)
    assert len([member for member in layout.rollouts if member.role == "engine"]) == 2
    places = [member.env["MOERL_ENGINE_URL"] for member in layout.rollouts if member.role == "engine"]
    places += [member.env["MOERL_AGENT_PORT"] for member in layout.rollouts if member.role == "driver"]
    assert len(set(places)) == 4


def test_storage_and_model_of_the_command_line_win(tmp_path: Path) -> None:
    name, raw = load_manifest(manifest(tmp_path))
    layout = lay_out(name, raw, state=tmp_path / "s", storage=tmp_path / "kept", model=str(tmp_path / "warm"))
    written = json.loads(Path(layout.common["MOERL_CONFIG"]).read_text())["spec"]
    assert written["model"] == {"uri": (tmp_path / "warm").as_uri()}
    assert written["storage"]["checkpoints"] == (tmp_path / "kept/checkpoints").as_uri()
    assert written["storage"]["dataset"] == raw["storage"]["dataset"]
    assert layout.spec.storage is not None
    assert layout.spec.storage.artifacts == (tmp_path / "kept/artifacts").as_uri()
