"""The engine's HTTP protocol: token ids in, token ids with log-probabilities and versions out.

Shaped on SGLang's native API so that SGLang and vLLM become adapters later. The driver speaks it over the pod's
loopback, the engine serves it. No torch here: the driver starts in a second with this module alone.

    POST /generate      GenerateRequest    -> GenerateResponse
    POST /abort         AbortRequest       -> Ack      running requests end with finish_reason "abort" and keep tokens
    POST /pause         (empty)            -> Ack      running requests finish, new ones get 503 Paused
    POST /continue      (empty)            -> Ack
    POST /load_weights  LoadRequest        -> VersionReport   a failed load leaves the engine unready (503 NotReady)
    GET  /version                          -> VersionReport
    GET  /health                           -> 200 once the process can take requests (weights or not), else 503

Every refusal is an ErrorReply. 503 may be retried and means "not now": a request is never answered by a policy older
than its `min_version`. 400 is the caller's mistake and is not retried. 500 with code Failed: the request ran and broke.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

GENERATE = "/generate"
ABORT = "/abort"
PAUSE = "/pause"
CONTINUE = "/continue"
LOAD_WEIGHTS = "/load_weights"
VERSION = "/version"
HEALTH = "/health"


class _Message(BaseModel):
    """Unknown fields are refused: a misspelt sampling parameter must not change the distribution silently."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Sampling(_Message):
    """How tokens are drawn. `temperature` 0 is greedy; then log-probabilities are those at temperature 1."""

    temperature: float = Field(default=1.0, ge=0.0)
    max_new_tokens: int = Field(ge=1)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    stop_token_ids: list[int] = Field(default_factory=list)
    seed: int | None = None


class GenerateRequest(_Message):
    """`n` samples for each prompt in `input_ids`; served only by a version of at least `min_version`."""

    input_ids: list[list[int]] = Field(min_length=1)
    n: int = Field(default=1, ge=1)
    sampling: Sampling
    min_version: int | None = None
    request_id: str | None = None


class Sequence(_Message):
    """One response. `logprobs` and `versions` have one entry per id in `output_ids` (a stop token included)."""

    output_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    version_start: int
    version_end: int
    finish_reason: Literal["stop", "length", "abort"]


class GenerateResponse(_Message):
    """Sequences in prompt-major order: sample j of prompt i is `sequences[i * n + j]`."""

    sequences: list[Sequence]
    seconds: float = 0.0


class AbortRequest(_Message):
    """Requests to abort by id; None aborts all."""

    request_ids: list[str] | None = None


class LoadRequest(_Message):
    """A local Hugging Face folder (config.json, *.safetensors) and the version it holds."""

    path: str
    version: int = Field(ge=0)


class EngineState(StrEnum):
    """What the engine can do now; only READY serves /generate."""

    EMPTY = "Empty"
    LOADING = "Loading"
    READY = "Ready"
    PAUSED = "Paused"
    FAILED = "Failed"


class VersionReport(_Message):
    """The version that serves (None before the first load and after a failed one)."""

    version: int | None
    state: EngineState
    message: str = ""


class Ack(_Message):
    """Success of a command; `count` is how many requests it concerned."""

    ok: bool = True
    count: int = 0


class ErrorCode(StrEnum):
    """Reasons of a refusal. The first four come with 503 and may be retried."""

    NOT_READY = "NotReady"
    PAUSED = "Paused"
    LOADING = "Loading"
    VERSION_TOO_OLD = "VersionTooOld"
    INVALID = "Invalid"
    FAILED = "Failed"

    @property
    def status(self) -> int:
        """The HTTP status that goes with the code."""
        return {ErrorCode.INVALID: 400, ErrorCode.FAILED: 500}.get(self, 503)


class ErrorReply(_Message):
    """Body of every answer that is not 2xx."""

    code: ErrorCode
    message: str
    version: int | None = None
