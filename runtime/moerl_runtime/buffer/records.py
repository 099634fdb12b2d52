"""The sample record: what one prompt group carries from the rollouts to the trainer.

The record describes itself (schema number, uid, epoch, worker), so that a rebuilt buffer could re-admit payloads
it finds. Arrays go as raw little-endian numbers behind a JSON header: a group of 16 x 16384 tokens decodes without
one Python object per token, and `torch.frombuffer`, `numpy.frombuffer` and plain loops all read an `array.array`.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

SCHEMA = 1
"""Number of the record layout below; a reader refuses every other number."""

_PREFIX = struct.Struct("<BI")  # schema, bytes of the JSON header


class RecordError(ValueError):
    """A payload is not a sample group that this program can read, or a group is inconsistent."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One response to the group's prompt. All four arrays have one entry per generated token.

    `logprobs` are natural logarithms under the distribution that was really sampled (temperature and top-p applied).
    `mask` is 1 for tokens to train on. `usable` is False for a member lost to infrastructure: it counts neither in the
    group's mean nor as reward 0.
    """

    index: int
    output_ids: array[int]
    logprobs: array[float]
    versions: array[int]
    mask: array[int]
    reward: float
    usable: bool = True
    scores: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def build(
        *,
        index: int,
        output_ids: Iterable[int],
        logprobs: Iterable[float],
        versions: Iterable[int],
        reward: float,
        mask: Iterable[int] | None = None,
        usable: bool = True,
        scores: dict[str, float] | None = None,
    ) -> Sample:
        """A sample from any iterables; the mask defaults to training every generated token."""
        ids = array("i", output_ids)
        return Sample(
            index=index,
            output_ids=ids,
            logprobs=array("f", logprobs),
            versions=array("i", versions),
            mask=array("B", mask if mask is not None else (1 for _ in ids)),
            reward=reward,
            usable=usable,
            scores=scores or {},
        )


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """All samples of one prompt: the atom of lease, training and eviction.

    `uid` names the group over the life of the buffer, `epoch` is the lease's fencing token under which it was made,
    `prompt_index` the dataset cursor it was issued for.
    """

    uid: int
    epoch: int
    worker: str
    prompt_index: int
    prompt_ids: array[int]
    samples: tuple[Sample, ...]
    incarnation: int = 1

    @property
    def oldest_version(self) -> int:
        """The version of the oldest token of the usable samples: what the staleness bound is checked against."""
        return min((v for s in self.samples if s.usable for v in s.versions), default=0)

    @property
    def newest_version(self) -> int:
        """The version of the newest token of the usable samples."""
        return max((v for s in self.samples if s.usable for v in s.versions), default=0)

    @property
    def usable(self) -> int:
        """How many samples may be trained on; below two a group has no baseline and is filtered."""
        return sum(1 for s in self.samples if s.usable)

    @property
    def tokens(self) -> int:
        """Generated tokens over all samples."""
        return sum(len(s.output_ids) for s in self.samples)


def encode(group: SampleGroup) -> bytes:
    """Bytes of a group. RecordError if a sample's arrays differ in length."""
    rows = []
    parts = [_raw(token_ids(group.prompt_ids))]
    for sample in group.samples:
        length = len(sample.output_ids)
        if not len(sample.logprobs) == len(sample.versions) == len(sample.mask) == length:
            raise RecordError(f"group {group.uid}, sample {sample.index}: its arrays differ in length")
        rows.append([sample.index, length, sample.reward, int(sample.usable), sample.scores])
        parts += [_raw(sample.output_ids), _raw(sample.logprobs), _raw(sample.versions), _raw(sample.mask)]
    header = {
        "uid": group.uid,
        "epoch": group.epoch,
        "incarnation": group.incarnation,
        "worker": group.worker,
        "promptIndex": group.prompt_index,
        "prompt": len(group.prompt_ids),
        "samples": rows,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([_PREFIX.pack(SCHEMA, len(text)), text, *parts])


def decode(payload: bytes) -> SampleGroup:
    """The group in `payload`. RecordError names an unknown schema or a payload that is cut or too long."""
    if len(payload) < _PREFIX.size:
        raise RecordError(f"a sample record of {len(payload)} bytes is cut short")
    schema, size = _PREFIX.unpack_from(payload)
    if schema != SCHEMA:
        raise RecordError(
            f"sample record has schema {schema}, this program reads {SCHEMA}: "
            "run trainer and rollouts of one version of the runtime image"
        )
    reader = _Reader(payload, _PREFIX.size)
    try:
        header = json.loads(reader.take(size))
        prompt = reader.ints("i", header["prompt"])
        samples = tuple(_sample(reader, row) for row in header["samples"])
        group = SampleGroup(
            uid=header["uid"],
            epoch=header["epoch"],
            incarnation=header["incarnation"],
            worker=header["worker"],
            prompt_index=header["promptIndex"],
            prompt_ids=prompt,
            samples=samples,
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"sample record has no valid header: {error}") from error
    reader.end()
    return group


def _sample(reader: _Reader, row: list[object]) -> Sample:
    index, length, reward, usable, scores = row
    if not (isinstance(index, int) and isinstance(length, int) and isinstance(scores, dict)):
        raise RecordError(f"sample record has no valid header: {row!r:.200}")
    if not isinstance(reward, int | float):
        raise RecordError(f"sample record has no valid reward: {reward!r:.200}")
    return Sample(
        index=index,
        output_ids=reader.ints("i", length),
        logprobs=reader.floats(length),
        versions=reader.ints("i", length),
        mask=reader.ints("B", length),
        reward=float(reward),
        usable=bool(usable),
        scores=scores,
    )


class _Reader:
    """Reads a payload front to back and refuses to read past its end."""

    def __init__(self, payload: bytes, position: int) -> None:
        self._payload = memoryview(payload)
        self._position = position

    def take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._payload):
            raise RecordError(f"sample record is cut short: {len(self._payload)} bytes, {end} expected")
        piece = bytes(self._payload[self._position : end])
        self._position = end
        return piece

    def ints(self, code: str, length: int) -> array[int]:
        values: array[int] = array(code)
        _fill(values, self.take(length * values.itemsize))
        return values

    def floats(self, length: int) -> array[float]:
        values: array[float] = array("f")
        _fill(values, self.take(length * values.itemsize))
        return values

    def end(self) -> None:
        if self._position != len(self._payload):
            raise RecordError(f"sample record has {len(self._payload) - self._position} bytes after its end")


def token_ids(values: Iterable[int]) -> array[int]:
    """Token ids as the record holds them."""
    return values if isinstance(values, array) else array("i", values)


def _raw(values: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _fill(values: array[int] | array[float], raw: bytes) -> None:
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
