"""Entry point of the trainer container: `python -m moerl_runtime trainer`.

Imports torch only after the configuration is known to be good and the agent can read that the trainer is starting:
the import takes up to 20 s on a busy machine.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from moerl_runtime.buffer.client import Buffer
from moerl_runtime.checkpoint.storage import StorageError
from moerl_runtime.config import ConfigError, JobConfig, Settings
from moerl_runtime.tasks.task import TaskError
from moerl_runtime.web import INTERRUPTED, stop_event, until_stopped

from .telemetry import Telemetry

log = logging.getLogger(__name__)


def main() -> int:
    """Train to the end (0), until interrupted (143), or say in one line why not (1, and 2 for a mistake in the job)."""
    settings = Settings.from_env()
    config = settings.job_config()
    _check(config)
    telemetry = Telemetry(run_dir=settings.run_dir, iterations=config.algorithm.iterations)
    telemetry.write()
    from .collective import GangError

    try:
        return asyncio.run(_run(settings, config, telemetry))
    except TaskError as error:
        raise ConfigError(f"spec.storage.dataset: {error}") from error
    except (GangError, StorageError) as error:
        print(f"moerl trainer: {error}", file=sys.stderr)
        return 1


def _check(config: JobConfig) -> None:
    if not config.storage.checkpoints or not config.storage.artifacts:
        raise ConfigError("spec.storage.checkpoints and spec.storage.artifacts are needed by the native trainer")


async def _run(settings: Settings, config: JobConfig, telemetry: Telemetry) -> int:
    stop = stop_event()
    from .loop import TrainerLoop

    buffer = await until_stopped(Buffer.connect(settings.buffer_url, settings.buffer_password or None), stop)
    if buffer is None:
        return INTERRUPTED
    try:
        async with TrainerLoop.open(settings, config, buffer, telemetry, stop) as loop:
            return await loop.run()
    finally:
        await buffer.close()
