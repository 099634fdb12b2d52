"""Scores a group through the environment and reward services, apart from generation.

Tokens are dear and scoring is cheap, so a dead or slow service is asked again, with backoff, for as long as the group
is leased. What infrastructure does is never a reward of 0: a group gets all its scores or none.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from ..scoring import protocol
from ..scoring.protocol import ScoreItem, ScoreReply, ScoreRequest, TurnReply, TurnRequest

REQUEST_SECONDS = 120.0
MAX_DELAY_SECONDS = 10.0

M = TypeVar("M", bound=BaseModel)


class Unscorable(RuntimeError):
    """The service says that this request can never be scored (4xx)."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The reward that is trained on, and everything that was said about the response."""

    reward: float
    scores: dict[str, float]


class Scorer:
    """Asks the services of one job. With both, the environment plays the turn and the other gives the reward."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        environment_url: str,
        reward_url: str,
        on_retry: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._session = session
        self._environment = environment_url
        self._reward = reward_url
        self._on_retry = on_retry

    async def score(
        self, *, session: str, prompt_ids: Sequence[int], responses: Sequence[Sequence[int]]
    ) -> list[Scored]:
        """Scores in the order of the responses; returns only when all are there. Unscorable on a 4xx.

        `session` names the group and its lease epoch, so that a repeated request is the same turn.
        """
        prompt, outputs = list(prompt_ids), [list(response) for response in responses]
        scored: list[Scored] = []
        if self._environment:
            path = protocol.TURN.format(session=session, turn=0)
            request = TurnRequest(prompt_ids=prompt, responses=outputs)
            turn = await self._ask(self._environment + path, request, TurnReply)
            scored = [_scored(result, "environment") for result in turn.results]
        if self._reward:
            items = [ScoreItem(prompt_ids=prompt, output_ids=output) for output in outputs]
            reply = await self._ask(self._reward + protocol.SCORE, ScoreRequest(items=items), ScoreReply)
            rewards = [_scored(result, "reward") for result in reply.results]
            earlier = scored or [Scored(reward=0.0, scores={})] * len(rewards)
            scored = [
                Scored(reward=new.reward, scores={**old.scores, **new.scores})
                for old, new in zip(earlier, rewards, strict=True)
            ]
        if len(scored) != len(outputs):
            raise Unscorable(f"{len(scored)} scores came for {len(outputs)} responses")
        return scored

    async def _ask(self, url: str, request: BaseModel, reply: type[M]) -> M:
        """Post until an answer comes. Unscorable on 4xx or on an answer that is no such reply."""
        delay = 0.1
        while True:
            status, content, problem = await self._post(url, request.model_dump_json().encode())
            if status == 200:
                try:
                    return reply.model_validate_json(content)
                except ValidationError as error:
                    raise Unscorable(f"{url} answered no {reply.__name__}: {error.errors()[0]['msg']}") from error
            if 400 <= status < 500 and status not in (408, 425, 429):
                raise Unscorable(f"{url} answered {status}: {content[:300].decode(errors='replace')}")
            self._on_retry(problem or f"{url} answered {status}")
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311  (jitter)
            delay = min(delay * 2, MAX_DELAY_SECONDS)

    async def _post(self, url: str, data: bytes) -> tuple[int, bytes, str]:
        """(status, body, ""), or (0, b"", why) when no answer came."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS, connect=5.0)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(url, data=data, headers=headers, timeout=timeout) as answer:
                return answer.status, await answer.read(), ""
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return 0, b"", f"{url} cannot be reached: {error or type(error).__name__}"


def _scored(result: protocol.Result, source: str) -> Scored:
    return Scored(reward=result.reward, scores={source: result.reward, "exact": float(result.exact)})
