"""One of three replicas is stopped with SIGSTOP.

Producers continue, and the slave later joins again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from controllers_under_load import ControlledByProcesses
from wait_until import until

from gantrymq.protocol.codes import ResponseCode
from gantrymq.testing.processes import ServerProcess

#: Longest time without an acknowledged send, in seconds, for producers with the default timeout.
MOST_STOPPED_S = 4.0


class WithProcess(ControlledByProcesses):
    """The third broker is a separate process. All timeouts have their defaults."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 2)
        del self.options["check_sync_state_set_period"]
        del self.replication["slave_timeout"], self.replication["ha_max_time_slave_not_catchup"]

    @asynccontextmanager
    async def third(self) -> AsyncIterator[ServerProcess]:
        properties = {
            "brokerName": "broker-a",
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(self.directory / "3"),
            "mappedFileSizeCommitLog": str(4 * 1024 * 1024),
            "mappedFileSizeConsumeQueue": "20000",
            "enableControllerMode": "true",
            "controllerAddr": self.controller.address,
            "namesrvAddr": self.name_server.address,
            "allAckInSyncStateSet": "true",
            "minInSyncReplicas": "2",
        }
        process = ServerProcess("broker", "third", self.directory, properties, ())
        try:
            await asyncio.to_thread(process.wait_until_ready, time.monotonic() + 30)
            yield process
        finally:
            os.kill(process.pid, signal.SIGCONT)
            await asyncio.to_thread(process.stop)


@pytest.mark.slow
async def test_producers_with_defaults_go_on(tmp_path: Path) -> None:
    async with WithProcess(tmp_path) as replicas, replicas.third() as third:
        await until(lambda: replicas.in_sync() == {1, 2, 3}, 30)
        peer = await replicas.peer(await replicas.master())
        acknowledged: list[float] = []
        is_over = False

        async def produce() -> None:
            while not is_over:
                if (await peer.send("orders", b"x", timeout_ms=3000)).code == ResponseCode.SUCCESS:
                    acknowledged.append(time.monotonic())
                await asyncio.sleep(0.01)

        producing = [asyncio.ensure_future(produce()) for _ in range(4)]
        await until(lambda: len(acknowledged) > 50)
        os.kill(third.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        await until(lambda: replicas.in_sync() == {1, 2}, 20)
        await until(lambda: acknowledged[-1] > stopped + MOST_STOPPED_S, 20)
        os.kill(third.pid, signal.SIGCONT)
        await until(lambda: replicas.in_sync() == {1, 2, 3}, 30)
        is_over = True
        # No producer raises, because no send exceeded its timeout.
        await asyncio.gather(*producing)
        pauses = [after - before for before, after in pairwise(acknowledged)]
        assert max(pauses) < MOST_STOPPED_S
