"""Requests and replies: each reply must belong to its request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.request_reply import reply_message
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt
from sim.cluster import Program
from sim.history import Sent
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import Workload

_TOPIC = "questions"
_GROUP = "experts"
_MESSAGES = 30
_TIMEOUT_S = 5


class Requests(Workload):
    """One program sends requests, another one replies."""

    network = 26

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        self._is_done = False
        self._wrong: list[str] = []
        self.add("pupil", self._ask)
        self.add("expert", self._answer)
        scene.reads[_GROUP] = _TOPIC

    def is_done(self) -> bool:
        return self._is_done

    async def _ask(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC)
        self._is_made.set()
        # In this time, the replying group is assigned the topic's queues.
        await asyncio.sleep(5)
        number = 0
        async with Producer(self.scene.names, "pupils") as producer:
            # Continues until a request succeeds, which must happen when faults are over.
            while number < _MESSAGES or not self._is_done:
                name = f"{program.name}.{number}"
                number += 1
                self.scene.ask(Sent(name, _TOPIC, asked_at=self.scene.now()))
                self._is_done = False
                try:
                    reply = await producer.request(Message(_TOPIC, name.encode()), timeout=_TIMEOUT_S)
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
                else:
                    self._is_done = number >= _MESSAGES
                    self.scene.stored(name)
                    if reply.body.decode() != f"to {name}":
                        self._wrong.append(f"the reply to {name} is {reply.body!r}")
                await asyncio.sleep(2 * self.chance.random())

    async def _answer(self, program: Program) -> None:
        await self._is_made.wait()
        async with Producer(self.scene.names, "experts-producers") as producer:

            async def handle(message: MessageExt) -> None:
                name = self.scene.receive(message, _GROUP, program.name)
                try:
                    await producer.send(reply_message(message, f"to {name}".encode()))
                except GantryError as e:
                    # The requester may be gone.
                    self.scene.history.note(self.scene.now(), f"{program.name}: {e}")

            consumer = PushConsumer(self.scene.names, _GROUP, handle, start_from="earliest", concurrency=4)
            consumer.subscribe(_TOPIC)
            async with consumer:
                assert program.ending is not None
                await program.ending.wait()

    def problems(self) -> Iterator[str]:
        yield from self._wrong
        if not self._is_done:
            yield "no request is answered any more"
