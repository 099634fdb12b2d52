"""`python -m moerl_runtime <role>`: one program per role, each importing only what it needs.

A driver must not pay torch's 15 seconds and 800 MB, so every role's module is imported here and nowhere above.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence

ROLES = {
    "buffer": ("buffer.server", ()),
    "driver": ("rollout.driver", ()),
    "environment": ("scoring.service", ("environment",)),
    "reward": ("scoring.service", ("reward",)),
    "agent": ("agent.agent", ()),
    "trainer": ("trainer.main", ()),
    "engine": ("rollout.engine", ()),
}


def main(arguments: Sequence[str]) -> int:
    """Run a role; its exit code. A user's mistake is one line on stderr and exit code 2."""
    if len(arguments) != 1 or arguments[0] not in ROLES:
        print(f"usage: python -m moerl_runtime {{{','.join(ROLES)}}}", file=sys.stderr)
        return 2
    role = arguments[0]
    # Until a role has its own handler (torch takes 15 s to import): as pid 1 a process without one ignores SIGTERM.
    # At once, not by an exception: one that is raised in the middle of an import may be swallowed there. Nothing that
    # would have to be tidied up exists yet.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    logging.basicConfig(
        level=os.environ.get("MOERL_LOG_LEVEL", "INFO").upper(),
        format=f"%(asctime)s moerl {role}: %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    from .buffer.model import BufferFault
    from .config import ConfigError

    module, extra = ROLES[role]
    try:
        return int(importlib.import_module(f"moerl_runtime.{module}").main(*extra))
    except (ConfigError, BufferFault) as error:
        print(f"moerl {role}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
