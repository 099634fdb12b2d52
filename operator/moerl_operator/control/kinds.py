"""The resource types that the control loop watches, and how an object finds its type."""

from __future__ import annotations

from moerl_operator.api import names
from moerl_operator.kube.api import Kind, Kinds, Obj

# Children, watched by the label that all of them carry.
CHILDREN = (
    Kinds.POD,
    Kinds.JOB,
    Kinds.DEPLOYMENT,
    Kinds.STATEFUL_SET,
    Kinds.SERVICE,
    Kinds.CONFIG_MAP,
    Kinds.SERVICE_ACCOUNT,
    Kinds.ROLE,
    Kinds.ROLE_BINDING,
    Kinds.NETWORK_POLICY,
    Kinds.POD_DISRUPTION_BUDGET,
)
CHILD_SELECTOR = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"

# Secrets are not watched: their values would stream through the process. They are looked up by name.
WATCHED = (Kinds.MOERL_JOB, Kinds.MOERL_NODE_CLASS, Kinds.NODE, *CHILDREN)

_ALL = {(kind.api_version, kind.kind): kind for kind in vars(Kinds).values() if isinstance(kind, Kind)}


def kind_of(api_version: str, kind: str) -> Kind:
    """The type with this `apiVersion` and `kind`. Raises KeyError: a plan names only what this project touches."""
    return _ALL[(api_version, kind)]


def kind_of_object(obj: Obj) -> Kind:
    """The type of an object that says it."""
    return kind_of(obj["apiVersion"], obj["kind"])


def selector_of(kind: Kind) -> str:
    """The label selector with which a type is watched."""
    return CHILD_SELECTOR if kind in CHILDREN else ""
