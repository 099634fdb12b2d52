"""Looks for anything of a cluster that is still on the machine, so that `down` can say what it could not end."""

from __future__ import annotations

import subprocess
from pathlib import Path

from moerl_local.cluster import cgroups, network, runtime, sweep
from moerl_local.cluster.network import Network
from moerl_local.cluster.processes import Processes


def find(folder: Path, own: Network | None) -> list[str]:
    """What is there of the cluster with state `folder` and addresses `own`, one line each."""
    found = [f"process {pid}" for pid in sorted(Processes(folder).pids())]
    if own is None or not network.usable():
        return found
    run = runtime.run_dir(own)
    found += [f"mount {target}" for target in sweep.mounts(folder, run)]
    found += [f"cgroup {path}" for path in cgroups.left(own.bridge)]
    found += [f"device {own.bridge}" for line in _lines("ip", "-brief", "link") if line.split()[0] == own.bridge]
    found += [f"route {line}" for line in _lines("ip", "route") if line.endswith(f" metric {own.metric}")]
    for table in ("nat", "filter"):
        rules = _lines("iptables", "-w", "-t", table, "-S")
        found += [f"iptables {table} {rule}" for rule in rules if {own.chain, own.bridge} & set(rule.split())]
    found += [f"folder {run}"] if run.exists() else []
    return found


def _lines(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
