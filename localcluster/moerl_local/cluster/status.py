"""Shows a cluster to a person: what runs, what it takes, how to reach it."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import Cluster
from moerl_local.cluster.processes import Processes


def show(cluster: Cluster, console: Console | None = None) -> bool:
    """Print a table.

    Returns:
        Whether everything that was started still runs and the API server is ready.
    """
    console = console or Console()
    processes = Processes(cluster.folder)
    table = Table(title=f"cluster {cluster.name}", title_justify="left", box=None, pad_edge=False)
    for column in ("PROCESS", "STATE", "PID", "MEMORY"):
        table.add_column(column, justify="right" if column in {"PID", "MEMORY"} else "left")
    healthy = True
    for name in processes.recorded():
        process = processes.get(name)
        healthy &= process is not None
        state = "[green]running[/]" if process else "[red]ended[/]"
        table.add_row(name, state, str(process.pid) if process else "", _memory(process.pid) if process else "")
    console.print(table)
    ready = _is_ready(cluster)
    facts = {
        "API server": f"{cluster.server} {'' if ready else '[red]not ready[/]'}",
        "nodes": _nodes(cluster) if ready else "",
        "AWS endpoint": cluster.aws_endpoint or "none",
        "admin": str(cluster.admin_kubeconfig),
        "operator": str(cluster.operator_kubeconfig),
        "audit log": str(cluster.audit_log),
    }
    grid = Table.grid(padding=(0, 2))
    for key, value in facts.items():
        grid.add_row(key, value, style=None)
    console.print()
    console.print(grid, soft_wrap=True)
    return healthy and ready


def _is_ready(cluster: Cluster) -> bool:
    try:
        return cluster.admin.run("get", "--raw", "/readyz", "--request-timeout=5s").strip() == "ok"
    except ClusterError:
        return False


def _nodes(cluster: Cluster) -> str:
    template = "{range .items[*]}{.metadata.labels.moerl\\.dev/fake-node} {end}"
    try:
        fake = cluster.kubectl("get", "nodes", "-l", "moerl.dev/fake-node", "-o", f"jsonpath={template}").split()
        if not cluster.node_name:
            return f"{len(fake)} fake"
        ready = '{.status.conditions[?(@.type=="Ready")].status}'
        real = cluster.kubectl("get", "node", cluster.node_name, "--ignore-not-found", "-o", f"jsonpath={ready}")
    except ClusterError as error:
        return f"[red]{error}[/]"
    return f"{cluster.node_name} ({'Ready' if real == 'True' else 'not ready'}), {len(fake)} fake"


def _memory(pid: int) -> str:
    """Resident memory, from /proc; empty elsewhere."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return ""
    return f"{pages * os.sysconf('SC_PAGE_SIZE') >> 20} MiB"
