"""Repeated sends with deduplication ids. A broker stores each id once in a window, and forgets it afterwards."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol import properties as names
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.store.message_store import MessageStore
from sim.cluster import Program
from sim.history import Delay, Sent
from sim.scene import AGAIN_S, Scene, has_wrong_clocks
from sim.workloads.base import Workload

_TOPIC = "once"
_GROUP = "once-readers"
_QUEUES = 2
#: The window, in seconds.
_WINDOW_S = 20.0
#: A send of an id begins at most this long after the first one, in seconds. Its timeout is 3 s.
_REPEATS_S = 12.0
#: After the last send of an id and this time, its window has ended on all brokers, in seconds.
_FORGOTTEN_S = _WINDOW_S + 5.0
_IDS, _MOST_REPEATS, _DELAYED = 30, 3, 0.2
#: Delay level of the delayed messages, and its delay in seconds.
_LEVEL, _DELAY_S = 2, 5.0
#: Faults that lose a broker's topics or parts of its log.
_LOSING = {"wreck", "disaster", "lies", "lying", "rot", "rot-unread"}


class Deduplication(Workload):
    """Two producers send the same ids at the same time, several times. Later, one of them uses some ids again."""

    network = 43

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        #: Name of a message -> time of its first send.
        self._began: dict[str, float] = {}
        self._at_work = 2
        self._delayed = [self.chance.random() < _DELAYED for _ in range(_IDS)]
        self.add("once-0", self._make_and_send)
        self.add("once-1", self._send)
        self.add("once-reader", self._read)
        scene.reads[_GROUP] = _TOPIC
        # If the route of a producer lacks a broker for some time, two brokers can store a message.
        scene.rewound.add(_GROUP)

    def is_done(self) -> bool:
        return not self._at_work

    async def _make_and_send(self, program: Program) -> None:
        config = TopicConfig(
            _TOPIC, _QUEUES, _QUEUES, attributes={"+deduplication.window.ms": str(int(_WINDOW_S * 1000))}
        )
        async with self.admin() as admin:
            await self.scene.until_done(program, lambda: admin.create_topic(config, cluster="DefaultCluster"))
        # In the first seconds, brokers write the topic to their disks, and slaves copy it.
        await self.scene.until(lambda: self.scene.servers.have_topic(_TOPIC))
        self._is_made.set()
        await self._send(program)

    async def _send(self, program: Program) -> None:
        await self._is_made.wait()
        async with Producer(self.scene.names, "once-senders") as producer:
            for number in range(_IDS):
                for _ in range(self.chance.randint(1, _MOST_REPEATS)):
                    await self._send_one(producer, program, f"once.{number}", f"id-{number}", self._delayed[number])
                    await asyncio.sleep(self.chance.random())
            if program.name == "once-0" and not self.scene.has_server_faults:
                # After a fault, a broker can get a former send so late that the window of its id begins then.
                await asyncio.sleep(_FORGOTTEN_S)
                for number in range(0, _IDS, 3):
                    await self._send_one(producer, program, f"once.{number}.again", f"id-{number}", False)
        self._at_work -= 1

    async def _send_one(
        self, producer: Producer, program: Program, name: str, message_id: str, is_delayed: bool
    ) -> None:
        """Sends a message until it is stored, or for as long as its window lasts."""
        while (now := self.scene.now()) < self._began.setdefault(name, now) + _REPEATS_S:
            sent = Sent(name, _TOPIC, asked_at=now)
            message = Message(_TOPIC, name.encode(), deduplicate_id=message_id, delay_level=_LEVEL if is_delayed else 0)
            if is_delayed:
                sent.delay, sent.not_before = Delay.LEVEL, now + _DELAY_S
            self.scene.ask(sent)
            try:
                self.scene.stored(name, await producer.send(message), None if is_delayed else 0)
                return
            except GantryError as e:
                self.scene.history.fail(self.scene.now(), program.name, e)
                await asyncio.sleep(AGAIN_S)

    async def _read(self, program: Program) -> None:
        await self._is_made.wait()
        await self.read_all(program, _TOPIC, _GROUP)

    def problems(self) -> Iterator[str]:
        if has_wrong_clocks(self.scene.plan) or _LOSING & {fault.kind for fault in self.scene.plan.faults}:
            return
        masters = self.scene.servers.masters()
        for program, broker in self.scene.servers.looked_into():
            name = broker.config.broker_name
            if masters.get(name) is not broker:
                continue
            times: dict[str, list[int]] = defaultdict(list)
            program.look(partial(_look, times, broker.store))
            for message_id, stored_ms in times.items():
                for first, second in zip(sorted(stored_ms), sorted(stored_ms)[1:], strict=False):
                    if second - first < _WINDOW_S * 1000:
                        yield f"{name} stored {message_id} twice within its window, {second - first} ms apart"


def _look(times: dict[str, list[int]], store: MessageStore) -> None:
    """Collects the store times of each id: of plain messages in the topic, of delayed ones where they wait."""
    known = store.topics()
    for topic, queue_id in [(_TOPIC, number) for number in range(_QUEUES)] + [(SCHEDULE_TOPIC, _LEVEL - 1)]:
        if queue_id not in known.get(topic, ()):
            continue
        queue = store.queue(topic, queue_id)
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            if unit is None:
                continue
            try:
                record = store.read_record(unit[0])
            except GantryError:
                continue
            fields = decode_properties(record.properties)
            is_delivered = topic == _TOPIC and names.REAL_TOPIC in fields
            message_id = fields.get(names.DEDUPLICATE_ID)
            if message_id is not None and not is_delivered and fields.get(names.REAL_TOPIC, _TOPIC) == _TOPIC:
                times[message_id].append(record.store_timestamp)
