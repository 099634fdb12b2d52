"""Every name that crosses a boundary: groups, labels, annotations, tags, children, ports, environment.

One place, because a label retyped elsewhere is a selector that silently matches nothing.
"""

from __future__ import annotations

GROUP = "moerl.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

# Roles, in the order in which people read them.
TRAINER, ROLLOUT, REWARD, ENVIRONMENT, BUFFER = ROLES = ("trainer", "rollout", "reward", "environment", "buffer")

# Labels and annotations of children.
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "moerl-operator"
LABEL_JOB = f"{GROUP}/job"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_ROLE = f"{GROUP}/role"
LABEL_POOL = f"{GROUP}/pool"
LABEL_REPLICA = f"{GROUP}/replica"
LABEL_ATTEMPT = f"{GROUP}/attempt"
ANNOTATION_REVISION = f"{GROUP}/revision"
# Budget spent when this attempt was made; the count lives with the children, so a lost status write loses nothing.
ANNOTATION_RESTARTS = f"{GROUP}/restarts"
# Why the operator itself ended an attempt (for instance NodeLost); the Job is suspended, not deleted.
ANNOTATION_ENDED = f"{GROUP}/ended"
ANNOTATION_ENDED_AT = f"{GROUP}/ended-at"  # RFC 3339
ANNOTATION_NODE_GROUP = f"{GROUP}/node-group"  # the group that a child was rendered for
FINALIZER = f"{GROUP}/aws-resources"

# Nodes. One label key per role and pool, so that one node can stand for several groups.
TAINT_DEDICATED = f"{GROUP}/dedicated"
NODE_ROLE_PREFIX = "role.moerl.dev/"
NODE_POOL_PREFIX = "pool.moerl.dev/"
LABEL_FAKE_NODE = f"{GROUP}/fake-node"
RESOURCE_GPU = "nvidia.com/gpu"
RESOURCE_EFA = "vpc.amazonaws.com/efa"
RESOURCE_HUGEPAGES = "hugepages-2Mi"

# Tags on AWS resources.
TAG_INSTALLATION = f"{GROUP}/installation"
TAG_CLUSTER = f"{GROUP}/cluster"
TAG_OWNER = f"{GROUP}/owner"  # "job/<uid>" or "class/<name>"
TAG_JOB = f"{GROUP}/job"  # "<namespace>/<name>"
TAG_ROLE = f"{GROUP}/role"
TAG_GROUP = f"{GROUP}/group"
TAG_REVISION = f"{GROUP}/revision"
TAG_ZONE = f"{GROUP}/zone"

# Ports.
PORT_SERVICE = 8080  # reward and environment
PORT_AGENT = 8081  # health and metrics of the agent and the driver
PORT_ENGINE = 30000
PORT_RENDEZVOUS = 29500
PORT_REDIS = 6379

CONFIG_DIR = "/etc/moerl"
CONFIG_FILE = f"{CONFIG_DIR}/job.json"
RUN_DIR = "/run/moerl"

CONTAINER_MAIN = "main"
CONTAINER_AGENT = "agent"
CONTAINER_DRIVER = "driver"
CONTAINER_PREFLIGHT = "preflight"

# The longest name is the host name of a rollout pod, <job>-rollout-<pool>-<replica>-a<attempt>-<index>:
# 28 + 9 + 11 + 5 + 6 + 4 = 63, the limit of a DNS label, with replica, attempt and index of up to 4, 4 and 3 digits.
MAX_JOB_NAME = 28
MAX_POOL_NAME = 11


def config_map(job: str) -> str:
    """ConfigMap with job.json, which every role pod mounts."""
    return f"{job}-config"


def report(job: str) -> str:
    """ConfigMap that the trainer's agent patches."""
    return f"{job}-report"


def buffer_secret(job: str) -> str:
    """Secret with the buffer's password."""
    return f"{job}-buffer"


def service(job: str, role: str) -> str:
    """Headless Service of a role; also the name of the reward/environment Deployment and the buffer StatefulSet."""
    return f"{job}-{role}"


def trainer_attempt(job: str, attempt: int) -> str:
    """Indexed Job of one attempt of the trainer gang."""
    return f"{job}-trainer-a{attempt}"


def rollout_attempt(job: str, pool: str, replica: int, attempt: int) -> str:
    """Indexed Job of one attempt of one rollout replica."""
    return f"{job}-rollout-{pool}-{replica}-a{attempt}"


def node_group(uid: str, role_or_pool: str, number: int) -> str:
    """EKS node group; never reused, because EKS keeps a failed group's name busy (containers-roadmap #2204)."""
    return f"moerl-{uid8(uid)}-{role_or_pool}-{number}"


def uid8(uid: str) -> str:
    """The part of a UID that goes into names and the taint's value."""
    return uid.replace("-", "")[:8]
