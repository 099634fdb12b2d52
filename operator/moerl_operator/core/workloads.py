"""The children that serve the attempts: made once, or applied again when the user's words for them change.

A child of the current revision is left alone, whatever this version of the operator would render;
only replica counts are patched, and a child whose node group was replaced is applied for the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from moerl_operator.api import names
from moerl_operator.core import groups
from moerl_operator.core.topology import Placement, Topology
from moerl_operator.core.view import Part, View, annotations_of
from moerl_operator.core.world import Action, ApplyChild, CreateChild, DeleteChild, PatchChild
from moerl_operator.manifests import gangs, revision, servers, support
from moerl_operator.manifests.context import RoleContext

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One child that should be there."""

    name: str
    revision: str
    build: Callable[[], Obj]
    have: tuple[Obj, ...]  # the observed objects of its kind
    once: bool = False  # never applied again
    password: bool = False
    late: bool = False  # no pod needs it to start

    def action(self) -> Action | None:
        """What to do for it, if anything."""
        found = next((o for o in self.have if o["metadata"]["name"] == self.name), None)
        if found is not None and (self.once or annotations_of(found).get(names.ANNOTATION_REVISION) == self.revision):
            return None
        if self.once:
            return CreateChild(self.build(), generate_password=self.password)
        return ApplyChild(self.build())


def support_children(view: View) -> list[Wanted]:
    """Configuration, rights, network and disruption policies, Services."""
    snap, job = view.snap, view.job_context
    out = [
        Wanted(names.buffer_secret(job.name), "", lambda: support.secret(job), snap.secrets, True, True),
        Wanted(names.config_map(job.name), revision.whole(view.spec), lambda: support.config(job), snap.config_maps),
        Wanted(names.report(job.name), "", lambda: support.report(job), snap.config_maps, True),
        Wanted(job.service_account, "", lambda: support.service_account(job), snap.service_accounts, True),
        _of(support.network_policy(job), snap.network_policies),
    ]
    out += [_of(servers.service(job, role), snap.services) for role in dict.fromkeys(p.role for p in view.parts)]
    for part in view.parts:
        if part.role in (names.TRAINER, names.BUFFER):
            minimum = part.count if part.role == names.TRAINER else 1
            out.append(_of(support.disruption_budget(job, part.role, minimum), snap.disruption_budgets, late=True))
    out.append(_of(support.role(job), snap.roles, late=True))
    out.append(_of(support.role_binding(job), snap.role_bindings, late=True))
    return out


def support_actions(view: View, *, late: bool) -> list[Action]:
    """What the supporting children need: those that pods mount or are guarded by, or those that can come `late`."""
    wanted = [child for child in support_children(view) if child.late == late]
    return [action for action in (child.action() for child in wanted) if action is not None]


def server_actions(view: View, topology: Topology, *, suspended: bool) -> list[Action]:
    """What reward, environment and buffer need."""
    out: list[Action] = []
    for part in view.parts:
        if part.role in (names.TRAINER, names.ROLLOUT):
            continue
        have, kind = _servers(view, part)
        name = names.service(view.name, part.role)
        found = next((o for o in have if o["metadata"]["name"] == name), None)
        replicas = 0 if suspended else replicas_of(view, part)
        place = topology.placements[part.key]
        outdated = found is None or _outdated(view, part, place, found)
        if outdated and not suspended:
            if found is not None and part.role == names.BUFFER and view.pods_of_part(part):
                # Its pods are replaced only when they are deleted (OnDelete), and one that waits for nodes that are
                # gone would wait for ever: first to zero, then the new words.
                if (found.get("spec") or {}).get("replicas"):
                    out.append(PatchChild("apps/v1", kind, name, {"spec": {"replicas": 0}}))
            elif place.placed and place.ready > 0:
                out.append(ApplyChild(build_server(view, part, place, replicas)))
        elif found is not None and (found.get("spec") or {}).get("replicas") != replicas:
            out.append(PatchChild("apps/v1", kind, name, {"spec": {"replicas": replicas}}))
    return out


def replicas_of(view: View, part: Part) -> int:
    """Pods of a serving role."""
    section = view.spec.reward if part.role == names.REWARD else view.spec.environment
    return section.replicas if section is not None and part.role != names.BUFFER else 1


def server_of(view: View, part: Part) -> Obj | None:
    """The observed Deployment or StatefulSet of a serving role."""
    have, _ = _servers(view, part)
    name = names.service(view.name, part.role)
    return next((o for o in have if o["metadata"]["name"] == name), None)


def build_server(view: View, part: Part, place: Placement, replicas: int) -> Obj:
    """Render the Deployment or StatefulSet of a serving role."""
    context = placed(view, part, place)
    return servers.buffer(context, replicas) if part.role == names.BUFFER else servers.deployment(context, replicas)


def placed(view: View, part: Part, place: Placement) -> RoleContext:
    """The part as the builders see it, on its nodes."""
    return replace(groups.role_context(view, part), node_selector=place.selector, node_group=place.group)


def dry_run(view: View, topology: Topology) -> tuple[Obj, ...]:
    """Every kind of child that this generation would make, for the server to validate before anything is made."""
    out = [wanted.build() for wanted in support_children(view)]
    for part in view.parts:
        place = topology.placements[part.key]
        if not place.placed:
            group = names.node_group(view.uid, part.key, groups.next_number(view, part.key))
            place = Placement(part, selector={part.label: group}, group=group)
        if part.role in (names.TRAINER, names.ROLLOUT):
            out.append(gangs.attempt(replace(placed(view, part, place), attempt=1)))
        else:
            out.append(build_server(view, part, place, replicas_of(view, part)))
    return tuple(out)


def delete_actions(objs: Iterable[Obj]) -> list[Action]:
    """Delete these children, unless somebody is already at it."""
    return [
        DeleteChild(o["apiVersion"], o["kind"], o["metadata"]["name"], str(o["metadata"].get("uid", "")))
        for o in objs
        if not o["metadata"].get("deletionTimestamp")
    ]


def _of(obj: Obj, have: tuple[Obj, ...], *, late: bool = False) -> Wanted:
    return Wanted(obj["metadata"]["name"], annotations_of(obj)[names.ANNOTATION_REVISION], lambda: obj, have, late=late)


def _servers(view: View, part: Part) -> tuple[tuple[Obj, ...], str]:
    if part.role == names.BUFFER:
        return view.snap.stateful_sets, "StatefulSet"
    return view.snap.deployments, "Deployment"


def _outdated(view: View, part: Part, place: Placement, found: Obj) -> bool:
    """Made from other words of the user, or for another node group than the one that the part has now."""
    notes = annotations_of(found)
    moved = place.placed and notes.get(names.ANNOTATION_NODE_GROUP, "") != place.group
    return notes.get(names.ANNOTATION_REVISION) != view.pods_revision(part) or moved
