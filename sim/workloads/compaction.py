"""A compaction topic: readers from the first offset get the last value of each key, and no deleted keys."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import inf
from typing import NamedTuple

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.key_value import KeyValue
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol import properties as names
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageQueue, Tombstone
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.record import decode_record
from gantrymq.store.compaction.segment import SPARSE_UNIT_SIZE
from gantrymq.store.message_store import MessageStore
from sim.cluster import TOMBSTONES_S, Program, store_config
from sim.history import Sent
from sim.scene import AGAIN_S, Scene, has_wrong_clocks
from sim.workloads.base import CLUSTER, Workload

_TOPIC, _QUEUES = "states", 2
_GROUP = "state-readers"
#: Keys of each queue, messages in all, the mean pause between two in seconds, and the share of tombstones.
_KEYS, _MESSAGES, _PAUSE_S, _DELETIONS = 6, 300, 0.3, 0.2
#: Exponent of the choice of a key. The last keys get few messages, so that the broker removes their tombstones.
_SKEW = 3
#: Longest time of one reading, in seconds. No tombstone that is stored meanwhile may be removed before its end.
_READ_S = TOMBSTONES_S / 2
#: Pause between two readings, and longest wait of one poll, in seconds.
_READINGS_S, _POLL_S = 3.0, 1.0
#: With replicas, readings count only after all faults and this time, in seconds. Slaves may return old messages before.
_SETTLED_S = 30.0
#: Time in which brokers copy and compact the last messages, in seconds.
_COMPACTED_S = 12.0
#: Maximum size of one read of a store, in messages and in bytes.
_MOST, _MOST_BYTES = 32, 1 << 20

_Place = tuple[str, int]


class _Seen(NamedTuple):
    """A message that a reader received. `name` is empty for a tombstone."""

    offset: int
    key: str
    name: str


class Compaction(Workload):
    """A producer of values and tombstones, and readers that begin at the first offset again and again.

    The readers are a lite pull consumer and a `KeyValue`. At the end, the stores of all brokers are read, too.
    """

    network = 47
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        #: Key of each message, and the names of the tombstones.
        self._keys: dict[str, str] = {}
        self._tombstones: set[str] = set()
        self._wrong: list[str] = []
        #: Time of the last send, in seconds.
        self._sent_at = inf
        #: Number of readings that began after the last message and the last fault, by the kind of reader.
        self._last_readings = {"consumer": 0, "key-value": 0}
        self.add("state-writer", self._send)
        self.add("state-reader", self._read)
        self.add("state-table", self._read_table)

    def is_done(self) -> bool:
        return all(self._last_readings.values())

    async def _make(self, program: Program) -> None:
        config = TopicConfig(_TOPIC, _QUEUES, _QUEUES, attributes={"+cleanup.policy": "COMPACTION"})
        async with self.admin() as admin:

            async def create() -> None:
                # Brokers that have the topic refuse to set its policy again.
                if not self.scene.servers.have_topic(_TOPIC):
                    await admin.create_topic(config, cluster=CLUSTER)

            await self.scene.until_done(program, create)
        await self.scene.until(lambda: self.scene.servers.have_topic(_TOPIC))
        self._is_made.set()

    # -- the writer ---------------------------------------------------------------------------------------------

    async def _send(self, program: Program) -> None:
        await self._make(program)
        brokers = sorted(self.scene.servers.masters())
        queues = [MessageQueue(_TOPIC, broker, number) for broker in brokers for number in range(_QUEUES)]
        async with Producer(self.scene.names, "state-writers") as producer:
            for number in range(_MESSAGES):
                place = self.chance.randrange(len(queues))
                queue, key = queues[place], f"key-{place}-{int(_KEYS * self.chance.random() ** _SKEW)}"
                name = f"{key}.{number}"
                self._keys[name] = key
                message = Message(_TOPIC, name.encode(), keys=key)
                if self.chance.random() < _DELETIONS:
                    message = Tombstone(_TOPIC, key)
                    self._tombstones.add(name)
                self.scene.ask(Sent(name, _TOPIC, asked_at=self.scene.now()))
                try:
                    self.scene.stored(name, await producer.send(message, queue=queue), 0)
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
                await asyncio.sleep(_PAUSE_S * 2 * self.chance.random())
        self._sent_at = self.scene.now()
        self.has_sent = True

    # -- readers ------------------------------------------------------------------------------------------------

    async def _read(self, program: Program) -> None:
        """Reads all queues from the first offset to the end, again and again."""
        await self._is_made.wait()
        consumer = LitePullConsumer(self.scene.names, _GROUP, auto_commit=False)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                began = self.scene.now()
                is_last = self._is_last()
                try:
                    async with asyncio.timeout(_READ_S):
                        seen = await self._read_once(consumer)
                except (GantryError, TimeoutError) as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                else:
                    self._wrong += self._invented(program.name, seen)
                    if self._counts(is_last):
                        self._wrong += self._lost(program.name, seen, began)
                        self._last_readings["consumer"] += is_last
                await asyncio.sleep(_READINGS_S)

    async def _read_once(self, consumer: LitePullConsumer) -> Mapping[_Place, Sequence[_Seen]]:
        queues = await consumer.queues(_TOPIC)
        ends = {}
        await consumer.assign(queues)
        for queue in queues:
            ends[queue] = await consumer.end_offset(queue)
            await consumer.seek_to_begin(queue)
        seen: dict[_Place, list[_Seen]] = {(queue.broker_name, queue.queue_id): [] for queue in queues}
        while any(consumer.position(queue) < end for queue, end in ends.items()):
            for message in await consumer.poll(timeout=_POLL_S):
                one = _Seen(message.queue_offset, message.properties[names.KEYS], message.body.decode())
                seen[message.broker_name, message.queue_id].append(one)
        return seen

    async def _read_table(self, program: Program) -> None:
        """Opens a `KeyValue` again and again, which reads all queues."""
        await self._is_made.wait()
        assert program.ending is not None
        while not program.ending.is_set():
            began = self.scene.now()
            is_last = self._is_last()
            seen: dict[_Place, list[_Seen]] = defaultdict(list)
            try:
                async with asyncio.timeout(_READ_S), KeyValue(self.scene.names, _TOPIC, group="state-tables") as table:
                    for key, entry in (await table.entries()).items():
                        place = entry.queue.broker_name, entry.queue.queue_id
                        seen[place].append(_Seen(entry.queue_offset, key, (entry.value or b"").decode()))
            except (GantryError, TimeoutError) as e:
                self.scene.history.fail(self.scene.now(), program.name, e)
            else:
                for entries in seen.values():
                    entries.sort()
                self._wrong += self._invented(program.name, seen)
                if self._counts(is_last):
                    self._wrong += self._lost(program.name, seen, began)
                    self._last_readings["key-value"] += is_last
            await asyncio.sleep(_READINGS_S)

    def _is_last(self) -> bool:
        """Returns true if all messages are sent, and the faults have ended some time ago."""
        faults = self.scene.history.faults
        ended_at = max((until for _, until in faults), default=-inf)
        at = max(ended_at + _SETTLED_S, self._sent_at + _COMPACTED_S)
        return len(faults) == len(self.scene.plan.faults) and self.scene.now() > at

    def _counts(self, is_last: bool) -> bool:
        """Returns true if a reading must have all keys. A wrong clock can remove tombstones while it lasts."""
        return is_last or not (self.scene.plan.mode or has_wrong_clocks(self.scene.plan))

    # -- checks -------------------------------------------------------------------------------------------------

    def _invented(self, by: str, seen: Mapping[_Place, Sequence[_Seen]]) -> Iterator[str]:
        """Yields messages that were not sent, or are at another offset, and offsets that go back."""
        names_of = {sent.place: sent.name for sent in self._acknowledged()}
        for place, messages in seen.items():
            for before, after in pairwise(messages):
                if after.offset <= before.offset:
                    yield f"{by} had the offset {after.offset} of queue {place} after {before.offset}"
            for offset, key, name in messages:
                acknowledged = names_of.get((*place, offset))
                if name and self._keys.get(name) != key:
                    yield f"{by} had the value {name!r} of {key}, which nobody sent"
                elif not name and all(self._keys[one] != key for one in self._tombstones):
                    yield f"{by} had a tombstone of {key}, which nobody sent"
                elif acknowledged is not None and name != self._value(acknowledged):
                    yield f"{by} had {name!r} at {offset} of queue {place}, where {acknowledged} was stored"

    def _lost(self, by: str, seen: Mapping[_Place, Sequence[_Seen]], began: float) -> Iterator[str]:
        """Yields keys whose last message is older than one that was acknowledged before the reading began."""
        last = {(place, one.key): one.offset for place, messages in seen.items() for one in messages}
        for sent in self._acknowledged():
            assert sent.place is not None
            assert sent.stored_at is not None
            key, (broker, queue_id, offset) = self._keys[sent.name], sent.place
            place = broker, queue_id
            if sent.stored_at >= began or place not in seen:
                continue
            found = last.get((place, key))
            if found is None and not self._may_be_deleted(key, offset):
                yield f"{by} had nothing of {key}, although {sent.name} was stored at {offset} of queue {place}"
            elif found is not None and found < offset:
                yield f"{by} had only {found} of {key}, although {sent.name} was stored at {offset} of queue {place}"

    def _may_be_deleted(self, key: str, offset: int) -> bool:
        """Returns true if a tombstone of the key may follow this offset, or is at this offset."""
        for name in self._tombstones:
            place = self.scene.history.sent[name].place
            if self._keys[name] == key and (place is None or place[2] >= offset):
                return True
        return False

    def _value(self, name: str) -> str:
        return "" if name in self._tombstones else name

    def _acknowledged(self) -> Iterator[Sent]:
        return (
            sent
            for name in self._keys
            if (sent := self.scene.history.sent.get(name)) is not None and sent.place is not None
            if sent.stored_at is not None
        )

    def problems(self) -> Iterator[str]:
        yield from self._wrong[:5]
        for program, broker in self.scene.servers.looked_into():
            seen = program.look(partial(_messages, broker.config.broker_name, broker.store))
            yield from self._invented(program.name, seen)
            yield from self._lost(program.name, seen, inf)
            if not self.scene.plan.faults:
                yield from self._not_compacted(program.name, seen)

    def _not_compacted(self, by: str, seen: Mapping[_Place, Sequence[_Seen]]) -> Iterator[str]:
        """Yields queues with more messages than one for each key, and those of the last file."""
        most = _KEYS + store_config(self.scene.plan).compaction_cq_mapped_file_size // SPARSE_UNIT_SIZE
        for place, messages in seen.items():
            if len(messages) > most:
                yield f"{by} has {len(messages)} messages in queue {place}, and compaction leaves at most {most}"


def _messages(broker_name: str, store: MessageStore) -> Mapping[_Place, Sequence[_Seen]]:
    """Returns what a reader from the first offset of each queue gets."""
    seen: dict[_Place, list[_Seen]] = {}
    for queue_id in store.topics().get(_TOPIC, ()):
        messages = seen[broker_name, queue_id] = []
        queue = store.queue(_TOPIC, queue_id)
        offset = queue.min_offset
        while offset < queue.max_offset:
            result = store.get(queue, offset, _MOST, _MOST_BYTES)
            for data in result.buffers:
                record = decode_record(memoryview(data))
                key = decode_properties(record.properties)[names.KEYS]
                messages.append(_Seen(record.queue_offset, key, bytes(record.body).decode()))
            if result.next_begin_offset <= offset:
                break
            offset = result.next_begin_offset
    return seen
