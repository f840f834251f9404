"""Sends to brokers in controller mode while something happens to their controllers: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controlled_support import Controlled

from gantrymq.broker.broker import Broker
from gantrymq.cli.main import run
from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message


class ControlledByProcesses(Controlled):
    """Controllers that can't be looked into."""

    def in_sync(self) -> set[int]:
        """As the master has it."""
        for number in self.masters():
            controlled = self.brokers[number].controlled
            assert controlled is not None
            if (in_sync := controlled._in_sync.in_sync) is not None:
                return set(in_sync.members)
        return set()


def bodies(broker: Broker) -> list[bytes]:
    return [record.body for record in broker.store.records_with(b"", 0) if record.topic == b"orders"]


@asynccontextmanager
async def under_load(replicas: Controlled) -> AsyncIterator[list[bytes]]:
    """The bodies of what was acknowledged so far; in the end all brokers are in sync, and each has all of it."""
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
                # Nobody is master while no controller says so.
                continue
            if sent.status is SendStatus.SEND_OK:
                acknowledged.append(body)

    async def watch() -> None:
        """Never do two take messages."""
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


async def hand_over(replicas: Controlled, number: int) -> int:
    """By the command; its exit code."""
    command = ["admin", "electMaster", "-a", replicas.controller.address, "-b", str(number)]
    return await asyncio.to_thread(run, [*command, "-bn", "broker-a", "-c", "DefaultCluster"])
