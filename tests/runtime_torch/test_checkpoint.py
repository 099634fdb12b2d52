"""Checkpoints in DCP format on S3 and files: a restored trainer goes on bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from transformers.modeling_utils import PreTrainedModel

from moerl_runtime.checkpoint import dcp, storage
from moerl_runtime.model.tiny import build_tiny
from moerl_runtime.trainer import collective
from moerl_runtime.trainer.update import make_optimizer

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _gang() -> Iterator[None]:
    collective.start({})
    yield
    collective.stop()


def build(seed: int) -> tuple[PreTrainedModel, torch.optim.AdamW]:
    model = build_tiny(vocab_size=12, pad=0, bos=1, eos=3, seed=seed)
    return model, make_optimizer(model, learning_rate=1e-2)


def train(model: PreTrainedModel, optimizer: torch.optim.AdamW, steps: int) -> None:
    for _ in range(steps):
        ids = torch.randint(0, 12, (4, 6))  # from the global generator, which a checkpoint holds
        optimizer.zero_grad()
        model(input_ids=ids, use_cache=False).logits.square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_a_restored_trainer_goes_on_bit_by_bit(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    root = tmp_path.as_uri() if kind == "file" else f"{request.getfixturevalue('s3')}/{tmp_path.name}"
    torch.manual_seed(5)
    model, optimizer = build(0)
    train(model, optimizer, 3)
    uri = storage.join(root, "1", "3")
    dcp.save(uri, model, optimizer, extra={"step": 3, "version": 4})
    train(model, optimizer, 3)

    torch.manual_seed(99)
    other, moments = build(1)
    assert dcp.load(uri, other, moments, extra={"step": 0, "version": 0}) == {"step": 3, "version": 4}
    train(other, moments, 3)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert "1/3/.metadata" in storage.list_folder(root), "DCP's own layout"


def test_the_format_is_read_by_torch_alone(tmp_path: Path) -> None:
    model, optimizer = build(0)
    dcp.save(tmp_path.as_uri(), model, optimizer, extra={"step": 1})
    metadata = FileSystemReader(tmp_path).read_metadata()
    assert "model.model.layers.0.mlp.experts.gate_up_proj" in metadata.state_dict_metadata


def test_missing_places_are_named(s3: str, tmp_path: Path) -> None:
    model, optimizer = build(0)
    with pytest.raises(storage.StorageError, match=r"s3://absent/1/1 cannot be written: NoSuchBucket"):
        dcp.save("s3://absent/1/1", model, optimizer, extra={})
    with pytest.raises(storage.StorageError, match=r"cannot be read"):
        dcp.load(f"{s3}/none", model, optimizer, extra={})
    with pytest.raises(storage.StorageError, match=r"cannot be read"):
        dcp.load((tmp_path / "none").as_uri(), model, optimizer, extra={})


def test_a_world_of_several_ranks_is_refused_in_one_line() -> None:
    with pytest.raises(collective.GangError, match=r"WORLD_SIZE is 2: .* set trainer.nodes.count to 1"):
        collective.start({"WORLD_SIZE": "2"})
