"""What of a job may change, as rules that the API server evaluates on every update.

At any time: suspend, pool sizes, replicas of reward and environment, their node counts, runPolicy, onFinish. While
the job is suspended (before or after the write), or its generation is not accepted (nothing was made of it, and it is
to be corrected): everything else, except what makes it another job (names, roles, framework, model, storage, buffer
storage, provisioner). A change that is not allowed is refused, never ignored.
"""

from __future__ import annotations

from moerl_operator.api.base import Cel

# Nodes are bought once for these words; provisioner is immutable, onFinish is free.
_NODE_FIELDS = (
    "nodeClassName",
    "capacityType",
    "?instanceTypes",
    "?capacityReservation",
    "?zones",
    "?placementGroup",
    "?nodeSelector",
)


# These rules stand at the root of the resource, because they look at its status.
_FREE = (
    "self.spec.suspend || oldSelf.spec.suspend || (has(oldSelf.status) && has(oldSelf.status.conditions) && "
    "oldSelf.status.conditions.exists(c, c.type == 'Accepted' && c.status == 'False'))"
)


def _same(*fields: str, new: str = "self", old: str = "oldSelf") -> str:
    """CEL: these fields are equal in both, where absent equals absent; `?` before the last name marks an optional one.

    CEL's own optional syntax (`self.?field`) would be shorter, but the server's cost estimate of it is unbounded.
    """
    return " && ".join(
        f"has({new}.{path}) == has({old}.{path}) && (!has({new}.{path}) || {new}.{path} == {old}.{path})"
        if optional
        else f"{new}.{path} == {old}.{path}"
        for path, optional in ((field.replace("?", ""), "?" in field) for field in fields)
    )


def _nodes(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{field}" for field in _NODE_FIELDS)


def _held(path: str, *fields: str, what: str = "") -> Cel:
    return Cel(
        f"{_FREE} || ({_same(*fields, new='self.spec', old='oldSelf.spec')})",
        f"{what or path.lstrip('.')} can change only while the job is suspended",
        f".spec{path}",
    )


def _pools() -> Cel:
    fields = _same(*_nodes("nodes"), "nodesPerReplica", new="p", old="o")
    return Cel(
        f"{_FREE} || self.spec.rollout.pools.all(p, oldSelf.spec.rollout.pools.all(o, o.name != p.name || ({fields})))",
        "of a pool only sizes and onFinish can change while the job is not suspended",
        ".spec.rollout.pools",
    )


def _role_stays(role: str) -> Cel:
    return Cel(
        f"has(self.{role}) == has(oldSelf.{role})",
        f"role {role} cannot be added to or taken from a job; create a new job instead",
        f".{role}",
    )


def _optional_role(role: str) -> Cel:
    same = _same(f"{role}.?template", *_nodes(f"{role}.nodes"), new="self.spec", old="oldSelf.spec")
    return Cel(
        f"{_FREE} || !has(self.spec.{role}) || !has(oldSelf.spec.{role}) || ({same})",
        f"{role}.template and {role}.nodes can change only while the job is suspended",
        f".spec.{role}",
    )


JOB_SPEC_CHANGES = (
    Cel(_same("?storage"), "storage is immutable; create a new job instead", ".storage"),
    Cel(_same("?model"), "model is immutable; create a new job instead", ".model"),
    _role_stays("reward"),
    _role_stays("environment"),
)

JOB_CHANGES = (
    _optional_role("reward"),
    _optional_role("environment"),
    _held(".algorithm", "?algorithm"),
    _held(".communication", "communication"),
    _held(".priorityClassName", "?priorityClassName"),
    _held(".serviceAccountName", "?serviceAccountName"),
    _held(".trainer.nodes.count", "trainer.nodes.?count"),
    _held(".trainer.nodes", *_nodes("trainer.nodes")),
    _held(".trainer.template", "trainer.?template"),
    _held(".trainer.failurePolicy", "trainer.failurePolicy"),
    _held(".rollout.template", "rollout.?template"),
    _held(".rollout.engine", "rollout.engine"),
    _held(".rollout.failurePolicy", "rollout.failurePolicy"),
    _pools(),
    _held(".buffer", "buffer.?template", "buffer.nodes.?count", *_nodes("buffer.nodes"),
          what="buffer.template and buffer.nodes"),
)  # fmt: skip

POOL_NAMES = Cel(
    "self.map(p, p.name) == oldSelf.map(p, p.name)",
    "pools cannot be added, removed, renamed or reordered; create a new job instead",
)
