"""`moerl aws`: look into the emulator, break things in it, move its clock."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any, get_args

import click

from .faults import FaultKind


class Endpoint:
    """The emulator's control API."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def call(self, method: str, path: str, document: Any = None) -> Any:
        """One request; prints a line and exits with 1 where it is refused or nobody answers."""
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(self.url + path, method=method, data=body)  # noqa: S310 (http, given by us)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            try:
                reason = json.load(error)["error"]
            except (ValueError, LookupError):
                reason = f"{self.url} is not the AWS emulator (HTTP {error.code})"
        except (urllib.error.URLError, OSError) as error:
            reason = f"no AWS emulator answers at {self.url} ({getattr(error, 'reason', error)}); `moerl cluster up`"
        click.echo(f"moerl aws: {reason}", err=True)
        sys.exit(1)


def _find(url: str | None, name: str) -> Endpoint:
    if url is None and name == "local":
        url = os.environ.get("AWS_ENDPOINT_URL")
    if url is None:
        from moerl_local.cluster.errors import ClusterError
        from moerl_local.cluster.handle import Cluster

        try:
            url = Cluster.load(name).aws_endpoint
        except ClusterError as error:
            click.echo(f"moerl aws: {error}", err=True)
            sys.exit(1)
    if url is None:
        click.echo(f"moerl aws: cluster {name} runs without AWS emulator; start one with `moerl cluster up`", err=True)
        sys.exit(1)
    return Endpoint(url)


@click.group()
@click.option("--url", help="Address of the emulator (default: AWS_ENDPOINT_URL, else that of the cluster).")
@click.option("--name", default="local", show_default=True, help="The local cluster whose emulator is meant.")
@click.pass_context
def aws(context: click.Context, url: str | None, name: str) -> None:
    """The AWS emulator of a local cluster."""
    # Found when a command runs, so that `--help` needs no cluster.
    context.obj = lambda: _find(url, name)


@aws.command()
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
@click.pass_obj
def state(find: Any, as_json: bool) -> None:
    """Node groups, their sizes and instances, templates and faults."""
    found = find().call("GET", "/_moerl/state")
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    rows = [("NODE GROUP", "STATUS", "TYPE", "DESIRED", "IN SERVICE", "NODES", "ISSUE")]
    for group in found["node_groups"].values():
        asg = found["scaling_groups"].get(group["asg"] or "", {})
        mine = [i for i in found["instances"].values() if i["asg"] == group["asg"] and i["lifecycle"]]
        types = group["template_data"].get("InstanceType") or ",".join(group["request"].get("instanceTypes", []))
        rows.append(
            (
                group["name"],
                group["status"],
                types,
                str(asg.get("desired", "-")),
                str(sum(i["lifecycle"] == "InService" for i in mine)),
                str(sum(i["joined"] for i in mine)),
                "; ".join(issue["code"] for issue in group["issues"]),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    left = found["leftovers"]
    click.echo(
        f"\nemulated time {found['now']:.0f} s, {len(left['instances'])} instances, "
        f"{len(left['launchTemplates'])} launch templates, {len(found['faults'])} faults"
    )


@aws.command()
@click.option("--advance", type=click.FloatRange(0), help="Emulated seconds to go forward at once.")
@click.pass_obj
def clock(find: Any, advance: float | None) -> None:
    """Read the emulated clock, or move it forward."""
    endpoint: Endpoint = find()
    if advance is not None:
        endpoint.call("POST", "/_moerl/clock", {"advanceSeconds": advance})
    found = endpoint.call("GET", "/_moerl/clock")
    pace = "stands still until advanced" if found["manual"] else f"{found['timeScale']:g} emulated seconds a second"
    due = "nothing is due" if found["nextDue"] is None else f"next event in {found['nextDue'] - found['now']:.0f} s"
    click.echo(f"{found['now']:.0f} s; {pace}; {due}")


@aws.group()
def fault() -> None:
    """Inject faults and lift them."""


@fault.command("list")
@click.pass_obj
def list_faults(find: Any) -> None:
    """The faults in force."""
    for entry in find().call("GET", "/_moerl/faults")["faults"]:
        rest = " ".join(f"{key}={value}" for key, value in entry.items() if key not in ("id", "kind"))
        click.echo(f"{entry['id']}  {entry['kind']}  {rest}".rstrip())


@fault.command("add", help=f"Inject a fault. KIND is one of: {', '.join(get_args(FaultKind))}.")
@click.argument("kind", type=click.Choice(get_args(FaultKind)), metavar="KIND")
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.pass_obj
def add_fault(find: Any, kind: str, fields: tuple[str, ...]) -> None:
    """FIELD is times, service, action, instanceType, zone, capacityType, nodegroup, available, ..."""
    document: dict[str, Any] = {"kind": kind}
    for field in fields:
        key, separator, value = field.partition("=")
        if not separator:
            raise click.BadParameter(f"{field}: write FIELD=VALUE")
        document[key] = int(value) if value.isdecimal() else value
    click.echo(find().call("POST", "/_moerl/faults", document)["id"])


@fault.command("clear")
@click.argument("fault_id", required=False)
@click.pass_obj
def clear_faults(find: Any, fault_id: str | None) -> None:
    """Lift one fault, or all."""
    removed = find().call("DELETE", "/_moerl/faults" + (f"/{fault_id}" if fault_id else ""))["removed"]
    click.echo(f"{removed} lifted")


@aws.command()
@click.confirmation_option(prompt="Forget every node group, instance, object and fault?")
@click.pass_obj
def reset(find: Any) -> None:
    """Empty the account."""
    find().call("POST", "/_moerl/reset")
    click.echo("empty")


@aws.command()
@click.pass_obj
def env(find: Any) -> None:
    """Shell lines that point AWS tools at the emulator: eval "$(moerl aws env)"."""
    click.echo(f"export AWS_ENDPOINT_URL={find().url}")
    click.echo("export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_REGION=us-east-1")
