"""The preflight as a program: real processes that exchange real bytes, within a bounded time and 4 KiB."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from moerl_kernels.proof import devices, exchange, preflight
from moerl_kernels.proof.cli import main
from moerl_kernels.proof.evidence import Evidence, Exchange
from moerl_kernels.proof.exchange import ExchangeError, Place, Ring
from moerl_kernels.proof.preflight import Wish
from moerl_kernels.proof.verdict import Verdict, verdict
from support.fake_node import FakeNode


def free_ports() -> int:
    """A port that is free, as is the one after it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def start(folder: Path, rank: int = 0, size: int = 1, port: int = 0, *options: str, **env: str) -> Any:
    log = folder / f"termination.{rank}"
    log.touch()
    gang = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    keep = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-m", "moerl_kernels", "preflight", "--json", f"--termination-log={log}",
         f"--report={folder / f'full.{rank}'}", *options],
        env={**keep, **gang, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def ended(process: Any) -> tuple[int, Any]:
    out, err = process.communicate(timeout=60)
    assert out, err
    return process.returncode, json.loads(out)


@pytest.mark.parametrize(
    ("requested", "on_mismatch", "code", "outcome"),
    [("TCP", "Fail", 0, "Match"), ("Auto", "Fail", 0, "Match"), ("EFAGDA", "Fail", 3, "Mismatch"),
     ("EFAGDA", "Warn", 0, "Mismatch")],
)  # fmt: skip
def test_a_gang_proves_tcp(tmp_path: Path, requested: str, on_mismatch: str, code: int, outcome: str) -> None:
    port = free_ports()
    wish = {"MOERL_TRANSPORT": requested, "MOERL_ON_MISMATCH": on_mismatch}
    ranks = [start(tmp_path, rank, 3, port, "--deadline=50", **wish) for rank in range(3)]
    for rank, process in enumerate(ranks):
        found_code, said = ended(process)
        assert (found_code, said["transport"], said["outcome"]) == (code, "TCP", outcome), said
        assert (said["requested"], said["pods"], said["rank"]) == (requested, 3, rank)
        assert "8.0 MiB were sent" in said["reasons"][0]
        assert "plain TCP sockets" in said["proved"]
        assert "torch" in said["proved"], "it says what was not run"
        assert json.loads((tmp_path / f"termination.{rank}").read_text()) == said
        full = json.loads((tmp_path / f"full.{rank}").read_text())
        assert full["evidence"]["traffic"]["loopback"] >= 8 << 20
        assert full["fingerprint"] == said["fingerprint"]


@pytest.mark.parametrize("own", ["::1", ""])
def test_a_gang_of_a_cluster_with_ipv6_alone(tmp_path: Path, own: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = free_ports()
    gang = [
        start(tmp_path, rank, 2, port, "--deadline=15", MASTER_ADDR="::1", MOERL_POD_IP=own, MOERL_TRANSPORT="TCP")
        for rank in range(2)
    ]
    for process in gang:
        code, said = ended(process)
        assert (code, said["transport"]) == (0, "TCP"), said


def test_a_single_rank_says_local(tmp_path: Path) -> None:
    code, said = ended(start(tmp_path, MOERL_TRANSPORT="TCP"))
    assert (code, said["transport"], said["outcome"]) == (0, "Local", "NothingToProve")
    assert "nothing was exchanged" in said["proved"]


@pytest.mark.parametrize(
    ("requested", "on_mismatch", "code"), [("TCP", "Fail", 4), ("TCP", "Warn", 0), ("Auto", "Fail", 0)]
)
def test_pods_that_do_not_come_make_it_unknown_in_time(
    tmp_path: Path, requested: str, on_mismatch: str, code: int
) -> None:
    began = time.monotonic()
    process = start(
        tmp_path, 0, 2, free_ports(), "--deadline=3", MOERL_ON_MISMATCH=on_mismatch, MOERL_TRANSPORT=requested
    )
    found, said = ended(process)
    assert (found, said["transport"], said["outcome"]) == (code, "Unknown", "Unknown")
    assert "ranks [1] did not join in time" in said["reasons"][0]
    assert time.monotonic() - began < 15


def test_rank_zero_that_does_not_come(tmp_path: Path) -> None:
    code, said = ended(start(tmp_path, 1, 2, free_ports(), "--deadline=3", MOERL_TRANSPORT="TCP"))
    assert (code, said["transport"]) == (4, "Unknown")
    assert "cannot be reached" in said["reasons"][0]


def test_a_hang_becomes_a_verdict(tmp_path: Path) -> None:
    """What hangs inside a call that nothing interrupts is ended by the watchdog, which writes the report."""
    script = (
        "import sys, time; from moerl_kernels.proof import cli, preflight; "
        "preflight.run = lambda *a, **k: time.sleep(600); "
        "cli.main(['preflight', '--json', '--deadline=1.5', *sys.argv[1:]])"
    )
    log = tmp_path / "log"
    log.touch()
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, f"--termination-log={log}", f"--report={tmp_path / 'full'}", "--transport=TCP"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    said = json.loads(log.read_text())
    assert (said["transport"], said["reasons"]) == ("Unknown", ["the exchange did not complete: not done within 1.5 s"])
    assert time.monotonic() - began < 20


def test_last_words_that_hang_too_do_not_outlive_the_deadline_long() -> None:
    script = (
        "import time; from moerl_kernels.proof import preflight; preflight._LAST_SECONDS = 0.5; "
        "preflight.bounded(0.2, lambda: time.sleep(600), otherwise=3); time.sleep(600)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=30).returncode == 3


@pytest.mark.parametrize(("on_mismatch", "code"), [("Fail", 4), ("Warn", 0)])
def test_what_nobody_thought_of_is_a_verdict_too(tmp_path: Path, on_mismatch: str, code: int) -> None:
    """The port after the last one is no port: an OverflowError."""
    wish = {"MOERL_TRANSPORT": "TCP", "MOERL_ON_MISMATCH": on_mismatch}
    found, said = ended(start(tmp_path, 0, 2, 65535, "--deadline=5", **wish))
    assert (found, said["transport"]) == (code, "Unknown")
    assert "OverflowError" in said["reasons"][0]
    assert json.loads((tmp_path / "termination.0").read_text()) == said


def test_sigterm_is_an_interruption(tmp_path: Path) -> None:
    process = start(tmp_path, 0, 2, free_ports())
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    process.communicate()


def test_wrong_use_is_told(tmp_path: Path) -> None:
    process = start(tmp_path, 5, 2)
    assert process.wait(30) == 2
    assert "RANK=5 is not within WORLD_SIZE=2" in process.communicate()[1]


@pytest.mark.parametrize("value", ["nan", "inf", "0"])
def test_a_deadline_that_never_comes_is_refused(value: str) -> None:
    found = CliRunner().invoke(main, ["preflight", "--deadline", value])
    assert found.exit_code == 2
    assert "--deadline" in found.output


def test_no_torch_without_gpus() -> None:
    code = (
        "import sys\nfrom moerl_kernels.proof import preflight, cli\n"
        "preflight.run(preflight.Wish(), {})\nassert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_pod_of_another_attempt_does_not_join() -> None:
    place = Place.of({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": str(free_ports()), "MOERL_ATTEMPT": "2"})
    old = Place.of({"RANK": "1", "WORLD_SIZE": "2", "MOERL_ATTEMPT": "1"})
    assert old.token != place.token
    stale = subprocess.Popen(
        [sys.executable, "-c", "import sys, time\n"
         "from moerl_kernels.proof.exchange import Place, Ring\n"
         f"place = Place(1, 2, '127.0.0.1', {place.port}, {old.token!r}, 'n')\n"
         "Ring(place, deadline=time.monotonic() + 3).__enter__()"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with pytest.raises(ExchangeError, match=r"ranks \[1\] did not join"):
        Ring(place, deadline=time.monotonic() + 3).__enter__()
    assert stale.wait(20) != 0


def test_a_stranger_who_sends_nonsense_ends_no_gang() -> None:
    place = Place.of({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": str(free_ports())})
    text = b"[" * 200_000

    def call() -> None:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", place.port), timeout=5) as peer:
                    peer.sendall(len(text).to_bytes(4, "big") + text)
                    peer.recv(1)
                return
            except OSError:
                time.sleep(0.05)

    stranger = threading.Thread(target=call, daemon=True)
    stranger.start()
    with pytest.raises(ExchangeError, match=r"ranks \[1\] did not join"):
        Ring(place, deadline=time.monotonic() + 2).__enter__()


def test_a_message_that_comes_drop_by_drop_is_not_waited_for() -> None:
    mine, peer = socket.socketpair()

    def drip() -> None:
        try:
            peer.sendall((1000).to_bytes(4, "big"))
            for _ in range(60):
                peer.sendall(b" ")
                time.sleep(0.1)
        except OSError:
            pass

    threading.Thread(target=drip, daemon=True).start()
    began = time.monotonic()
    with mine, pytest.raises(TimeoutError):
        exchange._hear(mine, 0.5)
    assert time.monotonic() - began < 3


def test_the_report_fits_whatever_is_in_it(tmp_path: Path) -> None:
    report = preflight.judged(
        Wish("EFAGDA"), {f"OFI_NCCL_X{n}": "é" * 50 for n in range(200)}, Place(0, 2, "", 0, "", ""),
        Evidence(Exchange("none", completed=False, error="ü\n" * 9000)), "p" * 9000, seconds=1.0, file="/f" * 2000,
        root=tmp_path,
    )  # fmt: skip
    many = tuple(f"{n} " + "x" * 700 for n in range(50))
    worst = replace(
        report,
        requested="R" * 900,
        verdict=Verdict("Unknown", many, many),
        warnings=many,
        versions={f"v{n}": "1" * 99 for n in range(99)},
    )
    for each in (report, worst):
        brief = each.brief()
        assert len(brief.encode()) <= 4096
        said = json.loads(brief)
        assert said["transport"] == "Unknown"
        assert said["reasons"]
        assert said["fingerprint"]
    assert len(json.loads(report.full())["environment"]) == 200


@pytest.mark.torch
def test_gloo_on_request_goes_the_same_way(tmp_path: Path) -> None:
    port = free_ports()
    for process in [
        start(tmp_path, rank, 2, port, "--gloo", "--deadline=100", MOERL_TRANSPORT="TCP") for rank in (0, 1)
    ]:
        out, err = process.communicate(timeout=120)
        said = json.loads(out)
        assert (process.returncode, said["transport"], said["exchange"]["kind"]) == (0, "TCP", "gloo"), (said, err)
        assert "torch.distributed over gloo" in said["proved"]


@pytest.mark.torch
def test_gpus_that_cannot_be_used_are_told_and_not_passed_over(tmp_path: Path) -> None:
    """Device files alone make no GPU: the ranks' own error is the reason, whatever torch this machine has."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU that can be used")
    place = Place.of({"MASTER_PORT": str(free_ports())})
    evidence = devices.exchange(place, 2, deadline=time.monotonic() + 90, environment=dict(os.environ))
    found = verdict(evidence)
    assert found.transport == "Unknown"
    assert "the process of local rank" in found.reasons[0]
    assert "ended with exit code 1" in found.reasons[0]


def test_device_files_are_counted(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        FakeNode(tmp_path).write(f"dev/{name}", "")
    assert devices.count({}, tmp_path) == 3
    assert devices.count({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == 1
    assert devices.count({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0


@pytest.mark.torch
def test_deep_ep_moves_what_is_counted(tmp_path: Path) -> None:
    """Two processes over gloo, in deep_ep's place the stand-in: the bytes that the verdict expects are those sent."""
    tests = Path(__file__).parents[2]
    (tmp_path / "deep_ep.py").write_text("from support.deep_ep_stand_in import *  # noqa: F403\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{tests}"}
    place = Place.of({"MASTER_PORT": str(free_ports())})
    evidence = devices.exchange(
        place, 2, deadline=time.monotonic() + 90, environment=environment, backend="gloo", mover="deep_ep"
    )
    assert evidence.exchange.completed, evidence.exchange.error
    assert evidence.exchange.kind == "deep_ep"
    # 1024 of 2048 rows of 8 KiB there and back, 4 times, from each of two ranks.
    assert evidence.exchange.sent_within_host == 2 * 4 * 2 * 1024 * 8192
    loopback = evidence.traffic.loopback or 0
    assert evidence.exchange.sent_within_host <= loopback < 1.5 * evidence.exchange.sent_within_host
    assert verdict(evidence).transport == "TCP"


def test_deep_ep_only_where_efa_is_asked_for_between_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    gang, alone = Place(0, 2, "", 0, "", ""), Place(0, 1, "", 0, "", "")
    assert preflight._mover(Wish("EFAGDA"), gang) == "collective", "deep_ep is not installed here"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert preflight._mover(Wish("EFAGDA"), gang) == "deep_ep"
    assert preflight._mover(Wish("EFAGDA"), alone) == "collective"
    assert preflight._mover(Wish("NVLink"), gang) == "collective"
