"""POP consumers that omit acknowledgements or extend the invisible duration.

Unacknowledged messages must be redelivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import MessageExt
from sim.cluster import Program
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import Workload

_TOPIC = "jobs"
_GROUP = "workers"
_MESSAGES = 40
_WORKERS = 2
_INVISIBLE_S = 10.0
#: Tolerance for a redelivery, in seconds: millisecond clocks, and the time of a response.
_EARLY_S = 0.1


class SlowPops(Workload):
    """Three of ten messages are not acknowledged at first."""

    network = 28
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        #: Time until which a message is invisible, in seconds.
        self._invisible: dict[str, float] = {}
        #: Messages without an acknowledgement for their last delivery.
        self._owed: set[str] = set()
        self._early: list[str] = []
        self.add("foreman", self._send)
        for number in range(_WORKERS):
            self.add(f"worker-{number}", self._work)
        scene.reads[_GROUP] = _TOPIC
        scene.rewound.add(_GROUP)

    def is_done(self) -> bool:
        return not self._due()

    def _due(self) -> list[str]:
        """Returns the messages that must be redelivered."""
        return sorted(name for name in self._owed if not self.scene.is_excused(self.scene.history.sent[name]))

    async def _send(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC)
        self._is_made.set()
        await self.send_all(program, _TOPIC, _MESSAGES, 1.0)

    async def _work(self, program: Program) -> None:
        await self._is_made.wait()
        consumer = SimpleConsumer(self.scene.names, _GROUP)
        consumer.subscribe(_TOPIC)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                try:
                    messages = await consumer.receive(max_messages=4, invisible_time=_INVISIBLE_S, timeout=5)
                    for message in messages:
                        self._received(message, program)
                    for message in messages:
                        await self._decide(consumer, message)
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)

    def _received(self, message: MessageExt, program: Program) -> None:
        name = self.scene.receive(message, _GROUP, program.name)
        now = self.scene.now()
        if now < self._invisible.get(name, 0.0) - _EARLY_S:
            self._early.append(f"{_GROUP} had {name} again {self._invisible[name] - now:.2f} s too early")
        self._invisible[name] = now + _INVISIBLE_S
        # Owed until the message is acknowledged.
        self._owed.add(name)

    async def _decide(self, consumer: SimpleConsumer, message: MessageExt) -> None:
        name = message.body.decode()
        kind = self.chance.random()
        if kind < 0.15:
            self.scene.history.note(self.scene.now(), f"forgotten {name}")
            return
        if kind < 0.3:
            longer_s = self.chance.choice((3.0, 15.0))
            began = self.scene.now()
            await consumer.change_invisible_time(message, longer_s)
            self._invisible[name] = began + longer_s
            self.scene.history.note(self.scene.now(), f"{name} is invisible for {longer_s} s")
            return
        # The broker may have the acknowledgement even if the request fails.
        self._owed.discard(name)
        await consumer.ack(message)
        self._invisible[name] = float("inf")

    def problems(self) -> Iterator[str]:
        if due := self._due():
            yield f"{_GROUP} never had again {len(due)} that it didn't acknowledge: {due[:5]}"
        hit = {fault.whom.partition("-")[0] for fault in self.scene.plan.faults}
        if not hit & {"ns", "broker"} and all(fault.kind != "reset" for fault in self.scene.plan.faults):
            yield from self._early
