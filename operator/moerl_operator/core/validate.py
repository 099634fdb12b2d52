"""Accepted: what CEL cannot see. The class and its limits, instance facts, templates, forbidden changes.

Each check returns a sentence that names the field and the rule, or nothing. While a generation is
not accepted nothing is touched; the next generation is judged afresh.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from moerl_operator.api import names
from moerl_operator.core import attempts as att
from moerl_operator.core import groups, templates, workloads
from moerl_operator.core.view import Part, View, annotations_of
from moerl_operator.core.world import InstanceFacts
from moerl_operator.manifests import pods
from moerl_operator.manifests.transport import EFA_GDA_FAMILIES, EFA_TRANSPORTS

# The native runtime spreads no experts over pods yet, so it can keep no promise of a backend.
NATIVE_BACKEND = "Auto"


def check(view: View, *, accepted: bool) -> str | None:
    """The first reason not to accept this generation, None when there is none.

    A generation that was accepted is not judged again, so that an admin who narrows a class stops no running job;
    only what rendering needs must still be there.
    """
    if view.spec_error:
        return view.spec_error
    checks: tuple[Callable[[View], Iterator[str]], ...] = (_classes_exist,)
    if not accepted:
        checks += (_classes, _instance_types, _facts, _layouts, _communication, _templates, _rules, _changes)
    for one in checks:
        for problem in one(view):
            return problem
    return None


def unknown_types(view: View) -> list[str]:
    """Instance types whose facts are not known; they cannot be judged while AWS does not answer."""
    wanted = {t for part in view.parts if part.managed for t in part.nodes.instance_types or ()}
    return sorted(wanted - set(view.snap.instance_facts) - {groups.LOCAL})


def field_of(part: Part) -> str:
    """Where the user wrote about a part."""
    return f"spec.rollout.pools[{part.key}]" if part.pool else f"spec.{part.role}"


def _classes_exist(view: View) -> Iterator[str]:
    for part in view.parts:
        where, name = f"{field_of(part)}.nodes.nodeClassName", part.nodes.node_class_name
        if name not in view.snap.node_classes:
            yield f"{where}: MoERLNodeClass {name} does not exist"
        elif name not in view.classes:
            yield f"{where}: MoERLNodeClass {name} is not valid; its admin must mend it"


def _classes(view: View) -> Iterator[str]:
    nodes: dict[str, int] = {}
    for part in view.parts:
        where, name = f"{field_of(part)}.nodes", part.nodes.node_class_name
        node_class = view.classes[name]
        allowed = node_class.allowed_namespaces
        if allowed is not None and not any(fnmatchcase(view.namespace, glob) for glob in allowed):
            yield f"{where}.nodeClassName: MoERLNodeClass {name} does not allow namespace {view.namespace}"
        if not part.managed:
            continue
        nodes[name] = nodes.get(name, 0) + part.count
        if node_class.max_nodes is not None and nodes[name] > node_class.max_nodes:
            yield f"{where}: {nodes[name]} nodes asked of MoERLNodeClass {name}, which allows {node_class.max_nodes}"
        reservation = part.nodes.capacity_reservation
        if reservation and reservation not in (node_class.allowed_reservations or ()):
            yield f"{where}.capacityReservation: MoERLNodeClass {name} does not allow {reservation}"
        if not groups.subnets(view, part):
            yield f"{where}.zones: MoERLNodeClass {name} has no subnet in {', '.join(part.nodes.zones or ())}"


def _instance_types(view: View) -> Iterator[str]:
    for part in view.parts:
        allowed = view.node_class(part).allowed_instance_types
        for kind in part.nodes.instance_types or ():
            if allowed is not None and not any(fnmatchcase(kind, glob) for glob in allowed):
                yield (
                    f"{field_of(part)}.nodes.instanceTypes: MoERLNodeClass {part.nodes.node_class_name} does not "
                    f"allow {kind}; it allows {', '.join(sorted(allowed))}"
                )


def _facts(view: View) -> Iterator[str]:
    if view.snap.aws.error is None:
        for kind in unknown_types(view):
            yield f"instanceTypes: {kind} is not an instance type of this region"


def _layouts(view: View) -> Iterator[str]:
    for part in view.parts:
        known = [view.snap.instance_facts[t] for t in part.nodes.instance_types or () if t in view.snap.instance_facts]
        first = next(iter(known), None)
        for other in known[1:]:
            assert first is not None
            if _layout(other) != _layout(first):
                yield (
                    f"{field_of(part)}.nodes.instanceTypes: {first.name} and {other.name} differ in GPUs, EFA "
                    "interfaces, network cards or architecture; one node group has one launch template"
                )


def _layout(facts: InstanceFacts) -> tuple[object, ...]:
    cards = (facts.network_cards, facts.efa_on_card_zero) if facts.efa_interfaces else ()
    return (facts.gpus, facts.efa_interfaces, facts.architecture, cards)


def _communication(view: View) -> Iterator[str]:
    wish = view.spec.communication.expert_parallel
    where = "spec.communication.expertParallel"
    if view.spec.framework.type == "Native" and wish.backend != NATIVE_BACKEND:
        yield f"{where}.backend: framework Native accepts only {NATIVE_BACKEND}, not {wish.backend}"
    for part in view.parts:
        if part.role not in (names.TRAINER, names.ROLLOUT):
            continue
        there = () if part.managed else view.nodes_of_selector(part.nodes.node_selector or {})
        if there and wish.transport in EFA_TRANSPORTS and view.facts(part).efa_interfaces == 0:
            yield f"{where}.transport: {wish.transport} needs EFA, which no node of {field_of(part)} has"
        for kind in part.nodes.instance_types or ():
            if kind == groups.LOCAL or kind not in view.snap.instance_facts:
                continue  # only the preflight can tell what the local node has; the rest is judged when AWS answers
            facts = view.snap.instance_facts.get(kind, InstanceFacts(name=kind))
            if wish.transport in EFA_TRANSPORTS and facts.efa_interfaces == 0:
                yield f"{where}.transport: {wish.transport} needs EFA, which {kind} of {field_of(part)} does not have"
            if wish.transport == "EFAGDA" and not kind.startswith(EFA_GDA_FAMILIES):
                yield (
                    f"{where}.transport: EFAGDA runs on {', '.join(f + '*' for f in EFA_GDA_FAMILIES)} only, not on "
                    f"{kind} of {field_of(part)}; EFAProxy runs on every type with EFA"
                )
            if wish.transport == "NVLink" and facts.gpus == 0:
                yield f"{where}.transport: NVLink needs GPUs, which {kind} of {field_of(part)} does not have"


def _templates(view: View) -> Iterator[str]:
    for part in view.parts:
        node_class, name = view.node_class(part), part.nodes.node_class_name
        where = f"spec.{part.role}"
        template = part.template(view.raw_spec)
        problem = templates.misshapen(template, where) or templates.check(template, node_class, name, where)
        if problem:
            yield problem
            return
        containers = (template.get("spec") or {}).get("containers") or [{}]
        if not pods.main_container({"containers": containers}).get("image") and not node_class.defaults.image:
            yield f"{where}.template: the main container needs an image, since MoERLNodeClass {name} has no default"


def _rules(view: View) -> Iterator[str]:
    for role, policy in (
        (names.TRAINER, view.spec.trainer.failure_policy),
        (names.ROLLOUT, view.spec.rollout.failure_policy),
    ):
        for index, rule in enumerate(policy.rules or ()):
            try:
                re.compile(rule.message_pattern or "")
            except re.error as error:
                yield f"spec.{role}.failurePolicy.rules[{index}].messagePattern: {error}"


def _changes(view: View) -> Iterator[str]:
    """Words that a running child was made from may change only while the job is suspended."""
    if view.spec.suspend:
        return
    for part in view.parts:
        if part.managed and view.snap.aws.error is None:
            made = groups.of_part(view, part.key)
            if made and made[-1].group.desired and made[-1].revision != view.nodes_revision(part):
                yield (
                    f"{field_of(part)}.nodes: instance types, capacity, zones and class may change only while the "
                    "job is suspended"
                )
        if _running_revision(view, part) not in (None, view.pods_revision(part)):
            yield (
                f"{field_of(part)}: the template, and what all pods are configured with, may change only while the "
                "job is suspended"
            )


def _running_revision(view: View, part: Part) -> str | None:
    """Revision of what runs for a part; None when nothing does, or when the user's suspend ended it."""
    if part.role in (names.TRAINER, names.ROLLOUT):
        replicas = part.pool.wanted if part.pool else 1
        for replica in range(replicas):
            series = att.of_slot(view, att.Slot(part, replica))
            if series and series[-1].ended != att.SUSPENDED:
                return annotations_of(series[-1].job).get(names.ANNOTATION_REVISION)
        return None
    found = workloads.server_of(view, part)
    if found is None or not (found.get("spec") or {}).get("replicas"):
        return None
    return annotations_of(found).get(names.ANNOTATION_REVISION)
