"""Brings a cluster up and takes it down again, however far either got before."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moerl_local.cluster import (
    account,
    awsemulator,
    build,
    controlplane,
    kind,
    kwok,
    leftovers,
    network,
    prerequisites,
    runtime,
    sweep,
)
from moerl_local.cluster import node as real_node
from moerl_local.cluster import settings as setting
from moerl_local.cluster.controlplane import Files
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import FILE, Cluster
from moerl_local.cluster.kubectl import Kubectl
from moerl_local.cluster.processes import Processes
from moerl_local.cluster.progress import Progress
from moerl_local.cluster.settings import Settings
from moerl_local.paths import state_dir


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `up` shall bring up beside control plane and fake nodes.

    Attributes:
        node: the real node.
        aws: the AWS emulator.
        time_scale: how many seconds of AWS pass in one second here; 0 for a clock that moves only when told.
    """

    node: bool = True
    aws: bool = True
    time_scale: float = 60.0


def up(name: str, wanted: Wanted) -> Cluster:
    """Bring cluster `name` up, or whatever of it does not run.

    Raises:
        ClusterError: a prerequisite is missing (then nothing was made), or a step failed (then `up` resumes).
    """
    with_node = wanted.node and network.usable()
    prerequisites.check(with_node=with_node)
    programs = [*build.CONTROL_PLANE, *(build.NODE if with_node else ())]
    bin_dir = build.build(programs)
    with setting.locked(name):
        settings = setting.load_or_choose(name)
        return _start(settings, wanted, bin_dir, with_node)


def _start(settings: Settings, wanted: Wanted, bin_dir: Path, with_node: bool) -> Cluster:
    processes = Processes(settings.folder)
    files = Files(settings.folder)
    admin = Kubectl(bin_dir / "kubectl", files.kubeconfig("admin"))
    with_aws = wanted.aws and awsemulator.available()
    node_name = real_node.NAME if with_node or real_node.runs(processes) else None
    with Progress("start", total=3 + with_node + with_aws) as progress:
        progress.start("network and control plane")
        if settings.index is not None:
            _make_links(settings, processes, with_node)
        if not (processes.get("kube-apiserver") and files.kubeconfig("aws").exists()):
            controlplane.prepare(settings)
        if settings.index is not None:
            network.make_rules(settings.network, settings.ports["apiserver"])
        if with_node:
            runtime.start(settings.folder, settings.network, processes)  # needs a second that it can have now
        aws = None
        if with_aws:  # as well: it waits for the API server by itself
            aws = awsemulator.start(settings, processes, node_name=node_name, time_scale=wanted.time_scale)
        controlplane.start(settings, processes, bin_dir)
        progress.done()
        progress.start("fake nodes")
        kwok.start(settings, processes, bin_dir, admin)
        progress.done()
        progress.start("operator account")
        _await_defaults(admin)
        account.make(settings, admin, server=controlplane.server_url(settings))
        progress.done()
        cluster = _describe(settings, bin_dir, node_name)
        cluster.save()
        if with_node:
            progress.start("real node")
            real_node.start(settings, processes, bin_dir, admin)
            progress.done()
        if aws:
            progress.start("AWS emulator")
            awsemulator.await_ready(settings, processes, aws)
            progress.done()
    return cluster


def down(name: str, *, purge: bool = False) -> int:
    """End everything of cluster `name`, and with `purge` delete its data as well.

    Works from what is there, not from what `up` believes it made, so it also cleans up after a killed `up`.

    Returns:
        How many processes were ended.
    """
    with setting.locked(name):
        kind.delete(name)
        folder = state_dir() / name
        settings = setting.load(name)
        processes = Processes(folder)
        own_network = settings.network if settings and settings.index is not None else None
        if own_network and not network.usable():
            raise ClusterError(f"cluster {name} was started by root; run `moerl cluster down` as root")
        ended = real_node.stop(own_network, processes) if own_network else 0
        ended += processes.stop()
        if own_network:
            sweep.sweep(folder, own_network)
            network.remove(own_network)
        if left := leftovers.find(folder, own_network):
            raise ClusterError(f"cluster {name}: could not end {'; '.join(left)}; run `moerl cluster down` again")
        if settings:
            settings.ports.clear()
            settings.save()
        (folder / FILE).unlink(missing_ok=True)
        if purge:
            shutil.rmtree(folder, ignore_errors=True)
        return ended


def restart(name: str, programs: Sequence[str], wanted: Wanted) -> Cluster:
    """End some processes of cluster `name` and bring it up again.

    Raises:
        ClusterError: one of `programs` is none of its processes.
    """
    processes = Processes(Cluster.load(name).folder)
    unknown = sorted(set(programs) - set(processes.recorded()))
    if unknown:
        raise ClusterError(f"cluster {name} runs no {', '.join(unknown)}; it has: {', '.join(processes.recorded())}")
    with setting.locked(name):
        for program in programs:
            processes.stop(program)
    return up(name, wanted)


def reset(name: str, wanted: Wanted) -> Cluster:
    """Bring up cluster `name` as new: every object is gone, images stay."""
    down(name)
    folder = state_dir() / name
    for part in ("etcd", "kubelet", "pod-logs", "logs", "aws", "kubeconfig", "config", "pki"):
        shutil.rmtree(folder / part, ignore_errors=True)
    return up(name, wanted)


def _make_links(settings: Settings, processes: Processes, with_node: bool) -> None:
    network.make_links(settings.network)
    if with_node:
        try:
            real_node.check_ports(settings, processes)
        except ClusterError:
            if not processes.recorded():
                network.remove(settings.network)  # nothing was made yet, nothing shall stay
            raise


def _describe(settings: Settings, bin_dir: Path, node_name: str | None) -> Cluster:
    files = Files(settings.folder)
    has_aws = Processes(settings.folder).get(awsemulator.NAME) is not None
    return Cluster(
        name=settings.name,
        server=controlplane.server_url(settings),
        bridge_address=settings.address,
        pod_cidr=settings.network.pod_cidr,
        service_cidr=settings.network.service_cidr,
        bin_dir=bin_dir,
        admin_kubeconfig=files.kubeconfig("admin"),
        operator_kubeconfig=files.kubeconfig("operator"),
        containerd_socket=runtime.socket(settings.network) if node_name else None,
        node_name=node_name,
        audit_log=files.audit_log,
        aws_endpoint=awsemulator.endpoint(settings) if has_aws else None,
        engine="local",
    )


def _await_defaults(admin: Kubectl, *, timeout_s: float = 30.0) -> None:
    """Wait for what the controller manager makes in every namespace: without it pods are refused."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = subprocess.run(
            [str(admin.binary), f"--kubeconfig={admin.kubeconfig}", "get", "serviceaccount", "default"],
            capture_output=True,
            check=False,
        )
        if found.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise ClusterError(
                f"kube-controller-manager made no default service account within {timeout_s:.0f} s; "
                "see `moerl cluster logs kube-controller-manager`"
            )
        time.sleep(0.1)
