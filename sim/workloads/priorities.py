"""Messages with priorities: a pop returns the waiting message with the highest priority first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt
from sim.cluster import Program
from sim.history import Sent
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import Workload

_TOPIC = "alarms"
_GROUP = "guards"
_QUEUES = 4
_MESSAGES = 100
#: The largest priority is higher than the largest queue id.
_PRIORITIES = 6
#: Messages of a pop, and the longest pause after one, in seconds. The consumer is slower than the producer, so that
#: messages wait.
_AT_ONCE, _PAUSE_S = 4, 3.0


class Priorities(Workload):
    """One producer, and one POP consumer that acknowledges all messages."""

    network = 33
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        #: Queue of each message, which follows from its priority.
        self._queues: dict[str, int] = {}
        self._had: set[str] = set()
        #: Problems, and the message that was passed over, if there is one.
        self._wrong: list[tuple[str, str]] = []
        self.add("watchtower", self._send)
        self.add("guard", self._receive)
        scene.reads[_GROUP] = _TOPIC

    async def _send(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC, _QUEUES, {"message.type": "PRIORITY"})
        self._is_made.set()
        async with Producer(self.scene.names, "watchtowers") as producer:
            for number in range(_MESSAGES):
                name, priority = f"{program.name}.{number}", self.chance.randrange(_PRIORITIES)
                self._queues[name] = min(priority, _QUEUES - 1)
                self.scene.ask(Sent(name, _TOPIC, asked_at=self.scene.now()))
                try:
                    self.scene.stored(name, await producer.send(Message(_TOPIC, name.encode(), priority=priority)), 0)
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
                await asyncio.sleep(self.chance.uniform(0, 0.8))
        self.has_sent = True

    async def _receive(self, program: Program) -> None:
        await self._is_made.wait()
        consumer = SimpleConsumer(self.scene.names, _GROUP)
        consumer.subscribe(_TOPIC)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                asked_at = self.scene.now()
                most = self._most_of_queue()
                try:
                    messages = await consumer.receive(max_messages=_AT_ONCE, invisible_time=20, timeout=5)
                    self._look_at_order(messages, asked_at, min(most, self._most_of_queue()))
                    for message in messages:
                        self.scene.receive(message, _GROUP, program.name)
                    for message in messages:
                        await consumer.ack(message)
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
                await asyncio.sleep(self.chance.uniform(0, _PAUSE_S) if not self.has_sent else 0.1)

    def _most_of_queue(self) -> int:
        """Returns the largest number of messages of a queue in a pop.

        As in Java, a pop reads each queue once, and `maxTransferCountOnMessageInMemory` limits each read. A pop with
        messages of a low priority can therefore leave some of a higher one.
        """
        stores = [broker.config.store for _, broker in self.scene.servers.looked_into()]
        return min((store.max_transfer_count_on_message_in_memory for store in stores), default=_AT_ONCE)

    def _look_at_order(self, messages: list[MessageExt], asked_at: float, most_of_queue: int) -> None:
        """Records messages that came before waiting ones of the same broker with a higher priority."""
        if not messages:
            return
        names = [message.body.decode() for message in messages]
        queues = [self._queues[name] for name in names]
        if queues != sorted(queues, reverse=True):
            self._wrong.append((f"{_GROUP} had {names} in the order of the queues {queues}", ""))
        known = self._had | set(names)
        for name, sent in self.scene.history.sent.items():
            waits = sent.stored_at is not None and sent.stored_at < asked_at and sent.broker == messages[0].broker_name
            if not waits or name not in self._queues or name in known:
                continue
            queue = self._queues[name]
            if queue > queues[-1] and queues.count(queue) < most_of_queue:
                problem = f"{_GROUP} had {names[-1]} before {name}, which waited and has a higher priority"
                self._wrong.append((problem, name))
        self._had = known

    def problems(self) -> Iterator[str]:
        for name, queue in self._queues.items():
            place = self.scene.history.sent[name].place
            if place is not None and place[1] != queue:
                yield f"{name} is in queue {place[1]}, and its priority belongs to queue {queue}"
        if not self.scene.has_server_faults:
            # After a fault, a broker returns messages in flight once more.
            yield from [problem for problem, name in self._wrong if not name or not self._is_gone(name)][:5]

    def _is_gone(self, name: str) -> bool:
        """Returns true if the message did not wait: its log file may be deleted (`retention`), and it never arrived."""
        return name not in self._had and self.scene.is_excused(self.scene.history.sent[name])
