"""`python -m moerl_local.cluster`: the same as `moerl cluster`."""

from __future__ import annotations

from moerl_local.cluster.cli import cluster

cluster(prog_name="moerl cluster")
