"""What a driver counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class DriverMetrics:
    """One process's metrics. Counters end in _total on the wire."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.version = Gauge(
            "moerl_policy_version", "Version that the engine serves; -1 for none.", registry=self.registry
        )
        self.leases = Gauge("moerl_leases_held", "Groups that this driver works on.", registry=self.registry)
        self.groups = Counter(
            "moerl_groups", "Groups by what became of their commit.", ["result"], registry=self.registry
        )
        self.samples = Counter("moerl_samples_admitted", "Samples of admitted groups.", registry=self.registry)
        self.tokens = Counter("moerl_tokens_generated", "Tokens generated.", registry=self.registry)
        self.wasted = Counter(
            "moerl_wasted_tokens", "Tokens generated but not admitted.", ["reason"], registry=self.registry
        )
        self.released = Counter("moerl_leases_released", "Leases given back unused.", registry=self.registry)
        self.retries = Counter(
            "moerl_scoring_retries", "Scoring requests that had to be repeated.", registry=self.registry
        )
        self.refused = Counter(
            "moerl_engine_refusals", "Requests that the engine did not serve.", registry=self.registry
        )
        self.loads = Counter("moerl_weight_loads", "Weight loads by result.", ["result"], registry=self.registry)
        self.generate_seconds = self._histogram("moerl_generate_seconds", "Time of one generate request.")
        self.score_seconds = self._histogram("moerl_scoring_seconds", "Time to score one group, retries included.")
        self.pull_seconds = self._histogram("moerl_weight_pull_seconds", "Time to pull and verify a version.")
        self.load_seconds = self._histogram("moerl_weight_load_seconds", "Time for the engine to load a version.")
        self.version.set(-1)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=_SECONDS, registry=self.registry)
