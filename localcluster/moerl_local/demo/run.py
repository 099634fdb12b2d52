"""The demo's steps in order. Each either succeeds or says in one line what is wrong and how to mend it."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from moerl_local.cluster import launcher, network
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import Cluster
from moerl_local.demo import facts, install, localise, manifests, page, prepare, watch
from moerl_local.demo.bucket import Bucket
from moerl_local.demo.errors import DemoError
from moerl_local.demo.progress import Steps
from moerl_local.demo.record import Obj, Record, now
from moerl_local.demo.view import View
from moerl_local.images import load as image_loader
from moerl_local.images.errors import ImageError
from moerl_local.paths import cache_dir

NAMESPACE = "demo"
MODEL_URI = "s3://moerl/models/warmstart"
HELD_OUT_PROMPTS = 512


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    cluster: str
    out: Path
    keep: bool
    operator_image: str | None
    out_of_cluster: bool
    job_seconds: float
    random_weights: bool


def run(options: Options, console: Console) -> Record:
    """Everything from a checkout to the report.

    Raises:
        DemoError: a step failed; what was made stays for a look, and the message says how to look.
    """
    check(manifests.CHECKOUT)
    record = Record(operator_mode=_mode(options))
    steps = Steps(console, record.steps)
    timings = os.environ.get("MOERL_BOOTSTRAP_TIMINGS") or cache_dir() / "bootstrap-timings.tsv"
    if os.environ.get("MOERL_PLAN_SHOWN"):
        steps.read_bootstrap(Path(timings))
    example = manifests.example()
    with steps.step("prepare"):
        image = prepare.image()
        model = None if options.random_weights else prepare.warm_start(manifests.example_dataset())
    with steps.step("cluster") as entry:
        cluster = _start(options.cluster)
        entry["note"] = f"{cluster.server}, node {cluster.node_name}"
    machine = localise.Machine(manifests.CHECKOUT, image.tag, _needed(cluster.aws_endpoint, "an AWS emulator"))
    with steps.step("image") as entry:
        entry["note"] = _load_image(image.path, cluster)
    with install.operator(
        cluster,
        machine,
        steps,
        namespace=NAMESPACE,
        image=options.operator_image,
        out_of_cluster=options.out_of_cluster,
    ):
        record.versions, record.machine = facts.versions(cluster, image.tag), facts.machine()
        with steps.step("upload"):
            if model:
                Bucket(machine.aws_endpoint).upload(model, MODEL_URI)
        job = localise.job(example, machine, namespace=NAMESPACE, model_uri=MODEL_URI if model else None)
        try:
            with steps.step("job") as entry:
                _train(cluster, job, record, options, console)
                entry["note"] = f"Complete after {record.report.get('iteration', '?')} iterations"
            with steps.step("evaluate") as entry:
                record.evaluation = _evaluate(record, machine, model)
                entry["note"] = f"exact match {record.evaluation['exactMatch']:.3f}"
        finally:
            with steps.step("report") as entry:
                entry["note"] = str(_write_report(record, options.out))
        if not options.keep:
            delete(cluster, job)
    return record


def check(checkout: Path) -> None:
    """Refuse before anything is made.

    Raises:
        DemoError: this machine cannot run the real node, or pods could not read the checkout.
    """
    if not network.usable():
        raise DemoError(
            "the demo runs real pods, which needs root on Linux: run it with sudo; "
            "`moerl cluster up --no-node` gives a control plane with fake nodes only"
        )
    for folder in (checkout, checkout / "operator", checkout / "runtime"):
        if folder.stat().st_mode & 0o005 != 0o005:
            raise DemoError(f"pods run as another account and cannot read {folder}: chmod -R o+rX {checkout}")


def _mode(options: Options) -> str:
    if options.out_of_cluster:
        return "a process beside the cluster"
    return f"a pod of image {options.operator_image}" if options.operator_image else "a pod running this checkout"


def _start(name: str) -> Cluster:
    try:
        launcher.up(name, launcher.Wanted(node=True, aws=True, time_scale=60.0))
        cluster = Cluster.load(name)
    except ClusterError as error:
        raise DemoError(str(error)) from error
    _needed(cluster.node_name, "its real node")
    return cluster


def _needed(value: str | None, what: str) -> str:
    if not value:
        raise DemoError(f"the cluster runs without {what}: `moerl cluster down`, then run the demo again")
    return value


def _load_image(archive: Path, cluster: Cluster) -> str:
    socket = cluster.containerd_socket
    assert socket is not None, "a cluster with a node has a containerd"
    try:
        wanted = [image_loader.full_name(tag) for tag in image_loader.tags(archive)]
        if all(tag in image_loader.loaded(socket) for tag in wanted):
            return "already there"
        return ", ".join(image_loader.load(archive, socket))
    except ImageError as error:
        raise DemoError(str(error)) from error


def _train(cluster: Cluster, job: Obj, record: Record, options: Options, console: Console) -> None:
    manifest = options.out / "manifest.yaml"
    options.out.mkdir(parents=True, exist_ok=True)
    manifest.write_text(manifests.dump(job))
    try:
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(_namespace()))
        delete(cluster, job)
        for folder in ("checkpoints", "artifacts"):  # of an earlier demo: a trainer refuses another job's checkpoints
            Bucket(_needed(cluster.aws_endpoint, "an AWS emulator")).clear(job["spec"]["storage"][folder])
        record.applied = now()
        console.print(f"      kubectl apply -f {manifest}", highlight=False, soft_wrap=True)
        cluster.kubectl("apply", "-f", str(manifest))
    except ClusterError as error:
        raise DemoError(str(error)) from error
    name = job["metadata"]["name"]
    view = View(record, console=console)
    with view:
        watch.until_finished(
            cluster, record, namespace=NAMESPACE, name=name, seconds=options.job_seconds, show=view.show
        )
    view.end()


def _namespace() -> Obj:
    # hostPath is what the mounted checkout needs; on EKS the namespace would enforce `restricted`.
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def delete(cluster: Cluster, job: Obj) -> None:
    """Delete the demo's job and wait until its finalizer is through, so that no AWS object of it is left.

    Raises:
        DemoError: it is still there after two minutes.
    """
    try:
        words = ("-n", NAMESPACE, "delete", "moerljob", job["metadata"]["name"], "--ignore-not-found", "--timeout=120s")
        cluster.admin.run(*words, timeout_s=130)
    except ClusterError as error:
        raise DemoError(f"the job could not be deleted: {error}") from error


def _evaluate(record: Record, machine: localise.Machine, before: Path | None) -> Obj:
    """Ask the final policy, and the one it started from, the same held-out prompts."""
    uri = record.job.get("status", {}).get("finalPolicy") or (record.report.get("final") or {}).get("uri")
    if not uri:
        raise DemoError("the job is Complete but names no final policy in status.finalPolicy")
    with tempfile.TemporaryDirectory(prefix="moerl-policy-") as folder:
        Bucket(machine.aws_endpoint).download(uri, Path(folder))
        models = [Path(folder), *([before] if before else [])]
        final, *start = _ask(models)
    final["uri"] = uri
    if start:
        final["before"] = start[0]["exactMatch"]
    return final


def _ask(models: list[Path]) -> list[Obj]:
    arguments = [word for model in models for word in ("--model", str(model))]
    arguments += ["--dataset", manifests.example_dataset(), "--prompts", str(HELD_OUT_PROMPTS)]
    text = prepare.run_python("moerl_runtime.model.ask", *arguments)
    return [json.loads(line) for line in text.strip().splitlines()[-len(models) :]]


def _write_report(record: Record, out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    record.save(out / "record.json")
    target = out / "index.html"
    target.write_text(page.render(record))
    return target


def look_around(cluster: Cluster, *, keep: bool) -> str:
    """How a person goes on from here."""
    kubectl = f"{cluster.bin_dir}/kubectl --kubeconfig {cluster.admin_kubeconfig}"
    lines = ["", "Look around:", f"  {kubectl} get moerljobs,pods,nodes -A"]
    if keep:
        lines.append(f"  {kubectl} -n {NAMESPACE} describe moerljob")
    lines.append("  .venv/bin/moerl cluster down      ends the cluster; --purge deletes its data too")
    return "\n".join(lines)
