"""Weight versions through a real buffer: publish, pull without torch, verify, and what happens to old ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers.modeling_utils import PreTrainedModel

from moerl_runtime.buffer.client import Buffer
from moerl_runtime.buffer.model import FencedAttempt
from moerl_runtime.model.state import config_files, named_tensors, to_bytes
from moerl_runtime.model.tiny import build_tiny, load_folder
from moerl_runtime.weights import publish
from moerl_runtime.weights.manifest import WeightsCorrupt, WeightsGone, decode, encode
from moerl_runtime.weights.publish import Publisher, highest_version
from moerl_runtime.weights.store import pull

pytestmark = pytest.mark.torch


@pytest.fixture
def model() -> PreTrainedModel:
    return build_tiny(vocab_size=12, pad=0, bos=1, eos=3, seed=4).eval()


async def publish_one(publisher: Publisher, model: PreTrainedModel, *, step: int = 0) -> int:
    return await publisher.publish(to_bytes(named_tensors(model)), config_files(model), step=step)


async def start(buffer: Buffer, *, attempt: int = 1, keep: int = 3) -> Publisher:
    await buffer.begin(attempt, 0)
    publisher = Publisher(buffer, attempt=attempt, keep=keep, highest_seen=await highest_version(buffer))
    await publisher.adopt()
    return publisher


@pytest.mark.parametrize("object_bytes", [1 << 20, 1000])
async def test_a_pulled_folder_loads_to_the_same_logits(
    buffer: Buffer, model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, object_bytes: int
) -> None:
    monkeypatch.setattr(publish, "OBJECT_BYTES", object_bytes)
    publisher = await start(buffer)
    assert await publish_one(publisher, model) == 1
    head = await buffer.head()
    assert head is not None
    folder = await pull(buffer, head, tmp_path)
    named = named_tensors(model)
    stored = load_file(folder / "model.safetensors")
    assert set(stored) == set(named)
    assert "model.layers.0.mlp.experts.3.gate_proj.weight" in stored
    assert all(torch.equal(stored[name], named[name]) for name in named)
    ids = torch.randint(0, 12, (8, 9), generator=torch.Generator().manual_seed(0))
    assert torch.equal(load_folder(folder)(input_ids=ids).logits, model(input_ids=ids).logits)
    assert await pull(buffer, head, tmp_path) == folder, "a folder that is there is not fetched again"


async def test_versions_go_on_after_a_restart_and_old_ones_go(
    buffer: Buffer, model: PreTrainedModel, tmp_path: Path
) -> None:
    first = await start(buffer)
    assert [await publish_one(first, model, step=step) for step in range(4)] == [1, 2, 3, 4]
    second = await start(buffer, attempt=2)
    assert await publish_one(second, model, step=1) == 5
    with pytest.raises(FencedAttempt):
        await publish_one(first, model, step=4)
    head = await buffer.head()
    assert head is not None
    assert (head.attempt, head.version, head.step) == (2, 5, 1)
    kept = {int(key.split("/")[1]) for key in await buffer.list_blobs("v/")}
    assert kept == {3, 4, 5}, "the superseded trainer's objects have keys of their own and are removed in their turn"
    third = await start(buffer, attempt=3)
    assert third.version == 5
    for version in (3, 4, 5):
        await pull(buffer, head, tmp_path / str(version))


async def test_a_changed_or_missing_object_is_not_loaded(
    buffer: Buffer, model: PreTrainedModel, tmp_path: Path
) -> None:
    publisher = await start(buffer)
    await publish_one(publisher, model)
    head = await buffer.head()
    assert head is not None
    raw = await buffer.get_blob(head.manifest_key)
    assert raw is not None
    key = decode(raw).objects[0]
    good = await buffer.get_blob(key)
    assert good is not None
    for bad in (good[:1000] + bytes([good[1000] ^ 1]) + good[1001:], good[:-4], b""):
        await buffer.put_blob(key, bad)
        with pytest.raises(WeightsCorrupt, match="not what was published"):
            await pull(buffer, head, tmp_path)
    await buffer.delete_blobs([key])
    with pytest.raises(WeightsGone, match=key):
        await pull(buffer, head, tmp_path)
    assert os.listdir(tmp_path) == [], "nothing half-made stays"


async def test_local_folders_do_not_pile_up(buffer: Buffer, model: PreTrainedModel, tmp_path: Path) -> None:
    publisher = await start(buffer)
    for _ in range(4):
        await publish_one(publisher, model)
        head = await buffer.head()
        assert head is not None
        await pull(buffer, head, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["v3-a1", "v4-a1"]


async def test_a_manifest_with_a_gap_or_a_foreign_path_is_refused(buffer: Buffer, model: PreTrainedModel) -> None:
    publisher = await start(buffer)
    await publish_one(publisher, model)
    head = await buffer.head()
    assert head is not None
    raw = await buffer.get_blob(head.manifest_key)
    assert raw is not None
    manifest = decode(raw)
    assert encode(manifest) == raw
    with pytest.raises(WeightsCorrupt, match="not readable"):
        decode(raw[:-1])
    with pytest.raises(WeightsCorrupt, match="schema 2"):
        decode(raw.replace(b'"schema":1', b'"schema":2'))
    with pytest.raises(WeightsCorrupt, match="outside the model folder"):
        decode(raw.replace(b'"config.json"', b'"../config.json"'))
    with pytest.raises(WeightsCorrupt, match="slices, its shape needs"):
        decode(raw.replace(b'["F32",[12,48]', b'["F32",[12,49]'))


def test_the_puller_needs_no_torch() -> None:
    program = (
        "import sys, moerl_runtime.weights.store, moerl_runtime.weights.publish, moerl_runtime.checkpoint.marker;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
