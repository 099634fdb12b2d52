"""The sample record: what is written is read, and what is not a record is refused clearly."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.buffer.records import RecordError, Sample, SampleGroup, decode, encode, token_ids

INT = st.integers(0, 2**31 - 1)
FLOAT = st.floats(width=32, allow_nan=False, max_value=0)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Any sample."""
    rows = draw(st.lists(st.tuples(INT, FLOAT, INT, st.booleans()), max_size=8))
    return Sample.build(
        index=draw(st.integers(0, 1023)),
        output_ids=[row[0] for row in rows],
        logprobs=[row[1] for row in rows],
        versions=[row[2] for row in rows],
        mask=[int(row[3]) for row in rows],
        reward=draw(st.floats(-1, 1)),
        usable=draw(st.booleans()),
        scores=draw(st.dictionaries(st.text(max_size=5), st.floats(0, 1), max_size=2)),
    )


@st.composite
def groups(draw: st.DrawFn) -> SampleGroup:
    """Any group."""
    return SampleGroup(
        uid=draw(INT),
        epoch=draw(INT),
        incarnation=draw(INT),
        worker=draw(st.text(max_size=10)),
        prompt_index=draw(INT),
        prompt_ids=token_ids(draw(st.lists(INT, max_size=8))),
        samples=tuple(draw(st.lists(samples(), max_size=4))),
    )


def example() -> SampleGroup:
    """Two samples of different length, one of them unusable."""
    return SampleGroup(
        uid=3,
        epoch=2,
        worker="w",
        prompt_index=5,
        prompt_ids=token_ids([1, 2]),
        samples=(
            Sample.build(index=0, output_ids=[7, 8], logprobs=[-1, -2], versions=[4, 5], reward=0.5),
            Sample.build(index=1, output_ids=[9], logprobs=[-3], versions=[1], reward=0.0, usable=False),
        ),
    )


@given(groups())
def test_round_trip(group: SampleGroup) -> None:
    assert decode(encode(group)) == group


def test_layout_is_fixed() -> None:
    payload = encode(example())
    assert payload[0] == 1
    (size,) = struct.unpack_from("<I", payload, 1)
    assert payload[5 : 5 + size].startswith(
        b'{"uid":3,"epoch":2,"incarnation":1,"worker":"w","promptIndex":5,"prompt":2'
    )
    assert payload[5 + size :] == struct.pack("<2i2i2f2i2B1i1f1i1B", 1, 2, 7, 8, -1, -2, 4, 5, 1, 1, 9, -3, 1, 1)


def test_versions_count_usable_samples_only() -> None:
    group = example()
    assert (group.oldest_version, group.newest_version, group.usable, group.tokens) == (4, 5, 1, 3)


def test_a_token_costs_thirteen_bytes() -> None:
    def size(tokens: int) -> int:
        sample = Sample.build(
            index=0, output_ids=[1] * tokens, logprobs=[0.0] * tokens, versions=[1] * tokens, reward=0.0
        )
        group = SampleGroup(uid=1, epoch=1, worker="w", prompt_index=0, prompt_ids=token_ids([]), samples=(sample,))
        return len(encode(group))

    assert size(2000) - size(1000) == 13_000


@given(st.data())
def test_a_cut_or_lengthened_payload_is_refused(data: st.DataObject) -> None:
    payload = encode(example())
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(RecordError):
        decode(payload[:cut])
    with pytest.raises(RecordError, match="after its end"):
        decode(payload + b"x")


def test_another_schema_is_named() -> None:
    with pytest.raises(RecordError, match=r"schema 2, this program reads 1: run trainer and rollouts of one version"):
        decode(b"\x02" + encode(example())[1:])


def test_arrays_of_different_length_are_refused() -> None:
    bad = Sample.build(index=4, output_ids=[1, 2], logprobs=[0.0], versions=[1, 1], reward=math.pi)
    group = SampleGroup(uid=9, epoch=1, worker="w", prompt_index=0, prompt_ids=token_ids([1]), samples=(bad,))
    with pytest.raises(RecordError, match="group 9, sample 4"):
        encode(group)
