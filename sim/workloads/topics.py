"""Topics that are created, changed and deleted while clients use them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError, PartialFailure
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE, TopicConfig
from gantrymq.protocol.message import Message, MessageExt
from sim.cluster import Program
from sim.history import Sent
from sim.scene import Scene
from sim.workloads.base import Workload

_CLUSTER = "DefaultCluster"
_LIVES = 3
_GROUP = "tenants"


class Topics(Workload):
    """Uses several topics in turn. Each gets more queues and is closed for writes for a while. Some are deleted."""

    network = 29

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        #: The topic that accepts messages. Empty between two topics.
        self._open = ""
        self._is_sending = False
        self._deleted: set[str] = set()
        self._is_done = False
        self._names = [f"flat-{number}" for number in range(_LIVES)]
        self.add("landlord", self._change)
        self.add("agent", self._send)
        self.add("tenant", self._read)
        for name in self._names:
            scene.reads[f"{_GROUP} of {name}"] = name

    def is_done(self) -> bool:
        return self._is_done

    async def _change(self, program: Program) -> None:
        until_done = self.scene.until_done
        async with self.admin() as admin:
            for number, topic in enumerate(self._names):
                await until_done(program, lambda: admin.ensure_topic(topic, queues=1))  # noqa: B023
                self._open = topic
                await asyncio.sleep(self.chance.uniform(2, 8))
                more = TopicConfig(topic, 4, 4, PERM_READ | PERM_WRITE)
                await until_done(program, lambda: admin.create_topic(more, cluster=_CLUSTER))  # noqa: B023
                await asyncio.sleep(self.chance.uniform(2, 8))
                for perm in (PERM_READ, PERM_READ | PERM_WRITE):
                    await until_done(program, lambda: self._set_perm(admin, more, perm))  # noqa: B023
                    await asyncio.sleep(self.chance.uniform(1, 4))
                self._open = ""
                await self.scene.until(lambda: not self._is_sending)
                await self.scene.until(lambda: self.scene.has_all(f"{_GROUP} of {topic}"))  # noqa: B023
                if number % 2 == 0:
                    self.scene.deleted.add(topic)
                    where = await until_done(program, lambda: admin.delete_topic(topic, _CLUSTER))  # noqa: B023
                    # A broker that the NameServers lack at that moment keeps the topic and registers it again later.
                    if len(where) == len(self.scene.servers.brokers):
                        self._deleted.add(topic)
                    self.scene.history.note(self.scene.now(), f"deleted topic {topic}")
        self._is_done = True

    async def _set_perm(self, admin: AdminClient, topic: TopicConfig, perm: int) -> None:
        try:
            await admin.update_topic_perm(topic.topic_name, perm, cluster=_CLUSTER)
        except PartialFailure:
            # A broker that was down at the creation lacks the topic.
            await admin.create_topic(topic, cluster=_CLUSTER)
            raise

    async def _send(self, program: Program) -> None:
        number = 0
        assert program.ending is not None
        async with Producer(self.scene.names, "agents") as producer:
            while not program.ending.is_set():
                await asyncio.sleep(0.4 * self.chance.random())
                if not self._open:
                    continue
                name, topic = f"{program.name}.{number}", self._open
                number += 1
                self.scene.ask(Sent(name, topic, asked_at=self.scene.now()))
                self._is_sending = True
                try:
                    self.scene.stored(name, await producer.send(Message(topic, name.encode())))
                except GantryError as e:
                    # The topic may be closed for writes.
                    self.scene.history.note(self.scene.now(), f"{program.name}: {e}")
                finally:
                    self._is_sending = False

    async def _read(self, program: Program) -> None:
        async def handle(message: MessageExt) -> None:
            self.scene.receive(message, f"{_GROUP} of {message.topic}", program.name)

        consumer = PushConsumer(self.scene.names, _GROUP, handle, start_from="earliest", concurrency=4)
        for name in self._names:
            consumer.subscribe(name)
        async with consumer:
            assert program.ending is not None
            await program.ending.wait()

    def problems(self) -> Iterator[str]:
        if not self._is_done:
            yield "topics can't be made, changed or deleted, or what they had doesn't come"
        for _, broker in self.scene.servers.looked_into():
            for topic in sorted(self._deleted):
                if broker.topics.get(topic) is not None:
                    yield f"{broker.config.broker_name} has topic {topic}, which was deleted"
