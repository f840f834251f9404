"""Sends to brokers in controller mode while their controllers fail.

No acknowledged message may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controlled_support import ControlledBrokers

from gantrymq.broker.broker import Broker
from gantrymq.cli.main import run
from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message


class ControlledByProcesses(ControlledBrokers):
    """Brokers whose controllers run in other processes."""

    def in_sync(self) -> set[int]:
        """Returns the in-sync set in the master's memory; the controller's is not accessible."""
        for number in self.masters():
            replicas_manager = self.brokers[number].replicas_manager
            assert replicas_manager is not None
            if (in_sync := replicas_manager.sync_state_sets.in_sync) is not None:
                return set(in_sync.members)
        return set()


def bodies(broker: Broker) -> list[bytes]:
    return [record.body for record in broker.store.records_with(b"", 0) if record.topic == b"orders"]


@asynccontextmanager
async def under_load(replicas: ControlledBrokers) -> AsyncIterator[list[bytes]]:
    """Sends continuously, and yields the list of acknowledged bodies.

    At the end it waits until all brokers are in sync and each one has every acknowledged message.
    """
    acknowledged: list[bytes] = []
    is_over = False

    async def produce(producer: Producer, name: int) -> None:
        number = 0
        while not is_over:
            body = b"%d-%d" % (name, number)
            number += 1
            try:
                sent = await producer.send(Message("orders", body))
            except GantryError:
                # There is no master until a controller elects one.
                continue
            if sent.status is SendStatus.SEND_OK:
                acknowledged.append(body)

    async def watch() -> None:
        """Checks all the time that at most one broker accepts messages."""
        while not is_over:
            assert len(replicas.masters()) < 2
            await asyncio.sleep(0.001)

    await replicas.all_in_sync()
    async with Producer(replicas.name_server.address, "producers") as producer:
        jobs = [asyncio.ensure_future(job) for job in (watch(), *(produce(producer, name) for name in range(4)))]
        try:
            yield acknowledged
        finally:
            is_over = True
            await asyncio.gather(*jobs)
    await replicas.all_in_sync()
    await replicas.caught_up()
    for broker in replicas.brokers.values():
        assert not set(acknowledged) - set(bodies(broker))


async def hand_over(replicas: ControlledBrokers, number: int) -> int:
    """Elects the broker with `admin electMaster` and returns the exit code."""
    command = ["admin", "electMaster", "-a", replicas.controller.address, "-b", str(number)]
    return await asyncio.to_thread(run, [*command, "-bn", "broker-a", "-c", "DefaultCluster"])
