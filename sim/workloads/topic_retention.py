"""A topic with a retention of its own. Queues begin at the oldest message that has not expired, for all consumers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import MessageExt
from gantrymq.store.consume_queue import ConsumeQueue
from sim.cluster import Program
from sim.history import Sent
from sim.scene import CLOCKS, Scene, has_wrong_clocks
from sim.workloads.base import CLUSTER, Workload

_TOPIC, _QUEUES = "gauges", 2
_STEADY, _SLEEPER = "dashboards", "reports"
_MESSAGES, _PAUSE_S = 200, 0.4
#: The retention: age in seconds, or size of a queue in bytes.
_AGE_S, _BYTES, _UNLIMITED = 15.0, 3000, 1 << 40
#: Interval of the broker's searches for expired messages, and the tolerance, in seconds.
_SEARCHES_S, _LATE_S = 10.0, 3.0
#: Interval at which slaves copy the limits of their master, in seconds.
_COPIES_S = 10.0
#: The sleeper is away for longer than the retention, in seconds.
_AWAKE_S, _ASLEEP_S = 12.0, 40.0
#: Time after the sleeper's return, in seconds, until the limit is raised.
_CAUGHT_UP_S = 20.0
#: Interval of the checks of the queues, in seconds.
_LOOK_S = 1.0
#: Faults with which messages become visible again, or after which a broker may begin with a queue whose expired
#: messages it could not find, or whose end is lost.
_UNSURE = (
    *CLOCKS,
    "io-errors",
    "open-errors",
    "full",
    "lies",
    "power",
    "power-at-sync",
    "sync-error",
    "rot",
    "rot-unread",
)

_Queue = tuple[str, int]


class TopicRetention(Workload):
    """A steady consumer, one that is away for longer than the retention, and checks of the queues.

    At the end, the limit is raised, and expired messages become visible again.
    """

    network = 35
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._by_age = self.chance.random() < 0.5
        self._is_made = asyncio.Event()
        self._has_returned = asyncio.Event()
        self._is_raised = False
        self._is_done = False
        self._wrong: list[str] = []
        #: (broker, queue) -> its smallest offset.
        self._begins: dict[_Queue, int] = defaultdict(int)
        #: Offsets that the sleeper received before and after its absence.
        self._before: dict[_Queue, list[int]] = defaultdict(list)
        self._after: dict[_Queue, list[int]] = defaultdict(list)
        #: Begins of each queue when the sleeper returned, and when it received its first message after that. Replicas
        #: search for expired messages at different times, and the sleeper can read from each of them.
        self._begins_then: dict[_Queue, list[int]] = {}
        self._first_begins: dict[_Queue, list[int]] = {}
        kinds = {fault.kind for fault in scene.plan.faults}
        self._is_sure = not kinds & set(_UNSURE) and not scene.plan.mode
        self.add("meter", self._send)
        self.add("dashboard", self._read)
        self.add("report", self._sleep)
        self.add("curator", self._raise_limit)
        self.add("surveyor", self._look)
        scene.reads[_STEADY] = _TOPIC
        scene.excuses.append(self._is_expired)

    def is_done(self) -> bool:
        return self._is_done

    def _is_expired(self, sent: Sent) -> bool:
        """Returns true if the message can have expired before a consumer read it, because of a fault."""
        if sent.topic != _TOPIC or not self.has_faults or sent.stored_at is None:
            return False
        is_old = self.scene.now() > sent.stored_at + _AGE_S - _LATE_S
        return not self._by_age or is_old or has_wrong_clocks(self.scene.plan)

    async def _send(self, program: Program) -> None:
        limit = {"retention.ms": str(int(_AGE_S * 1000))} if self._by_age else {"retention.bytes": str(_BYTES)}
        await self.make_topic(program, _TOPIC, _QUEUES, limit)
        self._is_made.set()
        await self.send_all(program, _TOPIC, _MESSAGES, _PAUSE_S)

    async def _read(self, program: Program) -> None:
        await self._is_made.wait()
        await self.read_all(program, _TOPIC, _STEADY)

    # -- the sleeper --------------------------------------------------------------------------------------------

    async def _sleep(self, program: Program) -> None:
        await self._is_made.wait()
        async with self._sleeper(self._before):
            await asyncio.sleep(_AWAKE_S)
        await asyncio.sleep(_ASLEEP_S)
        self._begins_then = self._begins_of_replicas()
        assert program.ending is not None
        self._has_returned.set()
        async with self._sleeper(self._after):
            await program.ending.wait()

    def _begins_of_replicas(self) -> dict[_Queue, list[int]]:
        """Returns the smallest offset of each queue at each replica."""
        begins: dict[_Queue, list[int]] = defaultdict(list)
        for _, place, queue in self._queues():
            begins[place].append(queue.min_offset)
        return begins

    def _sleeper(self, offsets: dict[_Queue, list[int]]) -> PushConsumer:
        async def handle(message: MessageExt) -> None:
            place = message.broker_name, message.queue_id
            if self._has_returned.is_set() and place not in self._first_begins:
                self._first_begins[place] = self._begins_of_replicas()[place]
            offsets[place].append(message.queue_offset)
            self._look_at_age(message)

        # One handler at a time, so that the messages of a queue are in order.
        consumer = PushConsumer(self.scene.names, _SLEEPER, handle, start_from="earliest", concurrency=1)
        consumer.subscribe(_TOPIC)
        return consumer

    def _look_at_age(self, message: MessageExt) -> None:
        sent = self.scene.history.sent.get(message.body.decode())
        if sent is None or sent.stored_at is None or not self._by_age or self._is_raised or self.has_faults:
            return
        age_s = self.scene.now() - sent.stored_at
        if age_s > _AGE_S + _SEARCHES_S + _LATE_S:
            self._wrong.append(f"{_SLEEPER} had {sent.name}, which is {age_s:.1f} s old, and has expired")

    # -- the queues ---------------------------------------------------------------------------------------------

    async def _raise_limit(self, program: Program) -> None:
        await self._has_returned.wait()
        await asyncio.sleep(_CAUGHT_UP_S)
        async with self.admin() as admin:
            # Brokers refuse to remove an attribute twice, so a removal could not be repeated after a failure.
            name = "retention.ms" if self._by_age else "retention.bytes"
            topic = TopicConfig(_TOPIC, _QUEUES, _QUEUES, attributes={f"+{name}": str(_UNLIMITED)})
            self._is_raised = True
            await self.scene.until_done(program, lambda: admin.create_topic(topic, cluster=CLUSTER))
        copies_s = _COPIES_S if self.scene.plan.replicas > 1 else 0.0
        await asyncio.sleep(copies_s + _SEARCHES_S + _LATE_S)
        if not self.has_faults:
            for _, place, queue in self._queues():
                if queue.min_offset != queue.log_min_offset:
                    self._wrong.append(f"queue {place} begins at {queue.min_offset}, although nothing has expired")
        self._is_done = True

    async def _look(self, program: Program) -> None:
        """Checks the queues of all brokers at intervals."""
        assert program.ending is not None
        while not program.ending.is_set():
            await asyncio.sleep(_LOOK_S)
            for one, place, queue in self._queues():
                self._look_at(place, queue)
                if not self.has_faults and not self._is_raised:
                    one.look(partial(self._look_at_messages, place, queue))

    def _queues(self) -> Iterator[tuple[Program, _Queue, ConsumeQueue]]:
        for program, broker in self.scene.servers.looked_into():
            for queue_id in sorted(broker.store.topics().get(_TOPIC, ())):
                queue = program.look(partial(broker.store.queue, _TOPIC, queue_id))
                yield program, (broker.config.broker_name, queue_id), queue

    def _look_at(self, place: _Queue, queue: ConsumeQueue) -> None:
        at = f"at {self.scene.now():.0f} s"
        if not 0 <= queue.min_offset <= queue.max_offset:
            self._wrong.append(f"{at} queue {place} is from {queue.min_offset} to {queue.max_offset}")
        if self._is_sure and not self._is_raised and queue.min_offset < self._begins[place]:
            self._wrong.append(f"{at} queue {place} begins at {queue.min_offset}, after {self._begins[place]}")
        self._begins[place] = queue.min_offset

    def _look_at_messages(self, place: _Queue, queue: ConsumeQueue) -> None:
        """Checks that the queue has the messages of the retention, and none that an earlier search has removed."""
        at, first = f"at {self.scene.now():.0f} s queue {place}", queue.min_offset
        # The workload `retention` deletes log files, with messages that have not expired.
        oldest = queue.log_min_offset if "retention" in self.scene.plan.extras else 0
        searched_at = self.scene.now() - _SEARCHES_S - _LATE_S
        if self._by_age:
            for sent in self.scene.history.sent.values():
                if sent.topic == _TOPIC and sent.place is not None and sent.place[:2] == place:
                    if oldest <= sent.place[2] < first and sent.asked_at > self.scene.now() - _AGE_S:
                        self._wrong.append(f"{at} lacks {sent.name}, which has not expired")
                    if sent.place[2] >= first and sent.stored_at and sent.stored_at < searched_at - _AGE_S:
                        self._wrong.append(f"{at} still has {sent.name}, which has expired")
            return
        units = [queue.unit(offset) for offset in range(queue.max_offset)]
        sizes = [0 if unit is None else unit[1] for unit in units]
        if first > oldest and sum(sizes[first - 1 :]) <= _BYTES:
            self._wrong.append(f"{at} has only {sum(sizes[first:])} bytes from {first} on")
        new = [one.place[2] for one in self.scene.history.sent.values() if one.place and self._is_new(one, place)]
        if sum(sizes[first : min(new, default=queue.max_offset - 1)]) > _BYTES:
            self._wrong.append(f"{at} still has {sum(sizes[first:])} bytes from {first} on")

    def _is_new(self, sent: Sent, place: _Queue) -> bool:
        """Returns true if the message can be newer than the last search."""
        is_here = sent.topic == _TOPIC and sent.place is not None and sent.place[:2] == place
        return is_here and (sent.stored_at or 0.0) > self.scene.now() - _SEARCHES_S - _LATE_S

    def problems(self) -> Iterator[str]:
        yield from self._wrong[:5]
        if self.has_faults:
            return
        for place, offsets in self._after.items():
            if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
                yield f"{_SLEEPER} had the offsets {offsets} of queue {place}, after its return"
            following = self._before[place][-1] + 1 if self._before[place] else 0
            least = max(following, min(self._begins_then.get(place, [0])))
            most = max(following, *self._first_begins[place])
            if not least <= offsets[0] <= most:
                yield f"{_SLEEPER} continued at {offsets[0]} of queue {place}, instead of {least} to {most}"
