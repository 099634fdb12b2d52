"""The trainer's loop in this process on a real buffer, with a worker that answers at random in place of rollouts."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moerl_runtime.agent import progress
from moerl_runtime.buffer.client import Buffer
from moerl_runtime.buffer.model import FencedAttempt
from moerl_runtime.buffer.records import Sample, SampleGroup, token_ids
from moerl_runtime.checkpoint import marker, storage
from moerl_runtime.config import ConfigError, JobConfig, Settings, parse_job
from moerl_runtime.model.tiny import build_tiny, load_folder, save_folder
from moerl_runtime.tasks import task as tasks
from moerl_runtime.trainer.loop import TrainerLoop
from moerl_runtime.trainer.telemetry import Telemetry

pytestmark = pytest.mark.torch

BATCH, GROUP = 4, 4


def job(folder: Path, *, uid: str = "u1", checkpoints: str | None = None, **algorithm: Any) -> JobConfig:
    """A job of a few iterations with its storage below `folder`."""
    spec = {
        "algorithm": {
            "groupSize": GROUP,
            "promptsPerIteration": BATCH,
            "iterations": 6,
            "maxNewTokens": 4,
            "learningRate": "1e-3",
            "checkpointEveryIterations": 2,
            "evaluateEveryIterations": 3,
            **algorithm,
        },
        "model": {"preset": "TinyQwen3MoE"},
        "storage": {
            "dataset": "builtin://reverse-4",
            "checkpoints": checkpoints or (folder / "checkpoints").as_uri(),
            "artifacts": (folder / "artifacts").as_uri(),
        },
        "rollout": {"pools": [{"name": "main", "replicas": 1}]},
    }
    return parse_job({"metadata": {"name": "j", "namespace": "n", "uid": uid}, "spec": spec})


@asynccontextmanager
async def worker(buffer: Buffer, config: JobConfig) -> AsyncIterator[list[int]]:
    """Answers leased groups at random as the version of HEAD; gives the uids that it committed."""
    task = tasks.load(config.dataset, seed=0)
    limits = {"batch": BATCH, "max_staleness": config.algorithm.max_staleness_versions}
    draw = random.Random(0)
    done: list[int] = []

    async def turn() -> None:
        head = await buffer.head()
        if head is None:
            return
        answer = await buffer.lease("w", 2, ttl_seconds=30, version=head.version, **limits)
        for lease in answer.leases:
            samples = tuple(
                Sample.build(
                    index=at,
                    output_ids=[draw.randrange(4, 12) for _ in range(4)],
                    logprobs=[-2.0] * 4,
                    versions=[head.version] * 4,
                    reward=draw.random(),
                )
                for at in range(GROUP)
            )
            group = SampleGroup(
                uid=lease.uid,
                epoch=lease.epoch,
                worker="w",
                prompt_index=lease.prompt_index,
                prompt_ids=token_ids(task.prompt(lease.prompt_index)),
                samples=samples,
                incarnation=lease.incarnation,
            )
            await buffer.commit(lease, group)
            done.append(lease.uid)

    async def forever() -> None:
        while True:
            await turn()
            await asyncio.sleep(0.005)

    working = asyncio.create_task(forever())
    try:
        yield done
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def train(
    buffer: Buffer, config: JobConfig, folder: Path, *, attempt: int = 1, stop: asyncio.Event | None = None
) -> tuple[int, dict[str, Any]]:
    """Run one attempt to its end: (exit code, last progress)."""
    env = {"MOERL_RUN_DIR": str(folder), "MOERL_ATTEMPT": str(attempt)}
    telemetry = Telemetry(run_dir=folder, iterations=config.algorithm.iterations)
    async with TrainerLoop.open(Settings.from_env(env), config, buffer, telemetry, stop or asyncio.Event()) as loop:
        code = await loop.run()
    document = progress.read(folder)
    assert document is not None
    return code, document


async def when(folder: Path, iteration: int) -> None:
    """Wait until the trainer has done an iteration."""
    while ((progress.read(folder) or {}).get("iteration") or 0) < iteration:  # noqa: ASYNC110  (another's file)
        await asyncio.sleep(0.005)


async def test_it_trains_to_the_end_and_accounts_for_every_group(buffer: Buffer, tmp_path: Path) -> None:
    config = job(tmp_path)
    async with worker(buffer, config):
        code, seen = await train(buffer, config, tmp_path)
    assert code == 0
    assert (seen["phase"], seen["iteration"], seen["policyVersion"]) == ("Finished", 6, 7)
    assert [point[0] for point in seen["history"]] == [1, 2, 3, 4, 5, 6]
    assert seen["exactMatch"] is not None
    assert seen["dataPath"]["collectives"] == "gloo"
    ledger = await buffer.ledger()
    assert (ledger.consumed, ledger.taken, ledger.balanced) == (6 * BATCH, 0, True)
    assert (await buffer.audit()).problems == ()
    assert config.storage.checkpoints
    assert marker.complete(config.storage.checkpoints) == [(1, 4), (1, 6)], "older checkpoints are removed"
    final = json.loads(storage.read(seen["final"]["marker"]) or b"")
    assert (final["version"], final["step"], final["job"]) == (7, 6, "u1")
    load_folder(storage.local_path(seen["final"]["uri"]))


async def test_an_interrupted_attempt_saves_and_the_next_goes_on(buffer: Buffer, tmp_path: Path) -> None:
    config = job(tmp_path, checkpointEveryIterations=100)
    stop = asyncio.Event()
    async with worker(buffer, config):
        first = asyncio.create_task(train(buffer, config, tmp_path, stop=stop))
        await when(tmp_path, 3)
        stop.set()
        code, seen = await first
        assert code == 143
        step = seen["iteration"]
        assert marker.complete(str(config.storage.checkpoints)) == [(1, step)]
        code, seen = await train(buffer, config, tmp_path, attempt=2)
    assert code == 0
    assert seen["restoredFrom"].endswith(f"/1/{step}")
    assert seen["policyVersion"] == (step + 1) + 1 + (6 - step), "one more version for the restart, none used twice"
    assert [point[0] for point in seen["history"]] == [1, 2, 3, 4, 5, 6], "the curve survives the restart"
    assert (await buffer.ledger()).consumed == 6 * BATCH


async def test_a_superseded_trainer_stops_and_publishes_nothing_more(buffer: Buffer, tmp_path: Path) -> None:
    config = job(tmp_path, iterations=10_000)
    async with worker(buffer, config):
        old = asyncio.create_task(train(buffer, config, tmp_path))
        await when(tmp_path, 2)
        await buffer.begin(2, 0)
        with pytest.raises(FencedAttempt):
            await old
    head = await buffer.head()
    assert head is not None
    assert head.attempt == 1
    assert not [key for key in await buffer.list_blobs("v/") if "/a2/" in key]


async def test_other_jobs_checkpoints_and_later_attempts_are_refused(buffer: Buffer, tmp_path: Path) -> None:
    config = job(tmp_path, iterations=2)
    async with worker(buffer, config):
        await train(buffer, config, tmp_path, attempt=3)
        with pytest.raises(ConfigError, match=r"checkpoints of another job \(uid u1\); name an empty folder"):
            await train(buffer, job(tmp_path, uid="u2"), tmp_path, attempt=4)
        with pytest.raises(ConfigError, match=r"holds checkpoints of attempt 3, this is attempt 1"):
            await train(buffer, config, tmp_path)


async def test_a_checkpoint_that_fails_is_tried_again_and_nothing_is_settled_before(
    buffer: Buffer, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    await asyncio.to_thread(place.write_text, "a file where a folder should be")
    config = job(tmp_path, iterations=200, checkpoints=(place / "checkpoints").as_uri())
    async with worker(buffer, config):
        running = asyncio.create_task(train(buffer, config, tmp_path))
        await when(tmp_path, 3)
        assert (await buffer.ledger()).consumed == 0
        await asyncio.to_thread(place.unlink)
        while not (await buffer.ledger()).consumed:
            await asyncio.sleep(0.01)
            assert not running.done()
        assert marker.latest(str(config.storage.checkpoints)) is not None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_it_gives_up_when_no_checkpoint_can_be_written(buffer: Buffer, tmp_path: Path) -> None:
    place = tmp_path / "place"
    await asyncio.to_thread(place.write_text, "a file where a folder should be")
    config = job(tmp_path, iterations=50, checkpoints=(place / "checkpoints").as_uri())
    async with worker(buffer, config):
        with pytest.raises(storage.StorageError, match=r"place/checkpoints/1/\d+ cannot be written"):
            await train(buffer, config, tmp_path)


async def test_a_model_folder_is_loaded_and_must_fit_the_dataset(buffer: Buffer, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_folder(build_tiny(vocab_size=12, pad=0, bos=1, eos=3, seed=9), folder)
    config = job(tmp_path, iterations=1)
    fitting = parse_job({"metadata": {}, "spec": {**config.spec, "model": {"uri": folder.as_uri()}}})
    async with worker(buffer, config):
        code, _ = await train(buffer, fitting, tmp_path)
    assert code == 0
    for model, dataset, named in (
        (folder.as_uri(), "builtin://reverse-4?letters=20", "vocabulary of 12, the dataset reverse-4 needs 24"),
        (tmp_path.as_uri(), "builtin://reverse-4", "is not a model folder"),
    ):
        spec = {**config.spec, "model": {"uri": model}, "storage": {**config.spec["storage"], "dataset": dataset}}
        with pytest.raises(ConfigError, match=named):
            await train(buffer, parse_job({"metadata": {}, "spec": spec}), tmp_path)
