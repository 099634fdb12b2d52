"""`moerl operator run`: the control plane, in a cluster or beside one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from moerl_operator.settings import Settings, SettingsError


@click.group()
def operator() -> None:
    """Run the operator."""


@operator.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Default: the pod's service account.")
@click.option("--context", help="Context of the kubeconfig; default: its current one.")
@click.option("--namespace", "namespaces", multiple=True, help="Run only this namespace's jobs; repeatable.")
@click.option("--cluster-name", help="Name of the EKS cluster (MOERL_CLUSTER_NAME).")
@click.option("--cluster-arn", help="Its ARN; default: asked of EKS.")
@click.option("--installation", help="Marks this installation's AWS resources (MOERL_INSTALLATION).")
@click.option("--lease-namespace", help="Namespace of the leader's Lease (MOERL_NAMESPACE).")
@click.option("--port", type=int, help="Of /healthz, /readyz and /metrics (MOERL_HTTP_PORT).")
@click.option("--host", help="Address to serve them on (MOERL_HTTP_HOST).")
@click.option("--workers", type=int, help="Jobs reconciled at the same time (MOERL_WORKERS).")
@click.option("--log-format", type=click.Choice(["json", "text"]), help="Default: text on a terminal, else json.")
@click.option("--log-level", help="Default: INFO.")
def run(
    kubeconfig: Path | None,
    context: str | None,
    namespaces: tuple[str, ...],
    cluster_name: str | None,
    cluster_arn: str | None,
    installation: str | None,
    lease_namespace: str | None,
    port: int | None,
    host: str | None,
    workers: int | None,
    log_format: str | None,
    log_level: str | None,
) -> None:
    """Watch MoERLJobs and run them until SIGTERM. Every option has an environment variable, which the chart sets."""
    try:
        settings = Settings.load(
            kubeconfig=str(kubeconfig) if kubeconfig else None,
            context=context,
            watch_namespaces=namespaces,
            cluster_name=cluster_name,
            cluster_arn=cluster_arn,
            installation=installation,
            namespace=lease_namespace,
            http_port=port,
            http_host=host,
            workers=workers,
            log_format=log_format or ("text" if sys.stderr.isatty() else None),
            log_level=log_level,
        )
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    from moerl_operator.cli.process import run_operator  # boto3, kopf and the client take a second to import

    sys.exit(asyncio.run(run_operator(settings)))
