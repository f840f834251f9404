"""Killable: two brokers in processes of their own, one of which is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from waiting import until, wait_until

from gantrymq.spark.cluster import Cluster
from gantrymq.testing.processes import START_TIMEOUT_S, ProcessCluster


class Killable(ProcessCluster):
    """Two brokers, the second of which is killed and started again."""

    def kill(self) -> None:
        """Returns when the NameServer has noticed."""
        os.kill(self.brokers[1].pid, signal.SIGKILL)
        wait_until(lambda: not self.brokers[1].is_running)
        asyncio.run(self._until_registered({"broker-a"}))

    def start_again(self) -> None:
        """Returns when it has registered."""
        self.brokers[1].stop()
        self.brokers[1] = self._start("broker", "broker-b", self._properties_of_broker(1))
        self.brokers[1].wait_until_ready(time.monotonic() + START_TIMEOUT_S)
        asyncio.run(self._until_registered({"broker-a", "broker-b"}))

    async def _until_registered(self, names: set[str]) -> None:
        async with Cluster([self.namesrv_addr], 20_000) as cluster:

            async def are_registered() -> bool:
                return await cluster.brokers() == names

            await until(are_registered)
