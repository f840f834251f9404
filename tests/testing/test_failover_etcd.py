"""Tests three controllers with their state in etcd under load, while members of etcd are killed and restarted."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent.parent / "bench"))
from failover import Run
from failover_servers import HEARTBEAT_TIMEOUT_MS, Servers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="the proxy needs all of 127.0.0.0/8"),
]
#: Observation time without an election, in seconds: heartbeats time out, and controllers check again.
NOTHING_S = 2 * HEARTBEAT_TIMEOUT_MS / 1000


async def test_without_most_of_etcd_nobody_is_elected(tmp_path: Path) -> None:
    with Servers(tmp_path, "etcd") as servers:
        async with Run(servers, 200, random.Random(0)) as run:
            servers.etcd[0].kill()
            await run.sends_go_on("with two of etcd's members")
            master = await run.until(run.master, "there is a master")
            servers.etcd[1].kill()

            async def nobody_leads() -> bool:
                return await run.leader() is None

            await run.until(nobody_leads, "no controller leads")

            # Longer than the master's lease. Its slaves confirm that no other master was elected.
            await run.pause(NOTHING_S)
            await run.sends_go_on("without a controller that leads")
            servers.kill(master)
            # Responses that were in flight can still arrive.
            await run.pause(NOTHING_S / 2)
            so_far = len(run.acknowledged)
            await run.pause(NOTHING_S)
            assert await run.leader() is None
            assert len(run.acknowledged) == so_far

            servers.etcd[0].start_again()
            await run.sends_go_on("with two of etcd's members again", elsewhere_than=master)
            servers.etcd[1].start_again()
            servers.start(master)
            await run.until(run.are_all_in_sync, "all brokers are in sync")
            assert await run.finish() == []


async def test_controllers_and_members_die_under_load(tmp_path: Path) -> None:
    faults = ("controller killed", "member killed")
    with Servers(tmp_path, "etcd") as servers:
        async with Run(servers, 200, random.Random(2), faults) as run:
            for _ in range(4):
                await run.one_round()
            assert await run.finish() == []
        assert {one.fault for one in run.rounds} == set(faults)
