"""Dollars per hour of the nodes that are there now, at list prices; nodes that are only wished for cost nothing."""

from __future__ import annotations

from moerl_operator.core.view import View, labels_of

_LABEL_TYPE = "node.kubernetes.io/instance-type"


def per_hour(view: View) -> float | None:
    """Sum over the nodes of the job's own groups; None while no node's price is known."""
    total: float | None = None
    for name in sorted(_own_nodes(view)):
        facts = view.snap.instance_facts.get(labels_of(view.nodes_by_name[name]).get(_LABEL_TYPE, ""))
        if facts is not None and facts.usd_per_hour is not None:
            total = (total or 0.0) + facts.usd_per_hour
    return total


def _own_nodes(view: View) -> set[str]:
    """Nodes of groups of this job; one node that stands for several groups is paid once."""
    groups = {g.name for g in view.snap.aws.node_groups} | {
        g.get("name", "") for g in view.status.get("nodeGroups") or ()
    }
    keys = {part.label for part in view.parts if part.managed} if view.parsed else set()
    return {n["metadata"]["name"] for n in view.snap.nodes if any(labels_of(n).get(key) in groups for key in keys)}
