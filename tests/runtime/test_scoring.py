"""The environment and reward services over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from moerl_runtime import web
from moerl_runtime.scoring import service
from moerl_runtime.tasks.task import load

PROMPT = [1, 4, 5, 6, 7, 2]
RIGHT = [7, 6, 5, 4]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A session whose base is a service that plays both roles."""
    app = service.app(load("builtin://reverse-4", seed=0), environment=True, reward=True)
    async with (
        web.serving(app, host="127.0.0.1", port=0) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        yield session


async def test_a_turn_is_scored_once_and_repeated_alike(http: aiohttp.ClientSession) -> None:
    body = {"prompt_ids": PROMPT, "responses": [RIGHT, [7, 6, 4, 4], [4, 4, 4, 4], [7], []]}
    replies = []
    for _ in range(2):
        async with http.post("/v1/sessions/1-7-1/turns/0", json=body) as answer:
            assert answer.status == 200
            replies.append(await answer.json())
    assert replies[0] == replies[1]
    assert replies[0]["done"]
    assert [r["reward"] for r in replies[0]["results"]] == [1.0, 0.75, 0.25, 0.25, 0.0]
    assert [r["exact"] for r in replies[0]["results"]] == [True, False, False, False, False]
    async with http.get("/metrics") as answer:
        text = await answer.text()
    assert "moerl_scored_responses_total 5.0" in text
    assert "moerl_scored_repeats_total 1.0" in text


async def test_another_answer_to_the_same_turn_is_refused(http: aiohttp.ClientSession) -> None:
    await http.post("/v1/sessions/s/turns/0", json={"prompt_ids": PROMPT, "responses": [RIGHT]})
    async with http.post("/v1/sessions/s/turns/0", json={"prompt_ids": PROMPT, "responses": [[4]]}) as answer:
        assert answer.status == 409
        assert "scored with other responses" in (await answer.json())["message"]
    async with http.post("/v1/sessions/s/turns/1", json={"prompt_ids": PROMPT, "responses": [RIGHT]}) as answer:
        assert answer.status == 409


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "Invalid JSON"),
        (b'{"prompt_ids": [1], "responses": [[1]]}', "not a prompt of reverse-4: [1]"),
        (b'{"prompt_ids": [1], "responses": []}', "responses: "),
        (b'{"prompt_ids": [1], "answers": [[1]]}', "responses: Field required"),
    ],
)
async def test_bad_input_is_the_caller_s_fault(http: aiohttp.ClientSession, body: bytes, message: str) -> None:
    async with http.post("/v1/sessions/s/turns/0", data=body) as answer:
        assert answer.status == 400
        assert message in (await answer.json())["message"]


async def test_reward_scores_items_of_any_prompts(http: aiohttp.ClientSession) -> None:
    items = [{"prompt_ids": PROMPT, "output_ids": RIGHT}, {"prompt_ids": [1, 4, 4, 4, 5, 2], "output_ids": RIGHT}]
    async with http.post("/v1/score", json={"items": items}) as answer:
        assert [r["reward"] for r in (await answer.json())["results"]] == [1.0, 0.25]


async def test_health_and_readiness(http: aiohttp.ClientSession) -> None:
    for path in ("/healthz", "/readyz"):
        async with http.get(path) as answer:
            assert answer.status == 200
