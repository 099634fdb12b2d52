"""Prints the logs of a cluster's processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from moerl_local.cluster.errors import ClusterError
from moerl_local.paths import state_dir


def show(name: str, processes: Sequence[str], *, follow: bool, lines: int) -> None:
    """The last `lines` of each log, by `tail`; does not come back when following."""
    folder = state_dir() / name / "logs"
    known = sorted(path.stem for path in folder.glob("*.log") if path.stem != "audit" and "audit-" not in path.stem)
    unknown = sorted(set(processes) - set(known) - {"audit"})
    if unknown or not known:
        raise ClusterError(
            f"cluster {name} has no log of {', '.join(unknown) or 'anything'}; known: {', '.join(known)}"
        )
    command = ["tail", f"--lines={lines}", *(["--follow=name", "--retry"] if follow else [])]
    command += [str(folder / f"{each}.log") for each in processes or known]
    if follow:
        os.execvp("tail", command)  # noqa: S606
    subprocess.run(command, check=False)
