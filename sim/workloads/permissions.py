"""Permissions of users: a user can do what its policies allow, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from gantrymq.client.admin.auth import acl_of
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.credentials import Credentials
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.protocol.message import Message, MessageExt
from sim.cluster import Program
from sim.history import Sent
from sim.plan import TOPIC
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import Workload

_TOPIC, _GROUP = "ledgers", "clerks"
_CLERK = Credentials("clerk", "secret of clerk")
#: Keys of nobody, and the name of a user with another password.
_STRANGERS = (Credentials("stranger", "secret of stranger"), Credentials("clerk", "a guess"))
_MESSAGES, _ATTEMPTS = 40, 8


class Permissions(Workload):
    """A clerk with the permissions for one topic and group, and strangers who try to use topics."""

    network = 39
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        self._wrong: list[str] = []
        self._is_done = False
        self.add("registrar", self._permit)
        self.add("clerk", self._send)
        self.add("clerk-reader", self._read)
        self.add("stranger", self._try)
        scene.reads[_GROUP] = _TOPIC

    def is_done(self) -> bool:
        return self._is_done

    async def _permit(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC)
        addresses = [self.scene.servers.address_of(broker) for broker in self.scene.servers.brokers]
        user = UserInfo(_CLERK.access_key, _CLERK.secret_key)
        acl = acl_of(f"User:{_CLERK.access_key}", [f"Topic:{_TOPIC}", f"Group:{_GROUP}"], ["Pub", "Sub"], [], "Allow")
        async with self.admin() as admin:
            for address in addresses:
                await self.scene.until_done(program, lambda: admin.create_user([address], user))  # noqa: B023
                await self.scene.until_done(program, lambda: admin.create_acl([address], acl))  # noqa: B023
        self._is_made.set()

    async def _send(self, program: Program) -> None:
        await self._is_made.wait()
        async with Producer(self.scene.names, "clerk-producers", credentials=_CLERK) as producer:
            for number in range(_MESSAGES):
                name = f"{program.name}.{number}"
                self.scene.ask(Sent(name, _TOPIC, asked_at=self.scene.now()))
                try:
                    self.scene.stored(name, await producer.send(Message(_TOPIC, name.encode())), 0)
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
                await asyncio.sleep(self.chance.uniform(0, 4))
        self.has_sent = True

    async def _read(self, program: Program) -> None:
        await self._is_made.wait()

        async def handle(message: MessageExt) -> None:
            self.scene.receive(message, _GROUP, program.name)

        consumer = PushConsumer(self.scene.names, _GROUP, handle, credentials=_CLERK, start_from="earliest")
        consumer.subscribe(_TOPIC)
        async with consumer:
            assert program.ending is not None
            await program.ending.wait()

    async def _try(self, program: Program) -> None:
        """Sends and receives without permission."""
        await self._is_made.wait()
        for number in range(_ATTEMPTS):
            for keys, topic in [*((keys, _TOPIC) for keys in _STRANGERS), (_CLERK, TOPIC)]:
                what = f"{keys.access_key} {number} to {topic}"
                await self._refused(program, f"send by {what}", lambda: self._send_one(keys, topic, what))  # noqa: B023
                await self._refused(program, f"receive by {what}", lambda: self._receive(keys, topic))  # noqa: B023
            await asyncio.sleep(self.chance.uniform(0, 20))
        self._is_done = True

    async def _refused(self, program: Program, what: str, work: Callable[[], Awaitable[bool]]) -> None:
        try:
            if await work():
                self._wrong.append(f"a {what} succeeded, without a permission")
        except GantryError as e:
            self.scene.history.note(self.scene.now(), f"{program.name}: {what}: {e}")

    async def _send_one(self, keys: Credentials, topic: str, name: str) -> bool:
        async with Producer(self.scene.names, "strangers", credentials=keys) as producer:
            await producer.send(Message(topic, name.encode()))
        return True

    async def _receive(self, keys: Credentials, topic: str) -> bool:
        consumer = SimpleConsumer(self.scene.names, "strangers", credentials=keys)
        consumer.subscribe(topic)
        async with consumer:
            return bool(await consumer.receive(timeout=1))

    def problems(self) -> Iterator[str]:
        yield from self._wrong[:5]
