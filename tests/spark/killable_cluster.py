"""Killable: two brokers in their own processes, one of which can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from wait_until import until, wait_until

from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.testing.processes import START_TIMEOUT_S, ProcessCluster


class Killable(ProcessCluster):
    """Two brokers; the second one can be killed and restarted."""

    def kill(self) -> None:
        """Kills broker-b and returns when the NameServer has removed it."""
        os.kill(self.brokers[1].pid, signal.SIGKILL)
        wait_until(lambda: not self.brokers[1].is_running)
        asyncio.run(self._until_registered({"broker-a"}))

    def start_again(self) -> None:
        """Restarts broker-b and returns when it is registered."""
        self.brokers[1].stop()
        self.brokers[1] = self._start("broker", "broker-b", self._properties_of_broker(1))
        self.brokers[1].wait_until_ready(time.monotonic() + START_TIMEOUT_S)
        asyncio.run(self._until_registered({"broker-a", "broker-b"}))

    async def _until_registered(self, names: set[str]) -> None:
        async with ClusterClient([self.namesrv_addr], 20_000) as cluster:

            async def are_registered() -> bool:
                return await cluster.brokers() == names

            await until(are_registered)
