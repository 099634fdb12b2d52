"""How long things take, in emulated seconds. Judged from field reports; none of them is promised by AWS."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations in emulated seconds."""

    group_asg_created: float = 45  # CreateNodegroup to its Auto Scaling group
    group_active: float = 150  # CreateNodegroup at size 0 to ACTIVE
    group_create_timeout: float = 1800  # nodes that never join: CREATE_FAILED
    group_update: float = 30  # UpdateNodegroupConfig to Successful
    group_degrade_lag: float = 120  # first failed launch to DEGRADED
    group_sync_lag: float = 180  # SetDesiredCapacity to DescribeNodegroup's desiredSize
    group_delete: float = 300  # DeleteNodegroup to gone, at least
    asg_react: float = 10  # a changed desired size to the first launch
    launch_failure: float = 60  # a launch attempt to its failed activity
    launch_retry: float = 120  # a failed activity to the next attempt
    instance_running: float = 45  # launch to running and InService
    instance_joined: float = 300  # launch to a node in the cluster
    drain: float = 60  # Terminating:Wait, where no cluster is attached
    drain_limit: float = 900  # EKS drains that long, then kills (budgets or not)
    drain_limit_delete: float = 300  # the same when the whole group goes
    instance_shutdown: float = 30  # shutting-down to terminated
    instance_visible: float = 3600  # terminated instances stay in DescribeInstances
    activity_kept: int = 100  # activities kept per group (count, not seconds)
