"""Logs with the job and the reconcile that they belong to, one JSON object a line or readable text."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

# Set by a worker for the time of one reconcile; child tasks inherit them.
job_key: ContextVar[str] = ContextVar("job_key", default="")
reconcile_id: ContextVar[str] = ContextVar("reconcile_id", default="")

_QUIET = ("kopf", "botocore", "boto3", "urllib3", "aiohttp.access", "kubernetes", "asyncio")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, job, reconcile, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if key := job_key.get():
            entry["job"] = key
            entry["reconcile"] = reconcile_id.get()
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """For a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        key = job_key.get()
        line = f"{time} {record.levelname[0]} {f'[{key}] ' if key else ''}{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(*, log_format: str, level: str) -> None:
    """Set up the root logger; libraries speak from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
