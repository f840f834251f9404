"""Timed messages, some of which are recalled in time. A recalled message must never be delivered."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator

from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.recall_handle import RecallHandle, decode_recall_handle
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
        #: Recall handle of each message.
        self._handles: dict[str, RecallHandle] = {}
        #: Broker and TIMER_OUT_MS of the received copies of each message.
        self._received: dict[str, set[tuple[str, str]]] = defaultdict(set)
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
        assert sent.recall_handle is not None
        self._handles[name] = decode_recall_handle(sent.recall_handle)
        if self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.random())
            # From here on, the message may be recalled even if the request fails.
            self._recalled[name] = float("inf")
            await producer.recall(_TOPIC, sent.recall_handle)
            self._recalled[name] = self.scene.now()
            self.scene.history.note(self.scene.now(), f"taken back {name}")

    async def _read(self, program: Program) -> None:
        await self._is_made.wait()
        await self.read_all(program, _TOPIC, _GROUP, self._look_at)

    def _look_at(self, message: MessageExt) -> None:
        slot_ms = message.properties.get(names.TIMER_OUT_MS, "")
        self._received[message.body.decode()].add((message.broker_name, slot_ms))

    def problems(self) -> Iterator[str]:
        for name, at in self._recalled.items():
            handle, due = self._handles[name], self.scene.history.sent[name].not_before
            # A producer that gets no confirmation sends again, to the same broker or to another one. The handle is of
            # the last copy. It recalls the copies in the same slot of the same broker only, as in Java.
            is_received = (handle.broker_name, str(handle.timestamp_ms - 1)) in self._received[name]
            if is_received and at < due - _IN_TIME_S:
                yield f"{_GROUP} had {name}, which was taken back {due - at:.1f} s before it was due"
