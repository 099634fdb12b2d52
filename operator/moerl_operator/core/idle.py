"""Which nodes carry no pod of the job any more, so that they can be given back: own pods end first."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from moerl_operator.core.view import Part, View, node_ready, parse_time

Obj = dict[str, Any]

# Beyond its own grace period a terminating pod is stuck; EKS itself kills after 15 minutes, ignoring everything.
STUCK_AFTER = timedelta(seconds=60)


def is_terminal(pod: Obj) -> bool:
    """Whether all containers of a pod have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_gone(view: View, pod: Obj) -> bool:
    """Whether a pod can no longer run: terminal, or terminating on a node that is dead, or past its grace.

    A dead node cannot confirm that its pod ended; waiting for that would block for ever.
    """
    if is_terminal(pod):
        return True
    deleted = parse_time(pod["metadata"].get("deletionTimestamp"))
    if deleted is None:
        return False
    node_name = (pod.get("spec") or {}).get("nodeName")
    if not node_name:
        return True
    node = view.nodes_by_name.get(node_name)
    if node is None or not node_ready(node):
        return True
    # deletionTimestamp already includes the grace period.
    return view.now >= deleted + STUCK_AFTER


def group_is_idle(view: View, part: Part, group: str) -> bool:
    """Whether no pod of the part can still run on a node of this group."""
    nodes = {n["metadata"]["name"] for n in view.nodes_of_group(part, group)}
    return not any(_on(pod, nodes) and not is_gone(view, pod) for pod in view.pods_of_part(part))


def busy_nodes(view: View, part: Part) -> set[str]:
    """Names of the nodes on which a pod of the part can still run."""
    return {str((p.get("spec") or {}).get("nodeName")) for p in view.pods_of_part(part) if not is_gone(view, p)}


def idle_instances(view: View, part: Part, group: str) -> list[str]:
    """Instance ids of a group's nodes without a running pod of the part, unready ones first."""
    busy = busy_nodes(view, part)
    free = [n for n in view.nodes_of_group(part, group) if n["metadata"]["name"] not in busy]
    free.sort(key=lambda n: (node_ready(n), n["metadata"]["name"]))
    ids = [str((n.get("spec") or {}).get("providerID") or "").rpartition("/")[2] for n in free]
    return [found for found in ids if found.startswith("i-")]


def dead_instances(view: View, part: Part, group: str, after: timedelta) -> tuple[list[str], float | None]:
    """(instance ids of nodes not Ready for so long, seconds until the next one counts), pods or not."""
    dead, waits = [], []
    for node in view.nodes_of_group(part, group):
        since = not_ready_since(node)
        instance = str((node.get("spec") or {}).get("providerID") or "").rpartition("/")[2]
        if since is None or not instance.startswith("i-"):
            continue
        left = (since + after - view.now).total_seconds()
        if left <= 0:
            dead.append(instance)
        else:
            waits.append(left)
    return dead, min(waits, default=None)


def not_ready_since(node: Obj) -> datetime | None:
    """Since when a node is not Ready, None when it is, or never said."""
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            return parse_time(condition.get("lastTransitionTime"))
    return None


def _on(pod: Obj, nodes: set[str]) -> bool:
    return (pod.get("spec") or {}).get("nodeName") in nodes
