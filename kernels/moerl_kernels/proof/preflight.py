"""Before a role starts: exchange, count, judge, and say so within a bounded time.

With GPUs the exchange is NCCL's, or DeepEP's if EFA is asked for and it is installed; one process a GPU. Without, it is
plain sockets between the gang's pods, which prove the pods' network as gloo would and import no torch; gloo itself on
request. A gang of one pod without GPUs has nobody to talk to.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from moerl_kernels.proof import counters, devices, libraries, versions
from moerl_kernels.proof.evidence import Evidence, Exchange
from moerl_kernels.proof.exchange import ExchangeError, Place, Ring
from moerl_kernels.proof.lint import lint
from moerl_kernels.proof.report import Report
from moerl_kernels.proof.verdict import compare, verdict

PAYLOAD = 8 << 20
# Kept back from the deadline for reading, judging and writing.
_RESERVE_SECONDS = 1.0
# For the last words of a preflight that came too late.
_LAST_SECONDS = 5.0

EXIT_OK, EXIT_USAGE, EXIT_MISMATCH, EXIT_UNKNOWN = 0, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Wish:
    """What the job asked for. transport: Auto or a transport. on_mismatch: Fail or Warn. seconds: the deadline.

    gloo: where there are no GPUs, exchange by torch.distributed in place of plain sockets.
    """

    transport: str = "Auto"
    on_mismatch: str = "Fail"
    seconds: float = 600.0
    gloo: bool = False


def run(wish: Wish, environment: Mapping[str, str], *, file: str = "") -> Report:
    """One preflight of this pod. Raises ValueError for an environment that describes no gang; else never.

    Returns within wish.seconds as far as it is up to this code; `bounded` answers for what is not.
    """
    began = time.monotonic()
    deadline = began + wish.seconds - min(_RESERVE_SECONDS, wish.seconds / 10)
    place = Place.of(environment)
    try:
        evidence, proved = _gather(wish, environment, place, deadline)
    except Exception as error:  # whatever it is, it proves nothing, and the last words must say so
        words = f"{type(error).__name__}: {error}"
        evidence, proved = Evidence(Exchange("none", place.size, completed=False, error=words)), ""
    return judged(wish, environment, place, evidence, proved, seconds=time.monotonic() - began, file=file)


def _gather(wish: Wish, environment: Mapping[str, str], place: Place, deadline: float) -> tuple[Evidence, str]:
    """The exchange that fits this pod, and what it shows."""
    gpus = devices.count(environment)
    if gpus and (place.size > 1 or gpus > 1):
        mover = _mover(wish, place)
        evidence = devices.exchange(place, gpus, deadline=deadline, environment=environment, mover=mover)
        proved = f"all to all over NCCL between {evidence.exchange.ranks} GPUs; DeepEP's own kernels were not run"
        if mover == "deep_ep":
            proved = f"dispatch and combine of DeepEP between {evidence.exchange.ranks} GPUs"
    elif place.size > 1 and wish.gloo:
        evidence = devices.exchange(place, 1, deadline=deadline, environment=environment, backend="gloo")
        proved = f"all to all by torch.distributed over gloo between {place.size} pods"
    elif place.size > 1:
        evidence = sockets(place, deadline=deadline)
        proved = "plain TCP sockets between the gang's pods; torch and its collectives were not run"
    else:
        evidence = Evidence(Exchange("none", devices=gpus))
        proved = "the gang is this pod alone" + (" with one GPU" if gpus else "") + ": nothing was exchanged"
    if not evidence.plugin:
        plugin = libraries.plugin(Path("/"), evidence.libraries, environment)
        evidence = replace(evidence, plugin=plugin, plugin_symbols=libraries.plugin_symbols(Path("/"), plugin))
    return evidence, proved


def _mover(wish: Wish, place: Place) -> devices.Mover:
    """DeepEP where EFA is asked for and it is installed: nothing else here uses EFA as DeepEP does."""
    wanted = place.size > 1 and wish.transport in ("EFAGDA", "EFAProxy")
    return "deep_ep" if wanted and importlib.util.find_spec("deep_ep") is not None else "collective"


def judged(
    wish: Wish,
    environment: Mapping[str, str],
    place: Place,
    evidence: Evidence,
    proved: str,
    *,
    seconds: float,
    file: str = "",
    root: Path = Path("/"),
) -> Report:
    """The report of what was gathered."""
    found = verdict(evidence)
    known = versions.read(root, evidence.log)
    return Report(
        requested=wish.transport,
        on_mismatch=wish.on_mismatch,
        pods=place.size,
        rank=place.rank,
        outcome=compare(wish.transport, found.transport, pods=place.size),
        verdict=found,
        evidence=evidence,
        proved=proved,
        fingerprint=versions.fingerprint(known, environment),
        versions=known,
        environment=versions.path_environment(environment),
        warnings=lint(environment, requested=wish.transport, pods=place.size),
        seconds=seconds,
        file=file,
    )


def sockets(place: Place, *, deadline: float, payload: int = PAYLOAD, root: Path = Path("/")) -> Evidence:
    """The exchange of pods without GPUs, with the interfaces' counters around it."""
    began = time.monotonic()
    exchange = Exchange("sockets", place.size)
    traffic = None
    try:
        with Ring(place, deadline=deadline) as ring:
            crosses = ring.next_node != place.node
            exchange = replace(
                exchange,
                hosts=2 if crosses else 1,  # of this rank and the one that it sends to
                sent_between_hosts=payload if crosses else 0,
                sent_within_host=0 if crosses else payload,
            )
            before = counters.read(root)
            ring.exchange(payload)
            traffic = counters.rose(before, counters.read(root))
            ring.settle({"rank": place.rank})
    except ExchangeError as error:
        exchange = replace(exchange, completed=False, error=str(error))
    exchange = replace(exchange, seconds=time.monotonic() - began)
    return Evidence(exchange, traffic) if traffic is not None else Evidence(exchange)


def timed_out(wish: Wish, environment: Mapping[str, str], *, file: str = "") -> Report:
    """The report of a preflight that hangs in something that cannot be interrupted."""
    try:
        place = Place.of(environment)
    except ValueError:
        place = Place(0, 1, "", 0, "", "")
    error = f"not done within {wish.seconds:g} s"
    evidence = Evidence(Exchange("none", place.size, completed=False, error=error))
    return judged(wish, environment, place, evidence, "", seconds=wish.seconds, file=file)


def bounded(seconds: float, late: Callable[[], int], *, otherwise: int = EXIT_UNKNOWN) -> threading.Timer:
    """A watchdog for what hangs inside a system call or a library: after `seconds`, say `late` and end the process.

    `late` reads and writes files, so it may hang for the same cause; then the process ends with code `otherwise`.
    """

    def end() -> None:
        code = otherwise
        last = threading.Timer(_LAST_SECONDS, os._exit, (code,))
        last.daemon = True
        last.start()
        try:
            code = late()
        finally:
            os._exit(code)  # the main thread cannot be asked: it is what hangs

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def exit_code(report: Report) -> int:
    """0, unless the job asked for a transport by name, strictly (onMismatch Fail), and got another or an unknown one.

    Auto asks for none, so an Unknown stops nothing there; what it means on nodes with EFA is the operator's to judge.
    """
    if not strict(report.requested, report.on_mismatch):
        return EXIT_OK
    return {"Mismatch": EXIT_MISMATCH, "Unknown": EXIT_UNKNOWN}.get(report.outcome, EXIT_OK)


def strict(requested: str, on_mismatch: str) -> bool:
    """Whether anything but the requested transport stops the pod."""
    return on_mismatch == "Fail" and requested != "Auto"
