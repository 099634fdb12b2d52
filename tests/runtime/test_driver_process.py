"""The driver as a real process: what a signal does to the groups that it works on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from pathlib import Path

from moerl_runtime.buffer.client import Buffer
from support.redis import RedisServer, free_port
from support.rollout_world import BATCH, JOB, World, until, world


async def start(w: World, redis: RedisServer, tmp_path: Path) -> Process:
    """Start a driver beside the world's engine; returns once it generates."""
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    env = {
        **os.environ,
        "MOERL_CONFIG": str(tmp_path / "job.json"),
        "MOERL_RUN_DIR": str(tmp_path),
        "MOERL_BIND": "127.0.0.1",
        "MOERL_AGENT_PORT": str(free_port()),
        "MOERL_POD_NAME": "a-pod",
        "MOERL_BUFFER_URL": redis.url,
        "MOERL_BUFFER_PASSWORD": redis.password,
        "MOERL_ENVIRONMENT_URL": w.environment_url,
        "MOERL_ENGINE_URL": w.engine_url,
    }
    before = w.engine.requests
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "moerl_runtime", "driver", env=env, stderr=asyncio.subprocess.PIPE
    )
    await until(lambda: w.engine.requests > before, seconds=90)
    return child


async def start_and_lease_all(w: World, redis: RedisServer, tmp_path: Path) -> Process:
    """Start a driver whose engine hangs; returns once it holds a lease on every group of the iteration.

    The first request of a group is sent while later groups are still being leased.
    """
    w.engine.delay = 60.0
    child = await start(w, redis, tmp_path)

    async def all_leased() -> bool:
        return (await w.buffer.ledger()).leased == BATCH

    await until(all_leased)
    return child


async def test_sigterm_gives_the_leases_back_and_exits_143(redis: RedisServer, buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:
        await w.begin()
        await w.publish()
        child = await start_and_lease_all(w, redis, tmp_path)
        child.send_signal(signal.SIGTERM)
        _, err = await asyncio.wait_for(child.communicate(), 60)
        assert child.returncode == 143
        assert f"{BATCH} leases given back".encode() in err
        assert b"Traceback" not in err
        assert (await buffer.ledger()).leased == 0
        assert (await buffer.stats()).leases["released"] == BATCH
        assert (await buffer.audit()).problems == ()


async def test_a_killed_process_costs_its_leases_only(redis: RedisServer, buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:
        await w.begin()
        version = await w.publish()
        child = await start_and_lease_all(w, redis, tmp_path)
        child.kill()
        await child.communicate()
        w.engine.delay = 0.0
        for uid in await buffer.redis.zrange("moerl:leases", 0, -1):  # as if their 30 s had passed
            await buffer.redis.zadd("moerl:leases", {uid: 1}, xx=True)
        child = await start(w, redis, tmp_path)
        groups = await w.take(1, version=version)
        assert [group.epoch for group in groups] == [2] * BATCH
        child.send_signal(signal.SIGTERM)
        await asyncio.wait_for(child.communicate(), 60)
        assert (await buffer.stats()).leases["expired"] == BATCH
        assert (await buffer.audit()).problems == ()
