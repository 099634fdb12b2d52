"""The environment and the reward service: `python -m moerl_runtime environment` and `... reward`.

Both score by the job's verifiable task. They hold nothing that matters: a turn that was scored by a pod now gone is
scored again, to the same result.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram
from pydantic import ValidationError

from .. import web as runtime_web
from ..config import ConfigError, Settings
from ..tasks.task import Task, TaskError, load
from .protocol import (
    SCORE,
    TURN,
    Refusal,
    Result,
    ScoreReply,
    ScoreRequest,
    TurnReply,
    TurnRequest,
)

REMEMBERED_TURNS = 65536
"""Turns whose answer is kept for a repeated request; a job has at most some thousand groups open."""


class ScoringMetrics:
    """What a scoring service counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.responses = Counter("moerl_scored_responses", "Responses scored.", registry=registry)
        self.repeats = Counter("moerl_scored_repeats", "Turns answered from memory.", registry=registry)
        self.refused = Counter("moerl_score_refused", "Requests refused as unscorable.", registry=registry)
        self.exact = Counter("moerl_scored_exact", "Responses that were exactly right.", registry=registry)
        self.seconds = Histogram("moerl_score_seconds", "Time to score one request.", registry=registry)


class Scoring:
    """The handlers of one service."""

    def __init__(self, task: Task, metrics: ScoringMetrics) -> None:
        self._task = task
        self._metrics = metrics
        self._turns: OrderedDict[tuple[str, int], tuple[bytes, str]] = OrderedDict()

    async def turn(self, request: web.Request) -> web.Response:
        """Score a group's responses once; the same request again gets the same answer."""
        session, turn = request.match_info["session"], int(request.match_info["turn"])
        body = await request.read()
        digest = hashlib.sha256(body).digest()
        known = self._turns.get((session, turn))
        if known:
            if known[0] != digest:
                return self._refuse(409, f"turn {turn} of session {session} was scored with other responses")
            self._metrics.repeats.inc()
            return web.Response(text=known[1], content_type="application/json")
        if turn != 0:
            return self._refuse(409, f"session {session} ended after turn 0: {self._task.name} has one turn")
        message = TurnRequest.model_validate_json(body)
        results = self._score([(message.prompt_ids, response) for response in message.responses])
        text = TurnReply(session=session, turn=turn, done=True, results=results).model_dump_json()
        self._turns[(session, turn)] = (digest, text)
        if len(self._turns) > REMEMBERED_TURNS:
            self._turns.popitem(last=False)
        return web.Response(text=text, content_type="application/json")

    async def score(self, request: web.Request) -> web.Response:
        """Score responses."""
        message = ScoreRequest.model_validate_json(await request.read())
        results = self._score([(item.prompt_ids, item.output_ids) for item in message.items])
        return web.Response(text=ScoreReply(results=results).model_dump_json(), content_type="application/json")

    def guarded(
        self, handler: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Bad input becomes a 400 that says what is wrong."""

        async def answer(request: web.Request) -> web.Response:
            with self._metrics.seconds.time():
                try:
                    return await handler(request)
                except ValidationError as error:
                    first = error.errors()[0]
                    place = ".".join(str(part) for part in first["loc"])
                    return self._refuse(400, f"{place or 'body'}: {first['msg']}")
                except TaskError as error:
                    return self._refuse(400, str(error))

        return answer

    def _score(self, pairs: list[tuple[list[int], list[int]]]) -> list[Result]:
        scores = [self._task.score(prompt, output) for prompt, output in pairs]
        self._metrics.responses.inc(len(scores))
        self._metrics.exact.inc(sum(score.exact for score in scores))
        return [Result(reward=score.reward, exact=score.exact) for score in scores]

    def _refuse(self, status: int, message: str) -> web.Response:
        self._metrics.refused.inc()
        return web.Response(
            text=Refusal(message=message).model_dump_json(), status=status, content_type="application/json"
        )


def app(task: Task, *, environment: bool, reward: bool) -> web.Application:
    """The application of one service, with health and metrics."""
    registry = CollectorRegistry()
    scoring = Scoring(task, ScoringMetrics(registry))
    application = runtime_web.application(registry=registry, ready=lambda: "")
    if environment:
        application.router.add_post(TURN.replace("{turn}", r"{turn:\d+}"), scoring.guarded(scoring.turn))
    if reward:
        application.router.add_post(SCORE, scoring.guarded(scoring.score))
    return application


async def serve(settings: Settings, *, role: str) -> int:
    """Serve until SIGTERM. ConfigError when the job or its dataset cannot be used."""
    stop = runtime_web.stop_event()
    job = settings.job_config()
    try:
        task = await asyncio.to_thread(load, job.dataset, seed=job.algorithm.seed)
    except TaskError as error:
        raise ConfigError(str(error)) from error
    application = app(task, environment=role == "environment", reward=role == "reward")
    async with runtime_web.serving(application, host=settings.bind, port=settings.service_port) as port:
        print(f"moerl {role}: scoring {task.name} on port {port}", flush=True)
        await stop.wait()
    return runtime_web.INTERRUPTED


def main(role: str) -> int:
    """Entry point of the roles environment and reward."""
    return asyncio.run(serve(Settings.from_env(), role=role))
