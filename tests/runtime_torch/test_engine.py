"""The native engine over real HTTP: versions, refusals, aborts, pauses and loads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer

from moerl_runtime.model.tiny import build_tiny, load_folder, save_folder
from moerl_runtime.rollout.engine import application
from moerl_runtime.rollout.engine_core import EngineCore

pytestmark = pytest.mark.torch

PROMPT = [1, 4, 5, 6, 7, 2]
Client = TestClient[Any, Any]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Model folders by version."""
    root = tmp_path_factory.mktemp("versions")
    made = {version: root / str(version) for version in (1, 2, 3)}
    for version, folder in made.items():
        save_folder(build_tiny(vocab_size=12, pad=0, bos=1, eos=3, seed=version), folder)
    return made


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    core = EngineCore()
    core.start()
    async with TestClient(TestServer(application(core), handler_cancellation=True)) as made:
        yield made
    await core.stop()


async def call(client: Client, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    answer = await client.post(path, json=body)
    return answer.status, await answer.json()


async def load(client: Client, folders: dict[int, Path], version: int) -> None:
    status, report = await call(client, "/load_weights", {"path": str(folders[version]), "version": version})
    assert (status, report["version"], report["state"]) == (200, version, "Ready")


def request(*, n: int = 1, tokens: int = 4, prompts: list[list[int]] | None = None, **fields: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": tokens, **fields.pop("sampling", {})}
    return {"input_ids": prompts or [PROMPT], "n": n, "sampling": sampling, **fields}


async def test_it_serves_only_what_was_loaded_and_only_new_enough(client: Client, folders: dict[int, Path]) -> None:
    status, error = await call(client, "/generate", request())
    assert (status, error["code"]) == (503, "NotReady")
    assert (await client.get("/health")).status == 200
    await load(client, folders, 2)
    status, error = await call(client, "/generate", request(min_version=3))
    assert (status, error["code"], error["version"]) == (503, "VersionTooOld", 2)
    status, answer = await call(client, "/generate", request(n=3, prompts=[PROMPT, [1, 9, 2]], min_version=2))
    assert status == 200
    assert len(answer["sequences"]) == 6
    for sequence in answer["sequences"]:
        assert sequence["versions"] == [2] * 4
        assert (sequence["version_start"], sequence["version_end"], sequence["finish_reason"]) == (2, 2, "length")


async def test_the_logprobs_are_those_of_the_loaded_folder(client: Client, folders: dict[int, Path]) -> None:
    await load(client, folders, 1)
    await load(client, folders, 3)
    _, answer = await call(client, "/generate", request(n=8))
    model = load_folder(folders[3])
    for sequence in answer["sequences"]:
        ids = torch.tensor([[*PROMPT, *sequence["output_ids"]]])
        with torch.no_grad():
            logp = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0, len(PROMPT) - 1 : -1], -1)
        wanted = logp.gather(-1, torch.tensor(sequence["output_ids"])[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(sequence["logprobs"]), wanted, atol=2e-5, rtol=0)


async def test_requests_that_come_together_share_a_batch(client: Client, folders: dict[int, Path]) -> None:
    await load(client, folders, 1)
    answers = await asyncio.gather(*(call(client, "/generate", request(n=4)) for _ in range(16)))
    assert {status for status, _ in answers} == {200}
    assert len({answer["seconds"] for _, answer in answers}) <= 8, "fewer batches than requests"


async def test_a_seed_repeats_a_request_whatever_runs_beside_it(client: Client, folders: dict[int, Path]) -> None:
    await load(client, folders, 1)
    seeded = request(n=8, sampling={"seed": 7})
    _, alone = await call(client, "/generate", seeded)
    crowd = await asyncio.gather(
        *(call(client, "/generate", one) for one in (request(n=5), seeded, request(n=9), seeded))
    )
    ids = [[s["output_ids"] for s in answer["sequences"]] for answer in (alone, crowd[1][1], crowd[3][1])]
    assert ids[0] == ids[1] == ids[2]


async def test_an_abort_returns_what_there_is(client: Client, folders: dict[int, Path]) -> None:
    await load(client, folders, 1)
    long = asyncio.create_task(call(client, "/generate", request(n=1500, tokens=50, request_id="long")))
    await asyncio.sleep(0.3)
    assert (await call(client, "/abort", {"request_ids": ["other"]}))[1]["count"] == 0
    assert (await call(client, "/abort", {"request_ids": ["long"]}))[1]["count"] == 1
    status, answer = await long
    assert status == 200
    first = answer["sequences"][0]
    assert first["finish_reason"] == "abort"
    assert len(first["output_ids"]) < 50
    assert len(first["output_ids"]) == len(first["logprobs"]) == len(first["versions"])


async def test_an_update_never_falls_into_a_batch(client: Client, folders: dict[int, Path]) -> None:
    await load(client, folders, 1)
    running = asyncio.create_task(call(client, "/generate", request(n=600, tokens=20)))
    await asyncio.sleep(0.1)
    loading = asyncio.create_task(load(client, folders, 2))
    await asyncio.sleep(0.02)
    refused = await call(client, "/generate", request())
    status, answer = await running
    await loading
    assert status == 200
    assert {version for s in answer["sequences"] for version in s["versions"]} == {1}
    assert refused[0] == 200 or refused[1]["code"] == "Loading"
    _, after = await call(client, "/generate", request())
    assert after["sequences"][0]["versions"] == [2] * 4


async def test_a_failed_load_leaves_it_unready_until_one_succeeds(
    client: Client, folders: dict[int, Path], tmp_path: Path
) -> None:
    await load(client, folders, 1)
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "absent"):
        status, error = await call(client, "/load_weights", {"path": str(path), "version": 2})
        assert (status, error["code"]) == (500, "Failed")
        assert str(path) in error["message"]
    assert (await call(client, "/generate", request()))[1]["code"] == "NotReady"
    report = await (await client.get("/version")).json()
    assert (report["version"], report["state"]) == (None, "Failed")
    await load(client, folders, 3)
    status, error = await call(client, "/load_weights", {"path": str(folders[2]), "version": 2})
    assert (status, error["code"]) == (400, "Invalid"), "versions never go back"
    assert (await call(client, "/generate", request()))[0] == 200


async def test_paused_it_finishes_and_takes_nothing_new(client: Client, folders: dict[int, Path]) -> None:
    await load(client, folders, 1)
    running = asyncio.create_task(call(client, "/generate", request(n=300, tokens=20)))
    await asyncio.sleep(0.05)
    assert (await call(client, "/pause"))[1]["count"] == 1
    assert (await call(client, "/generate", request()))[1]["code"] == "Paused"
    status, answer = await running
    assert (status, answer["sequences"][0]["finish_reason"]) == (200, "length")
    await call(client, "/continue")
    assert (await call(client, "/generate", request()))[0] == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (request(prompts=[[]]), "no tokens"),
        (request(prompts=[[1, 99]]), "outside the vocabulary of 12"),
        (request(tokens=60), "need 66 positions, the model has 64"),
        (request(sampling={"top_pp": 1}), "sampling.top_pp: Extra inputs are not permitted"),
        (request(n=0), "n: Input should be greater than or equal to 1"),
    ],
)
async def test_a_mistake_is_a_400_that_names_it(
    client: Client, folders: dict[int, Path], body: dict[str, Any], named: str
) -> None:
    await load(client, folders, 1)
    status, error = await call(client, "/generate", body)
    assert (status, error["code"]) == (400, "Invalid")
    assert named in error["message"]


async def test_a_caller_that_goes_away_frees_the_engine(client: Client, folders: dict[int, Path]) -> None:
    await load(client, folders, 1)
    gone = asyncio.create_task(call(client, "/generate", request(n=1500, tokens=55)))
    await asyncio.sleep(0.2)
    gone.cancel()
    status, answer = await asyncio.wait_for(call(client, "/generate", request()), timeout=30)
    assert (status, answer["sequences"][0]["finish_reason"]) == (200, "length")
