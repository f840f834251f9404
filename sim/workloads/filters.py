"""Tags, SQL92 conditions, properties and compressed bodies: a group receives exactly the messages of its filter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.compression import CompressionType
from gantrymq.protocol.message import Message, MessageExt
from sim.cluster import Program
from sim.history import Sent
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import Workload

_TOPIC = "quotes"
_MESSAGES = 80
_TAGS = ("red", "green", "blue", None)
#: Properties with the name of a message and its price.
_NAME, _PRICE = "name", "price"
#: Sizes of bodies, in bytes. Those from 4,096 on are compressed, if that makes them smaller.
_SIZES = (6, 100, 5_000, 20_000)

_Wants = Callable[[Message], bool]


def _is_cheap(message: Message) -> bool:
    price = message.properties.get(_PRICE)
    return price is not None and int(price) < 50 and message.properties.get("TAGS") in ("red", "green")


#: Group -> arguments of `subscribe`, and the messages that it must receive.
_FILTERS: dict[str, tuple[dict[str, str], _Wants]] = {
    "reds": ({"tags": "red || blue"}, lambda message: message.properties.get("TAGS") in ("red", "blue")),
    "cheap": ({"sql": "price < 50 AND TAGS IN ('red', 'green')"}, _is_cheap),
    "unpriced": ({"sql": "price IS NULL"}, lambda message: _PRICE not in message.properties),
    "greens": ({"tags": "green"}, lambda message: message.properties.get("TAGS") == "green"),
}
#: The group of a POP consumer.
_POP = "greens"


class Filters(Workload):
    """Three push groups and a POP group with different filters on one topic."""

    network = 38
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        self._messages: dict[str, Message] = {}
        self._wrong: list[str] = []
        self.add("broker-of-quotes", self._send)
        for group in _FILTERS:
            self.add(f"{group}-0", self._read)
            scene.reads[group] = _TOPIC
            scene.wants[group] = lambda sent, group=group: _FILTERS[group][1](self._messages[sent.name])  # type: ignore[misc]

    async def _send(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC)
        self._is_made.set()
        kind = self.chance.choice(sorted(CompressionType, key=lambda one: one.name))
        async with Producer(self.scene.names, "quoters", compression=kind) as producer:
            for number in range(_MESSAGES):
                name = f"{program.name}.{number}"
                message = self._messages[name] = self._message(name)
                self.scene.ask(Sent(name, _TOPIC, asked_at=self.scene.now()))
                try:
                    self.scene.stored(name, await producer.send(message), 0)
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
                await asyncio.sleep(self.chance.uniform(0, 2))
        self.has_sent = True

    def _message(self, name: str) -> Message:
        properties = {_NAME: name}
        if self.chance.random() < 0.8:
            properties[_PRICE] = str(self.chance.randrange(100))
        body = _body(self.chance.choice(_SIZES), name if self.chance.random() < 0.3 else "")
        return Message(_TOPIC, body, tags=self.chance.choice(_TAGS), keys=[name, "quote"], properties=properties)

    async def _read(self, program: Program) -> None:
        await self._is_made.wait()
        group = program.name.rpartition("-")[0]
        subscription, _ = _FILTERS[group]
        assert program.ending is not None
        if group == _POP:
            await self._pop(program, subscription)
            return

        async def handle(message: MessageExt) -> None:
            self._receive(message, group, program)

        consumer = PushConsumer(self.scene.names, group, handle, start_from="earliest", concurrency=4)
        consumer.subscribe(_TOPIC, **subscription)
        async with consumer:
            await program.ending.wait()

    async def _pop(self, program: Program, subscription: dict[str, str]) -> None:
        consumer = SimpleConsumer(self.scene.names, _POP)
        consumer.subscribe(_TOPIC, **subscription)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                try:
                    for message in await consumer.receive(invisible_time=20, timeout=5):
                        self._receive(message, _POP, program)
                        await consumer.ack(message)
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)

    def _receive(self, message: MessageExt, group: str, program: Program) -> None:
        name = message.properties.get(_NAME, "")
        self.scene.receive(message, group, program.name, name)
        sent = self._messages.get(name)
        if sent is None:
            return
        if not _FILTERS[group][1](sent):
            self._wrong.append(f"{group} had {name}, which its filter excludes: {sent.properties}")
        if message.body != sent.body:
            self._wrong.append(
                f"{group} had {name} with {len(message.body)} other bytes than the {len(sent.body)} sent"
            )
        lost = {key: value for key, value in sent.properties.items() if message.properties.get(key) != value}
        if lost:
            self._wrong.append(f"{group} had {name} without the properties {lost}")

    def problems(self) -> Iterator[str]:
        yield from self._wrong[:5]


def _body(size: int, seed: str) -> bytes:
    """Returns a body. With a seed it is random and cannot be compressed."""
    return Random(seed).randbytes(size) if seed else b"quote " * (size // 6)
