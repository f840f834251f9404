"""A group whose members join and leave all the time, as when a service is scaled or deployed."""

from __future__ import annotations

import asyncio

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.protocol.message import MessageExt
from sim.cluster import Program
from sim.plan import FAULTS_S
from sim.scene import Scene
from sim.workloads.base import Workload

_TOPIC = "parcels"
_MEMBERS = 3
_MESSAGES = 60
#: Longest time of a handler, in seconds. Its queue can move to another member meanwhile.
_SLOW_S = 4.0


class Comings(Workload):
    """Members are orderly or not, depending on the seed.

    An orderly group must not handle a queue in two members at once.
    """

    network = 21
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_orderly = self.chance.random() < 0.6
        self._is_made = asyncio.Event()
        self.add("depot", self._send)
        for number in range(_MEMBERS):
            self.add(f"member-{number}", self._come_and_go)
        scene.reads["members"] = _TOPIC
        # A new owner of a queue continues at the last committed offset.
        scene.rewound.add("members")

    async def _send(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC, 4)
        self._is_made.set()
        await self.send_all(program, _TOPIC, _MESSAGES, FAULTS_S / _MESSAGES)

    async def _come_and_go(self, program: Program) -> None:
        await self._is_made.wait()
        ends = self.scene.now() + FAULTS_S

        async def handle(message: MessageExt) -> None:
            await self._handle(message, program)

        assert program.ending is not None
        while not program.ending.is_set():
            consumer = PushConsumer(
                self.scene.names,
                "members",
                handle,
                orderly=self._is_orderly,
                start_from="earliest",
                concurrency=4,
            )
            consumer.subscribe(_TOPIC)
            async with consumer:
                if self.scene.now() > ends and program.name == "member-0":
                    await program.ending.wait()
                await asyncio.sleep(self.chance.uniform(2, 20))
            await asyncio.sleep(self.chance.uniform(0, 10))

    async def _handle(self, message: MessageExt, program: Program) -> None:
        queue = (message.broker_name, message.topic, message.queue_id)
        if self._is_orderly:
            self.scene.begin("members", queue, program.name)
        try:
            await asyncio.sleep(_SLOW_S * self.chance.random() if self.chance.random() < 0.3 else 0.01)
            self.scene.receive(message, "members", program.name)
        finally:
            if self._is_orderly:
                self.scene.end("members", queue, program.name)
