"""The environment that every container of a role's pod gets."""

from __future__ import annotations

from typing import Any

from moerl_operator.api import names
from moerl_operator.manifests import transport
from moerl_operator.manifests.context import JobContext, RoleContext

Obj = dict[str, Any]

# The Job controller puts it on every pod of an Indexed Job.
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def url(job: JobContext, role: str) -> str:
    """Address of the reward or environment service inside the cluster."""
    return f"http://{names.service(job.name, role)}.{job.namespace}.svc.cluster.local:{names.PORT_SERVICE}"


def buffer_url(job: JobContext) -> str:
    """Address of the buffer's one server; the password is apart."""
    host = f"{names.service(job.name, names.BUFFER)}-0.{names.service(job.name, names.BUFFER)}"
    return f"redis://{host}.{job.namespace}.svc.cluster.local:{names.PORT_REDIS}/0"


def identity(role: RoleContext) -> list[Obj]:
    """Who and where the pod is; a template cannot override these."""
    job = role.job
    plain = {
        "MOERL_JOB": job.name,
        "MOERL_NAMESPACE": job.namespace,
        "MOERL_JOB_UID": job.uid,
        "MOERL_ROLE": role.role,
        "MOERL_POOL": role.pool,
        "MOERL_REPLICA": str(role.replica),
        "MOERL_ATTEMPT": str(role.attempt),
        "MOERL_CONFIG": names.CONFIG_FILE,
        "MOERL_RUN_DIR": names.RUN_DIR,
        "MOERL_REPORT": names.report(job.name),
        "MOERL_BUFFER_URL": buffer_url(job),
        "MOERL_EP_BACKEND": job.spec.communication.expert_parallel.backend,
        "MOERL_TRANSPORT": job.spec.communication.expert_parallel.transport,
        "MOERL_ON_MISMATCH": job.spec.communication.expert_parallel.on_mismatch,
    }
    if job.spec.reward:
        plain["MOERL_REWARD_URL"] = url(job, names.REWARD)
    if job.spec.environment:
        plain["MOERL_ENVIRONMENT_URL"] = url(job, names.ENVIRONMENT)
    out: list[Obj] = [{"name": key, "value": value} for key, value in plain.items()]
    out += [
        _field("MOERL_POD_NAME", "metadata.name"),
        _field("MOERL_POD_IP", "status.podIP"),
        _field("MOERL_NODE_NAME", "spec.nodeName"),
    ]
    secret = {"name": names.buffer_secret(job.name), "key": "password"}
    out.append({"name": "MOERL_BUFFER_PASSWORD", "valueFrom": {"secretKeyRef": secret}})
    return out


def rendezvous(role: RoleContext, child: str) -> list[Obj]:
    """What torch.distributed needs to find the gang; only for pods of an Indexed Job called `child`."""
    master = f"{child}-0.{names.service(role.job.name, role.role)}.{role.job.namespace}.svc.cluster.local"
    return [
        _field("RANK", _INDEX),
        {"name": "WORLD_SIZE", "value": str(role.gang)},
        {"name": "MASTER_ADDR", "value": master},
        {"name": "MASTER_PORT", "value": str(names.PORT_RENDEZVOUS)},
    ]


def defaults(role: RoleContext, effective: str) -> list[Obj]:
    """What a template may override: the transport's variables and the class's own."""
    plain = transport.environment(effective, role.facts) if role.role in (names.TRAINER, names.ROLLOUT) else {}
    if not transport.uses_efa(effective):
        plain["HOME"] = "/tmp"  # noqa: S108 - the pod's own: the account that it runs as has no home folder
    plain |= {item.name: item.value for item in role.node_class.defaults.env or ()}
    return [{"name": key, "value": value} for key, value in plain.items()]


def merge(weak: list[Obj], own: list[Obj], strong: list[Obj]) -> list[Obj]:
    """Three layers of variables, later ones win; the order of first mention stays, as $(VAR) needs."""
    merged: dict[str, Obj] = {}
    for item in [*strong, *weak, *own, *strong]:
        merged[str(item.get("name"))] = item
    return list(merged.values())


def _field(name: str, path: str) -> Obj:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
