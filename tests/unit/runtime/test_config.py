"""What a process is told: job.json through the API's models, the environment, and clear words about both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moerl_runtime.config import ConfigError, Settings, load_job, parse_job


def document(**spec: Any) -> dict[str, Any]:
    """A small valid job.json."""
    return {
        "metadata": {"name": "j", "namespace": "n", "uid": "u"},
        "spec": {
            "algorithm": {"iterations": 350, "learningRate": "2e-3", "maxNewTokens": 4},
            "model": {"preset": "TinyQwen3MoE"},
            "storage": {"dataset": "builtin://reverse-4", "checkpoints": "s3://b/c", "artifacts": "s3://b/a"},
            "rollout": {"pools": [{"name": "a", "replicas": 2}, {"name": "b", "minReplicas": 1, "maxReplicas": 9}]},
            **spec,
        },
    }


def test_the_api_s_names_and_defaults() -> None:
    job = parse_job(document())
    assert (job.name, job.namespace, job.uid) == ("j", "n", "u")
    assert float(job.algorithm.learning_rate) == 0.002
    assert (job.algorithm.group_size, job.algorithm.prompts_per_iteration) == (16, 32)
    assert job.algorithm.max_staleness_versions == 1
    assert job.rollout_replicas == 3
    assert job.dataset == "builtin://reverse-4"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"algorithm": None}, "spec.algorithm is missing"),
        ({"algorithm": {"iterations": 1, "klPenalty": 1}}, r"algorithm\.klPenalty"),
        ({"algorithm": {"iterations": 0}}, r"algorithm\.iterations"),
        ({"storage": {"dataset": "/tmp"}}, r"storage\.dataset"),
    ],
)
def test_a_wrong_job_names_the_field(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_job(document(**spec))


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    with pytest.raises(ConfigError, match=r"no job file at .*job\.json: set MOERL_CONFIG"):
        load_job(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"job\.json cannot be read"):
        load_job(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="has no spec"):
        load_job(path)
    path.write_text(json.dumps(document()))
    assert load_job(path).name == "j"


def test_the_injected_environment() -> None:
    settings = Settings.from_env(
        {
            "MOERL_JOB": "j",
            "MOERL_NAMESPACE": "n",
            "MOERL_ROLE": "rollout",
            "MOERL_ATTEMPT": "3",
            "MOERL_POD_NAME": "j-rollout-main-0-a3-0",
            "MOERL_BUFFER_URL": "redis://j-buffer-0.j-buffer.n.svc.cluster.local:6379/0",
            "MOERL_ENVIRONMENT_URL": "http://j-environment.n.svc.cluster.local:8080/",
        }
    )
    assert (settings.attempt, settings.worker) == (3, "j-rollout-main-0-a3-0")
    assert settings.environment_url == "http://j-environment.n.svc.cluster.local:8080"
    assert settings.config_file == Path("/etc/moerl/job.json")
    assert (settings.service_port, settings.agent_port) == (8080, 8081)
    with pytest.raises(ConfigError, match="MOERL_ATTEMPT='x' is not a whole number"):
        Settings.from_env({"MOERL_ATTEMPT": "x"})
