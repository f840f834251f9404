"""Timed messages, some of which are recalled in time. A recalled message must never be delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message
from sim.cluster import Program
from sim.history import Delay, Sent
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import Workload

_TOPIC = "reminders"
_GROUP = "reminded"
_MESSAGES = 30
#: A message recalled this long before its time cannot be on its way, in seconds. The timer reads its wheel a second
#: ahead.
_IN_TIME_S = 4.0


class Recalls(Workload):
    """Recalls half of its messages."""

    network = 25

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        self._is_done = False
        #: Broker with the message of a recall handle. A broker that did not respond can have a copy, because the
        #: producer sent the message again to another one.
        self._at: dict[str, str] = {}
        #: Time at which each recall succeeded.
        self._recalled: dict[str, float] = {}
        self.add("planner", self._send)
        self.add("reminder", self._read)
        scene.reads[_GROUP] = _TOPIC
        scene.excuses.append(lambda sent: sent.name in self._recalled)

    def is_done(self) -> bool:
        return self._is_done

    async def _send(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC)
        self._is_made.set()
        async with Producer(self.scene.names, "planners") as producer:
            for number in range(_MESSAGES):
                try:
                    await self._plan(producer, f"{program.name}.{number}")
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
                await asyncio.sleep(2 * self.chance.random())
        self._is_done = True

    async def _plan(self, producer: Producer, name: str) -> None:
        now = self.scene.now()
        delay_s = self.chance.uniform(2, 30)
        self.scene.ask(Sent(name, _TOPIC, asked_at=now, not_before=now + delay_s, delay=Delay.AFTER))
        sent = await producer.send(Message(_TOPIC, name.encode(), delay=delay_s))
        self.scene.stored(name, sent)
        self._at[name] = sent.queue.broker_name
        if self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.random())
            assert sent.recall_handle is not None
            # From here on, the message may be recalled even if the request fails.
            self._recalled[name] = float("inf")
            await producer.recall(_TOPIC, sent.recall_handle)
            self._recalled[name] = self.scene.now()
            self.scene.history.note(self.scene.now(), f"taken back {name}")

    async def _read(self, program: Program) -> None:
        await self._is_made.wait()
        await self.read_all(program, _TOPIC, _GROUP)

    def problems(self) -> Iterator[str]:
        for one in self.scene.history.received:
            if one.group != _GROUP or one.name not in self._recalled or one.broker != self._at[one.name]:
                continue
            at, due = self._recalled[one.name], self.scene.history.sent[one.name].not_before
            if at < due - _IN_TIME_S:
                yield f"{_GROUP} had {one.name}, which was taken back {due - at:.1f} s before it was due"
