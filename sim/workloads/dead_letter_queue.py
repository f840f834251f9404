"""Messages whose handler always fails. Each must be tried as often as configured, and then be in `%DLQ%group`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial

from gantrymq.broker.config import BrokerRole
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX
from gantrymq.store.consume_queue import UNIT
from gantrymq.store.message_store import MessageStore
from sim.cluster import Program
from sim.scene import Scene
from sim.workloads.base import Workload

_TOPIC = "letters"
_GROUP = "postmen"
_MESSAGES = 20
#: `maxReconsumeTimes`. The second attempt follows 10 s after the first.
_AGAIN = 1


class DeadLetters(Workload):
    """The handler fails for every third message."""

    network = 23
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        self._tries: Counter[str] = Counter()
        self._is_orderly = self.chance.random() < 0.3
        self.add("sorter", self._send)
        self.add("postman", self._deliver)
        scene.reads[_GROUP] = _TOPIC
        scene.excuses.append(lambda sent: sent.topic == _TOPIC and _is_hopeless(sent.name))

    async def _send(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC)
        self._is_made.set()
        await self.send_all(program, _TOPIC, _MESSAGES, 2.0)

    async def _deliver(self, program: Program) -> None:
        await self._is_made.wait()

        async def handle(message: MessageExt) -> None:
            name = message.body.decode()
            self._tries[name] += 1
            if _is_hopeless(name):
                raise RuntimeError("nobody lives there")
            self.scene.receive(message, _GROUP, program.name)

        consumer = PushConsumer(
            self.scene.names,
            _GROUP,
            handle,
            orderly=self._is_orderly,
            max_reconsume_times=_AGAIN,
            start_from="earliest",
        )
        consumer.subscribe(_TOPIC)
        async with consumer:
            assert program.ending is not None
            await program.ending.wait()

    def _dead(self) -> Counter[str]:
        """Returns the number of records of each message in the dead-letter queues."""
        dead: Counter[str] = Counter()
        for program, broker in self.scene.servers.looked_into():
            # Slaves have the same records.
            if broker.config.broker_role is not BrokerRole.SLAVE:
                dead.update(program.look(partial(_bodies, broker.store)))
        return dead

    def _missing(self) -> set[str]:
        """Returns the messages that are not in the dead-letter queue yet. Empty if retention may remove them."""
        if "retention" in self.scene.plan.extras:
            return set()
        return {
            one.name
            for one in self.scene.history.sent.values()
            if one.topic == _TOPIC and one.stored_at is not None and _is_hopeless(one.name)
        } - self._dead().keys()

    def is_done(self) -> bool:
        return not self._missing()

    def problems(self) -> Iterator[str]:
        if missing := self._missing():
            yield f"{len(missing)} are not among the dead letters of {_GROUP}: {', '.join(sorted(missing)[:5])}"
        dead = self._dead()
        for name, count in dead.items():
            if not _is_hopeless(name):
                yield f"{name} is among the dead letters, and its handler never failed"
            if self._tries[name] < 1 + _AGAIN:
                yield f"{name} is among the dead letters after {self._tries[name]} tries of {1 + _AGAIN}"
            if not self.has_faults and (count, self._tries[name]) != (1, 1 + _AGAIN):
                yield f"{name} is {count} times among the dead letters, after {self._tries[name]} tries"


def _is_hopeless(name: str) -> bool:
    return int(name.partition(".")[2]) % 3 == 0


def _bodies(store: MessageStore) -> list[str]:
    queue = store.queue(DLQ_TOPIC_PREFIX + _GROUP, 0)
    units = UNIT.iter_unpack(queue.units(queue.min_offset, queue.max_offset - queue.min_offset))
    return [store.read_record(place).body.decode() for place, _, _ in units]
