"""Checkpoints in torch's distributed format (DCP), to S3 through s3torchconnector or to a file system.

The format holds global tensors, so a later trainer may load it at another world size. Blocking; call from the torch
thread.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from s3torchconnector import S3ClientConfig
from s3torchconnector._s3client import S3Client
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from . import storage


def save(uri: str, model: nn.Module, optimizer: torch.optim.Optimizer, *, extra: dict[str, Any]) -> None:
    """Write model, optimizer, torch's random state and `extra` (numbers, strings, tensors) below `uri`.

    StorageError names the location. The checkpoint counts only once its marker is written.
    """
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "rng": torch.get_rng_state(), "extra": extra}
    try:
        dcp_save(state, storage_writer=_writer(uri))
    except (Exception, CheckpointException) as error:  # DCP wraps what the storage raises in a BaseException
        raise storage.StorageError(f"checkpoint {uri} cannot be written: {_cause(error)}") from error


def load(uri: str, model: nn.Module, optimizer: torch.optim.Optimizer, *, extra: dict[str, Any]) -> dict[str, Any]:
    """Restore model, optimizer and random state in place; returns `extra`, whose keys must be those that were saved.

    StorageError names the location and what does not fit.
    """
    weights, moments = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": moments, "rng": torch.get_rng_state(), "extra": extra}
    try:
        dcp_load(state, storage_reader=_reader(uri))
    except (Exception, CheckpointException) as error:
        raise storage.StorageError(f"checkpoint {uri} cannot be read: {_cause(error)}") from error
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(strict=True),
    )
    torch.set_rng_state(state["rng"])
    restored: dict[str, Any] = state["extra"]
    return restored


def _writer(uri: str) -> Any:
    if not storage.is_s3(uri):
        return FileSystemWriter(storage.local_path(uri), sync_files=True, overwrite=True)
    writer = S3StorageWriter(region=storage.region(), path=uri, s3client_config=_config(), overwrite=True)
    writer.fs._client = _client()  # type: ignore[attr-defined]  # the constructor takes no endpoint
    return writer


def _reader(uri: str) -> Any:
    if not storage.is_s3(uri):
        return FileSystemReader(storage.local_path(uri))
    reader = S3StorageReader(region=storage.region(), path=uri, s3client_config=_config())
    reader.fs._client = _client()
    return reader


def _client() -> S3Client:
    return S3Client(region=storage.region(), endpoint=storage.endpoint(), s3client_config=_config())


def _config() -> S3ClientConfig:
    return S3ClientConfig(force_path_style=storage.endpoint() is not None, max_attempts=6)


def _cause(error: BaseException) -> str:
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    text = str(error).strip()
    if found := re.search(r"<Code>(\w+)</Code>", text):  # the S3 client gives the whole response
        return found[1]
    return text.splitlines()[-1] if text else type(error).__name__
