"""Runs the emulator: `python -m moerl_local.aws --bind 127.0.0.1 --port 4566 ...`.

Ends on SIGTERM or SIGINT within seconds. With --state-dir a restart (also after a crash) goes on where it was: node
groups, instances, templates and faults are in one JSON file there, emulated time stands still in between, and nodes in
the cluster are matched with instances again by name and providerID. Buckets are copied there within a second or two of
a write. Queues (SQS, EventBridge) are in memory only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path

import yaml

from moerl_operator.kube.api import KubeError

from .account import Account, Settings
from .joiner import Joiner
from .moto_proxy import MotoProxy
from .server import Server, serve

log = logging.getLogger("moerl_local.aws")


class StartError(Exception):
    """Why the emulator cannot start, in one line that says how to mend it."""


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m moerl_local.aws", description="AWS on one machine.")
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=4566, help="port, 0 for a free one (default %(default)s)")
    parser.add_argument("--kubeconfig", type=Path, help="cluster that instances join; without it they join none")
    parser.add_argument("--cluster-name", default="moerl-local", help="name of the EKS cluster (default %(default)s)")
    parser.add_argument("--local-node", help="the real node that instances of type `local` stand for")
    parser.add_argument("--state-dir", type=Path, help="folder of the state file; without it a restart is empty")
    clock = parser.add_mutually_exclusive_group()
    clock.add_argument("--time-scale", type=float, default=60.0, help="emulated seconds a second (default %(default)s)")
    clock.add_argument("--manual-clock", action="store_true", help="time moves only by POST /_moerl/clock")
    return parser.parse_args(argv)


def _cluster_endpoint(kubeconfig: Path | None) -> str:
    if kubeconfig is None:
        return "https://127.0.0.1:6443"
    try:
        return str(yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
    except (OSError, yaml.YAMLError, LookupError, TypeError) as error:
        raise StartError(f"--kubeconfig {kubeconfig} cannot be used: {error}") from error


def _account(arguments: argparse.Namespace) -> Account:
    if arguments.time_scale <= 0:
        raise StartError("--time-scale must be above 0 (1 is real time, 60 a minute a second)")
    try:
        return Account(
            Settings(
                cluster_name=arguments.cluster_name,
                cluster_endpoint=_cluster_endpoint(arguments.kubeconfig),
                state_dir=arguments.state_dir,
                time_scale=arguments.time_scale,
                manual_clock=arguments.manual_clock,
                has_cluster=arguments.kubeconfig is not None,
            )
        )
    except ValueError as error:
        raise StartError(str(error)) from error


async def _run(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    account = _account(arguments)
    moto = MotoProxy(arguments.state_dir / "s3" if arguments.state_dir else None)
    async with contextlib.AsyncExitStack() as stack:
        joiner = None
        if arguments.kubeconfig is not None:
            from moerl_operator.kube.client import connect  # costs seconds: only where there is a cluster

            api = await stack.enter_async_context(connect(arguments.kubeconfig, user_agent="moerl-aws-emulator"))
            joiner = Joiner(account, api, local_node=arguments.local_node)
        server = Server(account, moto, joiner=joiner)
        account.on_change = server.changed
        try:
            runner, port = await serve(server, bind=arguments.bind, port=arguments.port)
        except OSError as error:
            raise StartError(f"cannot listen on {arguments.bind}:{arguments.port}: {error.strerror}") from error
        tasks = [asyncio.create_task(moto.start())]
        if not arguments.manual_clock:
            tasks.append(asyncio.create_task(server.run_clock()))
        if joiner is not None:
            tasks.append(asyncio.create_task(joiner.run()))
        log.info("AWS emulator at http://%s:%d, cluster %s", arguments.bind, port, arguments.cluster_name)
        stopping = asyncio.create_task(stop.wait())
        await _until_stopped_or_broken(stopping, tasks)
        log.info("stopping")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()
        await moto.close()
        account.save()


async def _until_stopped_or_broken(stopping: asyncio.Task[bool], tasks: list[asyncio.Task[None]]) -> None:
    """Wait for the signal; a background task that dies is a bug and must end the program, not go unnoticed."""
    pending: set[asyncio.Task[object]] = {stopping, *tasks}
    while not stopping.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


def main(argv: list[str] | None = None) -> int:
    """Run until told to stop; the exit code."""
    arguments = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        asyncio.run(_run(arguments))
    except (StartError, KubeError) as error:
        print(f"moerl aws: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
