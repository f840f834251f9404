"""Base class of the additional workloads: programs, and checks at the end of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from random import Random
from typing import TypeVar

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageExt
from sim.cluster import Program
from sim.history import Sent
from sim.scene import AGAIN_S, Scene

T = TypeVar("T")

#: The cluster of all brokers.
CLUSTER = "DefaultCluster"


class Workload:
    """Base class of workloads.

    `programs` start with the consumers, before the first message. They are never targets of faults.
    """

    #: Third number of the addresses of its hosts; differs for each class.
    network = 0
    #: True if the workload calls `send_all`.
    sends = False

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.chance = Random(f"{scene.plan.seed} {type(self).__name__}")
        self.programs: list[Program] = []
        self.has_sent = not self.sends

    def is_done(self) -> bool:
        """Returns true if the workload needs no more time, once all messages are sent."""
        return True

    def problems(self) -> Iterator[str]:
        """Yields the problems at the end of the run."""
        return iter(())

    # -- for subclasses -----------------------------------------------------------------------------------------

    def add(self, name: str, main: Callable[[Program], Awaitable[None]]) -> None:
        """Adds a program. Its `main` is called once and may return early."""

        async def stay(program: Program) -> None:
            await main(program)
            assert program.ending is not None
            await program.ending.wait()

        address = f"10.0.{self.network}.{len(self.programs) + 1}"
        self.programs.append(self.scene.program(name, address, stay))

    @property
    def has_faults(self) -> bool:
        return bool(self.scene.plan.faults)

    def admin(self) -> AdminClient:
        return AdminClient(self.scene.names)

    async def make_topic(
        self, program: Program, topic: str, queues: int = 2, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic on all masters."""
        async with self.admin() as admin:
            await self.scene.until_done(program, lambda: admin.ensure_topic(topic, queues=queues))
            if attributes:
                changes = {f"+{name}": value for name, value in attributes.items()}
                config = TopicConfig(topic, queues, queues, attributes=changes)
                await self.scene.until_done(program, lambda: admin.create_topic(config, cluster=CLUSTER))

    async def send_all(
        self, program: Program, topic: str, count: int, pause_s: float, make: Callable[[str], Message] | None = None
    ) -> None:
        """Sends `count` messages. Sends none of them again, because the outcome of a failed send is unknown."""
        async with Producer(self.scene.names, f"{program.name}-producers") as producer:
            for number in range(count):
                name = f"{program.name}.{number}"
                self.scene.ask(Sent(name, topic, asked_at=self.scene.now()))
                try:
                    result = await producer.send(Message(topic, name.encode()) if make is None else make(name))
                    # A delayed message of `make` has no offset in the topic yet.
                    self.scene.stored(name, result, 0 if make is None else None)
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
                await asyncio.sleep(pause_s * 2 * self.chance.random())
        self.has_sent = True

    async def read_all(
        self,
        program: Program,
        topic: str,
        group: str,
        has_read: Callable[[MessageExt], None] = lambda message: None,
    ) -> None:
        """Receives all messages of the topic from the first one on, until the program ends.

        Calls `has_read` for each of them.
        """

        async def handle(message: MessageExt) -> None:
            self.scene.receive(message, group, program.name)
            has_read(message)

        consumer = PushConsumer(self.scene.names, group, handle, start_from="earliest", concurrency=4)
        consumer.subscribe(topic)
        async with consumer:
            assert program.ending is not None
            await program.ending.wait()
