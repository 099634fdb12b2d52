"""Gauges follow a job's status, and go with the job."""

from __future__ import annotations

from moerl_operator.observe.metrics import Metrics


def value(metrics: Metrics, line: str) -> float | None:
    for each in metrics.render().decode().splitlines():
        if each.startswith(line + " "):
            return float(each.rsplit(" ", 1)[1])
    return None


STATUS = {
    "iteration": 7,
    "policyVersion": 6,
    "restarts": 1,
    "costPerHourUsd": "12.50",
    "roles": [{"ready": 1, "desired": 2}, {"desired": 4}],
    "nodeGroups": [{"ready": 3, "desired": 4}],
    "display": {"state": "Running"},
}


def test_a_job_is_shown_by_its_status() -> None:
    metrics = Metrics()
    metrics.show_job("ns", "j", STATUS)
    labels = '{job="j",namespace="ns"}'
    assert value(metrics, f"moerl_job_iteration{labels}") == 7
    assert value(metrics, f"moerl_job_cost_per_hour_usd{labels}") == 12.5
    assert value(metrics, f"moerl_job_roles_ready{labels}") == 1
    assert value(metrics, f"moerl_job_roles_desired{labels}") == 6
    assert value(metrics, 'moerl_job_state{job="j",namespace="ns",state="Running"}') == 1


def test_only_the_present_state_is_shown() -> None:
    metrics = Metrics()
    metrics.show_job("ns", "j", STATUS)
    metrics.show_job("ns", "j", STATUS | {"display": {"state": "Complete"}})
    assert value(metrics, 'moerl_job_state{job="j",namespace="ns",state="Running"}') is None
    assert value(metrics, 'moerl_job_state{job="j",namespace="ns",state="Complete"}') == 1


def test_a_job_that_is_gone_is_forgotten_even_if_it_was_never_shown() -> None:
    metrics = Metrics()
    metrics.forget_job("ns", "never")
    metrics.show_job("ns", "j", STATUS)
    metrics.forget_job("ns", "j")
    assert 'job="j"' not in metrics.render().decode()


def test_two_operators_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.kube_request("get", "pods", 200)
    line = 'moerl_kube_requests_total{code="200",kind="pods",verb="get"}'
    assert (value(one, line), value(other, line)) == (1, None)
