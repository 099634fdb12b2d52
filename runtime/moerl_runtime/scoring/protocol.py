"""Messages between the driver and the scoring services.

    POST /v1/sessions/{session}/turns/{turn}   TurnRequest  -> TurnReply     environment; idempotent by (session, turn)
    POST /v1/score                             ScoreRequest -> ScoreReply    reward; a pure function of its input

5xx and a broken connection mean "try again". 4xx means that this request can never be scored (409: the turn was
scored already with other responses); its group is failed, never given reward 0.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

TURN = "/v1/sessions/{session}/turns/{turn}"
SCORE = "/v1/score"


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Result(_Message):
    """The score of one response: dense `reward` in [0, 1], and whether it is exactly right."""

    reward: float
    exact: bool


class TurnRequest(_Message):
    """All responses of one group to its prompt."""

    prompt_ids: list[int]
    responses: list[list[int]] = Field(min_length=1)


class TurnReply(_Message):
    """Results in the order of the responses; `done`: no further turn follows."""

    session: str
    turn: int
    done: bool
    results: list[Result]


class ScoreItem(_Message):
    """One response to score."""

    prompt_ids: list[int]
    output_ids: list[int]


class ScoreRequest(_Message):
    """Any responses, of any prompts."""

    items: list[ScoreItem] = Field(min_length=1)


class ScoreReply(_Message):
    """Results in the order of the items."""

    results: list[Result]


class Refusal(_Message):
    """Body of every answer that is not 2xx."""

    message: str
