"""Prometheus metrics of the operator, named as controller-runtime names its own where it has the same thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """One registry per operator, so that two in one process (tests) do not share counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.reconciles = self._counter("moerl_reconcile", "Reconciles by result.", "result")
        self.reconcile_seconds = Histogram(
            "moerl_reconcile_time_seconds", "Duration of a reconcile.", buckets=_SECONDS, registry=self.registry
        )
        self.plan_seconds = Histogram(
            "moerl_plan_time_seconds", "Duration of the pure policy.", buckets=_SECONDS, registry=self.registry
        )
        self.actions = self._counter("moerl_actions", "Actions carried out.", "action", "result")
        self.status_writes = self._counter("moerl_status_writes", "Status writes.", "result")
        self.kube_requests = self._counter("moerl_kube_requests", "Requests to the API server.", "verb", "kind", "code")
        self.aws_calls = self._counter("moerl_aws_calls", "Calls of AWS.", "service", "operation", "code")
        self.aws_seconds = Histogram(
            "moerl_aws_call_seconds",
            "Duration of AWS calls, waiting for a thread included.",
            ["service", "operation"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.events = self._counter("moerl_watch_events", "Watch events taken in.", "kind", "type")
        self.missed = self._counter("moerl_watch_missed", "Changes that only a full list showed.", "kind")
        self.leader = Gauge("moerl_leader", "1 while this process holds the Lease.", registry=self.registry)
        self._jobs: dict[str, Gauge] = {
            name: Gauge(f"moerl_job_{name}", text, ["namespace", "job"], registry=self.registry)
            for name, text in _JOB_GAUGES.items()
        }
        self.job_state = Gauge(
            "moerl_job_state", "1 for the state that the job is in.", ["namespace", "job", "state"],
            registry=self.registry,
        )  # fmt: skip
        self._states: dict[tuple[str, str], str] = {}

    def watch_queue(
        self, depth: Callable[[], float], oldest: Callable[[], float], working: Callable[[], float]
    ) -> None:
        """Read the queue's figures when they are scraped."""
        for name, text, read in (
            ("moerl_workqueue_depth", "Keys waiting.", depth),
            ("moerl_workqueue_oldest_seconds", "Age of the longest waiting key.", oldest),
            ("moerl_workqueue_working", "Keys being reconciled.", working),
        ):
            Gauge(name, text, registry=self.registry).set_function(read)

    def kube_request(self, verb: str, kind: str, status: int) -> None:
        """Observer of the API client."""
        self.kube_requests.labels(verb, kind, str(status)).inc()

    def aws_call(self, service: str, operation: str, code: str, seconds: float) -> None:
        """Observer of the AWS calls."""
        self.aws_calls.labels(service, operation, code or "OK").inc()
        self.aws_seconds.labels(service, operation).observe(seconds)

    def show_job(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """The gauges of one job, from the status that was written."""
        for gauge, value in _job_values(status).items():
            if value is not None:
                self._jobs[gauge].labels(namespace, name).set(value)
        state = str((status.get("display") or {}).get("state") or "Unknown")
        before = self._states.get((namespace, name))
        if before != state:
            if before is not None:
                self.job_state.remove(namespace, name, before)
            self.job_state.labels(namespace, name, state).set(1)
            self._states[(namespace, name)] = state

    def forget_job(self, namespace: str, name: str) -> None:
        """Remove the gauges of a job that is gone, else they would show its last values for ever."""
        for gauge in self._jobs.values():
            with suppress(KeyError):
                gauge.remove(namespace, name)
        state = self._states.pop((namespace, name), None)
        if state is not None:
            self.job_state.remove(namespace, name, state)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)


_JOB_GAUGES = {
    "iteration": "Training iteration.",
    "policy_version": "Latest published policy version.",
    "restarts": "Attempts beyond the first, over all roles.",
    "cost_per_hour_usd": "Estimated cost of the nodes that are there.",
    "roles_ready": "Ready units over all roles.",
    "roles_desired": "Wanted units over all roles.",
    "nodes_ready": "Ready nodes over all node groups.",
    "nodes_desired": "Wanted nodes over all node groups.",
}


def _job_values(status: Mapping[str, Any]) -> dict[str, float | None]:
    roles, groups = status.get("roles") or [], status.get("nodeGroups") or []
    return {
        "iteration": _number(status.get("iteration")),
        "policy_version": _number(status.get("policyVersion")),
        "restarts": _number(status.get("restarts") or 0),
        "cost_per_hour_usd": _number(status.get("costPerHourUsd", status.get("costPerHourUSD"))),
        "roles_ready": float(sum(role.get("ready") or 0 for role in roles)),
        "roles_desired": float(sum(role.get("desired") or 0 for role in roles)),
        "nodes_ready": float(sum(group.get("ready") or 0 for group in groups)),
        "nodes_desired": float(sum(group.get("desired") or 0 for group in groups)),
    }


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
