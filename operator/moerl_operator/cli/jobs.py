"""`moerl get` and `moerl describe`: a job as a person asks about it, in one screen instead of five kubectl calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from moerl_operator.kube.api import Kinds, KubeApi, KubeError, Obj

_COLUMNS = (
    ("STATE", "state"),
    ("ITERATION", "iteration"),
    ("REWARD", "reward"),
    ("TRAINERS", "trainers"),
    ("ROLLOUTS", "rollouts"),
    ("SAMPLES/S", "samplesPerSecond"),
    ("TRANSPORT", "transport"),
    ("$/H", "costPerHour"),
)
_EVENTS = 15


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-n", "--namespace", default="default", show_default=True),
        click.option("--kubeconfig", type=click.Path(path_type=Path), help="Default: KUBECONFIG, ~/.kube/config."),
        click.option("--context", help="Default: the kubeconfig's current one."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("job", required=False)
@click.option("-A", "--all-namespaces", is_flag=True)
@_options
def get(job: str | None, all_namespaces: bool, namespace: str, kubeconfig: Path | None, context: str | None) -> None:
    """Show jobs in a table; one job if named."""

    async def show(kube: KubeApi) -> None:
        jobs = await kube.list(Kinds.MOERL_JOB, None if all_namespaces else namespace)
        chosen = [each for each in jobs if job in (None, each["metadata"]["name"])]
        if job and not chosen:
            raise click.ClickException(f"there is no MoERLJob {job} in namespace {namespace}")
        if not chosen:
            click.echo("no MoERLJobs" + ("" if all_namespaces else f" in namespace {namespace}"))
            return
        click.echo(table(_rows(chosen, with_namespace=all_namespaces)))

    _run(show, kubeconfig, context)


@click.command()
@click.argument("job")
@_options
def describe(job: str, namespace: str, kubeconfig: Path | None, context: str | None) -> None:
    """Show conditions, roles, node groups, the last failure and recent events of one job."""

    async def show(kube: KubeApi) -> None:
        found = await kube.get(Kinds.MOERL_JOB, namespace, job)
        if found is None:
            raise click.ClickException(f"there is no MoERLJob {job} in namespace {namespace}")
        events = await kube.list(Kinds.EVENT, namespace)
        click.echo("\n".join(description(found, events, datetime.now(UTC))))

    _run(show, kubeconfig, context)


def description(job: Obj, events: Iterable[Obj], now: datetime) -> list[str]:
    """The lines of `moerl describe`."""
    meta, status = job["metadata"], job.get("status") or {}
    display = status.get("display") or {}
    lines = [f"{meta['namespace']}/{meta['name']}: {display.get('state', 'not looked at yet')}", ""]
    for name, key in _COLUMNS[1:]:
        if display.get(key):
            lines.append(f"  {name.lower():<12} {display[key]}")
    lines += _section("Conditions", _conditions(status, now))
    lines += _section("Roles", _roles(status))
    lines += _section("Node groups", _groups(status))
    if failure := status.get("lastFailure"):
        where = "/".join(str(failure[key]) for key in ("child", "pod", "container") if failure.get(key))
        code = f", exit code {failure['exitCode']}" if failure.get("exitCode") is not None else ""
        lines += ["", f"Last failure ({failure['kind']}): {where}: {failure['reason']}{code}"]
        lines += [f"  {failure['message']}"] if failure.get("message") else []
    return lines + _section("Events", _events(job, events, now))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows aligned in columns, the first being the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def age(since: str, now: datetime) -> str:
    """How long ago, as kubectl prints it."""
    seconds = int((now - datetime.fromisoformat(since)).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(0, seconds)}s"


def _rows(jobs: Sequence[Obj], *, with_namespace: bool) -> list[list[str]]:
    head = ["NAMESPACE"] * with_namespace + ["NAME", *(name for name, _ in _COLUMNS), "AGE"]
    rows = [head]
    for job in jobs:
        meta, display = job["metadata"], (job.get("status") or {}).get("display") or {}
        cells = [str(display.get(key) or "") for _, key in _COLUMNS]
        first = [meta["namespace"]] * with_namespace
        rows.append([*first, meta["name"], *cells, age(meta["creationTimestamp"], datetime.now(UTC))])
    return rows


def _section(title: str, rows: list[list[str]]) -> list[str]:
    return ["", title, *(f"  {line}" for line in table(rows).splitlines())] if rows else []


def _conditions(status: Obj, now: datetime) -> list[list[str]]:
    return [
        [each["type"], each["status"], each["reason"], age(each["lastTransitionTime"], now), each.get("message") or ""]
        for each in status.get("conditions") or []
    ]


def _roles(status: Obj) -> list[list[str]]:
    return [
        [
            each["name"],
            f"{each.get('ready', 0)}/{each.get('desired', 0)} ready",
            f"attempt {each['attempt']}" if each.get("attempt") else "",
            f"{each['restarts']} restarts" if each.get("restarts") else "",
            each.get("message") or "",
        ]
        for each in status.get("roles") or []
    ]


def _groups(status: Obj) -> list[list[str]]:
    return [
        [
            each["name"],
            each["status"],
            f"{each.get('ready', 0)}/{each.get('desired', 0)} nodes",
            each.get("instanceType") or "",
            each.get("zone") or "",
            each.get("message") or "",
        ]
        for each in status.get("nodeGroups") or []
    ]


def _events(job: Obj, events: Iterable[Obj], now: datetime) -> list[list[str]]:
    about = [each for each in events if (each.get("regarding") or {}).get("uid") == job["metadata"]["uid"]]
    recent = sorted(about, key=lambda each: str(each.get("eventTime") or ""))[-_EVENTS:]
    return [
        [age(each["eventTime"], now), each.get("type") or "", each.get("reason") or "", each.get("note") or ""]
        for each in recent
        if each.get("eventTime")
    ]


def _run(show: Callable[[KubeApi], Any], kubeconfig: Path | None, context: str | None) -> None:
    from moerl_operator.kube.client import connect  # takes a second to import

    async def work() -> None:
        async with connect(kubeconfig or default_kubeconfig(), context) as kube:
            await show(kube)

    try:
        asyncio.run(work())
    except KubeError as error:
        raise click.ClickException(str(error)) from None


def default_kubeconfig() -> str | None:
    """Where kubectl looks; None in a pod, where the service account is used."""
    if named := os.environ.get("KUBECONFIG"):
        return named.split(os.pathsep)[0]
    usual = Path.home() / ".kube" / "config"
    return str(usual) if usual.is_file() else None
