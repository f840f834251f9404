"""Lite topics: groups whose members share them, or have them exclusively, while producers send to all of them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack

from gantrymq.client.popping.lite_consumer import LiteConsumer
from gantrymq.client.popping.lite_push_consumer import LitePushConsumer
from gantrymq.client.popping.lite_simple_consumer import LiteSimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.lite import OffsetOption
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.message import Message, MessageExt
from sim.cluster import Program
from sim.history import Sent
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import CLUSTER, Workload

_TOPIC = "sessions"
_LITE_TOPICS = tuple(f"session-{number}" for number in range(6))
_MESSAGES = 120
#: A group whose members share all lite topics, and one whose members take them over from each other.
_SHARED, _EXCLUSIVE = "agents", "owners"
_INVISIBLE_S = 20.0
#: Longest time for which a consumer handles messages before it acknowledges them, in seconds.
_HANDLING_S = 0.8
#: Mean pause between two takeovers of a member, in seconds.
_TAKEOVER_S = 8.0


class LiteTopics(Workload):
    """One producer. The shared group has a simple and a push consumer, the exclusive one two simple consumers."""

    network = 44
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        #: Number of consumers that have subscribed for the first time. The producer waits for all of them.
        self._ready = 0
        self._owners: list[LiteConsumer] = []
        #: Group and lite topic -> numbers of the received messages, and those of each lite topic by name.
        self._received: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._numbers: dict[str, tuple[str, int]] = {}
        self._wrong: list[str] = []
        self.add("caller", self._send)
        self.add("agent-0", lambda program: self._share(program))
        self.add("agent-1", lambda program: self._share_by_push(program))
        for number in range(2):
            self.add(f"owner-{number}", lambda program: self._own(program))
        self._consumers = len(self.programs) - 1
        for group in (_SHARED, _EXCLUSIVE):
            scene.reads[group] = _TOPIC

    # -- the producer -------------------------------------------------------------------------------------------

    async def _send(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC, 2, {"message.type": "LITE"})
        async with self.admin() as admin:
            for group, model in ((_SHARED, "Shared"), (_EXCLUSIVE, "Exclusive")):
                attributes = {"+lite.bind.topic": _TOPIC, "+lite.sub.model": model}
                config = SubscriptionGroupConfig(group, attributes=attributes)
                await self.scene.until_done(program, lambda config=config: admin.create_group(config, cluster=CLUSTER))  # type: ignore[misc]
        self._is_made.set()
        await self.scene.until(lambda: self._ready == self._consumers)
        numbers = dict.fromkeys(_LITE_TOPICS, 0)
        async with Producer(self.scene.names, "callers") as producer:
            for number in range(_MESSAGES):
                name, lite_topic = f"{program.name}.{number}", self.chance.choice(_LITE_TOPICS)
                self._numbers[name] = lite_topic, numbers[lite_topic]
                numbers[lite_topic] += 1
                self.scene.ask(Sent(name, _TOPIC, asked_at=self.scene.now()))
                try:
                    result = await producer.send(Message(_TOPIC, name.encode(), lite_topic=lite_topic))
                    self.scene.stored(name, result, 0)
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
                await asyncio.sleep(self.chance.uniform(0, 1.0))
        self.has_sent = True

    # -- the consumers ------------------------------------------------------------------------------------------

    async def _share(self, program: Program) -> None:
        await self._is_made.wait()
        async with AsyncExitStack() as stack:
            consumer = LiteSimpleConsumer(self.scene.names, _SHARED, _TOPIC)
            await self._enter(program, stack, consumer, _LITE_TOPICS)
            await self._receive(program, consumer, _SHARED)

    async def _share_by_push(self, program: Program) -> None:
        await self._is_made.wait()

        async def handle(message: MessageExt) -> None:
            self._look_at(message, _SHARED, program)
            await asyncio.sleep(self.chance.uniform(0, _HANDLING_S))

        async with AsyncExitStack() as stack:
            consumer = LitePushConsumer(self.scene.names, _SHARED, _TOPIC, handle)
            await self._enter(program, stack, consumer, _LITE_TOPICS)
            assert program.ending is not None
            await program.ending.wait()

    async def _own(self, program: Program) -> None:
        await self._is_made.wait()
        async with AsyncExitStack() as stack:
            consumer = LiteSimpleConsumer(
                self.scene.names,
                _EXCLUSIVE,
                _TOPIC,
                on_unsubscribe_lite=lambda name: self.scene.history.note(
                    self.scene.now(), f"{program.name} lost {name}"
                ),
            )
            half = len(self._owners)
            self._owners.append(consumer)
            await self._enter(program, stack, consumer, _LITE_TOPICS[half::2])
            taking_over = asyncio.ensure_future(self._take_over(program, consumer))
            try:
                await self._receive(program, consumer, _EXCLUSIVE)
            finally:
                taking_over.cancel()

    async def _enter(
        self, program: Program, stack: AsyncExitStack, consumer: LiteConsumer, lite_topics: tuple[str, ...]
    ) -> None:
        """Starts a consumer and subscribes for the first time, before the first message."""
        await self.scene.until_done(program, consumer.start)
        stack.push_async_callback(consumer.close)
        first = OffsetOption.min_offset()
        for name in lite_topics:
            await self.scene.until_done(
                program,
                lambda name=name: consumer.subscribe_lite(name, offset_option=first),  # type: ignore[misc]
            )
        self._ready += 1

    async def _receive(self, program: Program, consumer: LiteSimpleConsumer, group: str) -> None:
        assert program.ending is not None
        while not program.ending.is_set():
            try:
                messages = await consumer.receive(max_messages=8, invisible_time=_INVISIBLE_S, timeout=5)
                for message in messages:
                    self._look_at(message, group, program)
                # Further messages arrive while these are in flight.
                await asyncio.sleep(self.chance.uniform(0, _HANDLING_S))
                for message in messages:
                    await consumer.ack(message)
            except GantryError as e:
                self.scene.history.fail(self.scene.now(), program.name, e)
                await asyncio.sleep(AGAIN_S)

    async def _take_over(self, program: Program, consumer: LiteConsumer) -> None:
        """Takes lite topics over, and those that no member has. Ends with the last message, so that all settles."""
        while True:
            await asyncio.sleep(self.chance.uniform(0, 2 * _TAKEOVER_S))
            names = self._unowned() if self.has_sent else [self.chance.choice(_LITE_TOPICS)]
            for name in names:
                try:
                    await consumer.subscribe_lite(name)
                    self.scene.history.note(self.scene.now(), f"{program.name} took {name}")
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)

    def _unowned(self) -> list[str]:
        owned = {name for owner in self._owners for name in owner.lite_topic_set}
        return [name for name in _LITE_TOPICS if name not in owned]

    def _look_at(self, message: MessageExt, group: str, program: Program) -> None:
        """Records a delivery. Its lite topic's earlier messages of the same broker must have been delivered."""
        name = self.scene.receive(message, group, program.name)
        lite_topic, number = self._numbers[name]
        if message.lite_topic != lite_topic:
            self._wrong.append(f"{group} had {name} in {message.lite_topic} instead of {lite_topic}")
        had = self._received[group, lite_topic]
        if number in had:
            return
        for other, (its_lite_topic, its_number) in self._numbers.items():
            if its_lite_topic != lite_topic or its_number >= number or its_number in had:
                continue
            sent = self.scene.history.sent[other]
            if sent.stored_at is not None and sent.broker == message.broker_name and not self.scene.is_excused(sent):
                self._wrong.append(f"{group} had {name} before {other}, which is earlier in {lite_topic}")
        had.add(number)

    # -- the end ------------------------------------------------------------------------------------------------

    def is_done(self) -> bool:
        return self.scene.has_server_faults or not self._unowned()

    def problems(self) -> Iterator[str]:
        yield from self._wrong[:5]
        if self.scene.has_server_faults:
            return
        for name in _LITE_TOPICS:
            count = sum(name in owner.lite_topic_set for owner in self._owners)
            if count > 1:
                yield f"{count} members of {_EXCLUSIVE} have {name}, which is exclusive"
