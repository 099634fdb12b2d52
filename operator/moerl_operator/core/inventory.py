"""Node groups as they are known: from AWS, from the nodes, and from the status while AWS cannot be asked.

The rows of status.nodeGroups are also a memory: of the numbers that were used, and of since when a
group has been incomplete.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from moerl_operator.api import names
from moerl_operator.core import capacity, groups, idle
from moerl_operator.core.groups import Numbered
from moerl_operator.core.view import Part, View, format_time, labels_of, node_ready, parse_time
from moerl_operator.core.world import NodeGroupObservation

Obj = dict[str, Any]


def known_groups(view: View, part: Part) -> list[Numbered]:
    """Groups of a part; as the status remembers them while AWS cannot be asked."""
    if view.snap.aws.error is None:
        return groups.of_part(view, part.key)
    found = []
    for line in view.status.get("nodeGroups") or ():
        split = groups.split_name(view.uid, str(line.get("name", "")))
        if split and split[0] == part.key and line.get("status") != "Deleted":
            tags = {names.TAG_OWNER: groups.owner_tag(view), names.TAG_REVISION: view.nodes_revision(part)}
            found.append(
                Numbered(
                    split[1],
                    NodeGroupObservation(
                        name=str(line["name"]),
                        status=str(line.get("status", "")),
                        tags=tags,
                        desired=int(line.get("desired") or 0),
                        in_service=int(line.get("ready") or 0),
                        zone=str(line.get("zone") or ""),
                        instance_types=tuple(filter(None, [line.get("instanceType")])),
                    ),
                )
            )
    return sorted(found, key=lambda n: n.number)


def ready_nodes(view: View, part: Part, group: NodeGroupObservation) -> int:
    """Ready nodes of a group that pods can use. The local cluster's one node stands for all instances of its group.

    A cordoned node counts while a pod of the part runs on it: it is of use to that pod, and to no other.
    """
    nodes = [n for n in view.nodes_of_group(part, group.name) if node_ready(n)]
    busy = idle.busy_nodes(view, part)
    ready = sum(not (n.get("spec") or {}).get("unschedulable") or n["metadata"]["name"] in busy for n in nodes)
    if ready and group.instance_types == (groups.LOCAL,):
        return max(ready, group.in_service)
    return ready


def row(view: View, part: Part, group: NodeGroupObservation) -> Obj:
    """The group's line in status.nodeGroups."""
    ready = ready_nodes(view, part, group)
    out: Obj = {"name": group.name, "role": part.role, "status": group.status, "desired": group.desired, "ready": ready}
    nodes = view.nodes_of_group(part, group.name)
    kinds = sorted({labels_of(n).get("node.kubernetes.io/instance-type", "") for n in nodes} - {""})
    if len(group.instance_types) == 1 or not kinds:
        kinds = list(group.instance_types)
    if kinds:
        out["instanceType"] = kinds[0]
    if group.zone:
        out["zone"] = group.zone
    found = capacity.trouble(group) if group.desired or group.status != "ACTIVE" else None
    if found is not None:
        out["message"] = found[1][:1024]
    out["since"] = format_time(since_of(view, group, ready))
    return out


def all_rows(view: View) -> list[Obj]:
    """Rows of all groups that AWS has, and of the last one of each part that is gone."""
    rows: list[Obj] = []
    for part in view.parts:
        rows += [row(view, part, n.group) for n in groups.of_part(view, part.key)]
    return rows + deleted_rows(view, {str(line["name"]) for line in rows})


def observed_row(view: View, name: str) -> Obj | None:
    """The group's line as it was last written."""
    rows: list[Obj] = view.status.get("nodeGroups") or []
    return next((line for line in rows if line.get("name") == name), None)


def since_of(view: View, group: NodeGroupObservation, ready: int | None = None) -> datetime:
    """When the group last changed its wished size, or became complete or incomplete."""
    old = observed_row(view, group.name)
    since = parse_time(old.get("since")) if old else None
    if old is None or since is None or old.get("desired") != group.desired:
        return view.now
    if ready is not None and group.desired:
        was = int(str(old.get("ready") or 0)) >= group.desired
        if was != (ready >= group.desired):
            return view.now
    return since


def deleted_rows(view: View, present: set[str]) -> list[Obj]:
    """The last group of a part stays in the status after it is gone, so that its number is not used again."""
    kept: dict[str, tuple[int, Obj]] = {}
    highest: dict[str, int] = {}
    for name in present:
        split = groups.split_name(view.uid, name)
        if split:
            highest[split[0]] = max(highest.get(split[0], 0), split[1])
    for line in view.status.get("nodeGroups") or ():
        name = str(line.get("name", ""))
        split = groups.split_name(view.uid, name)
        if split is None or name in present or split[1] < highest.get(split[0], 0):
            continue
        if split[1] > kept.get(split[0], (0, {}))[0]:
            gone = {k: v for k, v in line.items() if k != "message"}
            kept[split[0]] = (split[1], gone | {"status": "Deleted", "desired": 0, "ready": 0})
    return [line for _, line in sorted(kept.values(), key=lambda item: str(item[1]["name"]))]
