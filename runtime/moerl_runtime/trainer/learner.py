"""Everything of the trainer that touches torch, as blocking calls for the one torch thread."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from transformers.modeling_utils import PreTrainedModel

from moerl_operator.api.job import Algorithm
from moerl_runtime.buffer.records import SampleGroup
from moerl_runtime.checkpoint import dcp, storage
from moerl_runtime.config import ConfigError, JobConfig
from moerl_runtime.model import evaluate
from moerl_runtime.model.state import config_files, named_tensors, to_bytes
from moerl_runtime.model.tiny import EXPERTS_IMPLEMENTATION, build_tiny, load_folder, save_folder
from moerl_runtime.tasks import reverse
from moerl_runtime.tasks.task import Task
from moerl_runtime.weights.publish import TensorBytes

from . import collective
from .batch import build
from .loss import LossSettings
from .update import UpdateStats, make_optimizer, update


@dataclass(frozen=True, slots=True)
class Staleness:
    """Versions between the current policy and the one that sampled a token, over a batch's trained tokens."""

    mean: float
    worst: int


def learning_rate_share(step: int, steps: int) -> float:
    """The share of the learning rate at `step` of `steps`: 1 for the first half, then falling linearly to a tenth.

    At a constant rate the late evaluations of the small example swung between 0.84 and 1.00, so that what the last
    iteration left was a matter of luck.
    """
    late = min(max((2 * step - steps) / max(steps, 1), 0.0), 1.0)
    return 1.0 - 0.9 * late


class Learner:
    """Model, optimizer and the settings of one job."""

    def __init__(self, model: PreTrainedModel, algorithm: Algorithm, task: Task) -> None:
        self.model = model
        self._algorithm = algorithm
        self._task = task
        self._heldout = task.heldout(evaluate.PROMPTS)
        self._optimizer = make_optimizer(model, learning_rate=float(algorithm.learning_rate))
        self._loss = LossSettings(
            clip_low=float(algorithm.clip_low),
            clip_high=float(algorithm.clip_high),
            entropy_coefficient=float(algorithm.entropy_bonus),
            correction=algorithm.off_policy_correction,
        )

    @classmethod
    def create(cls, config: JobConfig, task: Task) -> Learner:
        """Join the process group and make or load the model. ConfigError, StorageError or GangError."""
        torch.manual_seed(config.algorithm.seed)
        collective.start()
        model = _initial_model(config, task)
        model.train()
        return cls(model, config.algorithm, task)

    def train(self, groups: Sequence[SampleGroup], *, step: int, version: int) -> tuple[UpdateStats, Staleness]:
        """Optimizer step number `step` (from 1) on a batch, while `version` is the newest policy."""
        share = learning_rate_share(step, self._algorithm.iterations)
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = float(self._algorithm.learning_rate) * share
        batch = build(groups, pad=int(self.model.config.pad_token_id or 0))
        stats = update(
            self.model,
            self._optimizer,
            batch,
            settings=self._loss,
            temperature=float(self._algorithm.temperature),
            gradient_clip=float(self._algorithm.gradient_clip),
        )
        ages = version - batch.versions[batch.versions >= 0]
        if not ages.numel():
            return stats, Staleness(0.0, 0)
        return stats, Staleness(float(ages.double().mean()), int(ages.max()))

    def weights(self) -> tuple[dict[str, TensorBytes], dict[str, str]]:
        """What a publish needs: tensors under Hugging Face names as bytes (copies), and config.json."""
        return to_bytes(named_tensors(self.model)), config_files(self.model)

    def exact_match(self) -> float | None:
        """Greedy exact match on held-out prompts, None if the dataset has none."""
        return evaluate.exact_match(self.model, self._task, self._heldout) if self._heldout else None

    def save(self, uri: str, *, step: int, version: int) -> None:
        """Write a checkpoint (without marker)."""
        dcp.save(uri, self.model, self._optimizer, extra={"step": step, "version": version})

    def restore(self, uri: str) -> None:
        """Load a checkpoint in place."""
        dcp.load(uri, self.model, self._optimizer, extra={"step": 0, "version": 0})

    def export(self, uri: str) -> None:
        """Write the policy as a Hugging Face folder at `uri`, replacing what is there."""
        storage.delete_folder(uri)
        with tempfile.TemporaryDirectory() as folder:
            save_folder(self.model, Path(folder))
            storage.upload_folder(Path(folder), uri)

    def data_path(self) -> dict[str, Any]:
        """What computes and what carries tensors, for the fingerprint in status."""
        return {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": str(self.model.device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "experts": EXPERTS_IMPLEMENTATION,
            "collectives": dist.get_backend(),
            "worldSize": dist.get_world_size(),
        }


def _initial_model(config: JobConfig, task: Task) -> PreTrainedModel:
    uri = config.model.uri
    if uri is None:
        return build_tiny(
            vocab_size=task.vocabulary_size,
            pad=reverse.PAD,
            bos=reverse.BOS,
            eos=reverse.EOS,
            seed=config.algorithm.seed,
        )
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = load_folder(storage.download_folder(uri, Path(folder)))
        except (OSError, ValueError) as error:
            raise ConfigError(f"spec.model.uri: {uri} is not a model folder: {_first_line(error)}") from error
    if int(model.config.vocab_size) < task.vocabulary_size:
        raise ConfigError(
            f"spec.model.uri: {uri} has a vocabulary of {model.config.vocab_size}, "
            f"the dataset {task.name} needs {task.vocabulary_size}"
        )
    return model


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
