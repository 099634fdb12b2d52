"""Starting an API server that ends at once, played by a shell script that says what a real one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from moerl_local.cluster.controlplane import start_apiserver
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.processes import Processes
from moerl_local.cluster.settings import Settings

HOOK = 'F1201 00:27:19 hooks.go:204] PostStartHook "scheduling/bootstrap-system-priority-classes" failed: timed out'


@pytest.mark.parametrize(("said", "starts"), [(HOOK, 3), ("E1201 bind: address already in use", 1)])
def test_only_a_start_hook_that_gave_up_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, starts: int
) -> None:
    monkeypatch.setenv("MOERL_STATE", str(tmp_path))
    settings = Settings("x", None, {"apiserver": 1})
    processes = Processes(settings.folder)
    log = settings.folder / "logs" / "kube-apiserver.log"
    with pytest.raises(ClusterError, match="kube-apiserver ended at once"):
        start_apiserver(settings, processes, ["/bin/sh", "-c", f"echo '{said}'; exit 1"])
    assert log.read_text().count(said) == starts
