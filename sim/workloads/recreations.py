"""A topic that is deleted and created again while consumers of each kind stay connected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from math import inf
from pathlib import Path

from gantrymq.broker.config import BrokerRole
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt
from sim.cluster import Program
from sim.history import Delay, Sent
from sim.plan import broker_name
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import Workload
from sim.workloads.ordered_pops import OrderlySimpleConsumer

_TOPIC = "site"
_CLUSTER = "DefaultCluster"
_LIVES = 3
#: Number of messages of each life of the topic, and the share of delayed ones.
_MESSAGES, _DELAYED = 12, 0.3
_QUEUES = 2
#: Delays that exist as delay levels, in seconds.
_SOON_S, _LATER_S = 5.0, 10.0
#: Longest time until the consumers' routes contain the new topic, in seconds.
_ROUTES_S = 35.0
#: Time after the creation in which messages of the old topic can still arrive, in seconds.
_UNDER_WAY_S = 1.0
#: Time after the creation in which slaves can lack the deletion, and return the old messages, in seconds. A slave
#: without a connection to its master lacks the deletion for longer (`_is_from_undeleted`).
_SLAVES_S = 15.0
_KINDS = ("push", "orderly", "broadcast", "lite", "pop", "orderly-pop")


class Recreations(Workload):
    """Deletes and creates the topic while delayed messages are not due yet."""

    network = 35

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        self._is_done = False
        #: Message names, deletion time and creation time of each life. `_is_sure`: all brokers deleted the topic.
        self._lives: list[set[str]] = []
        self._deleted_at: list[float] = []
        self._made_at: list[float] = []
        self._is_sure = True
        #: For each deletion: broker name -> the topic's begin on the broker that deleted it.
        self._begins: list[dict[str, int]] = []
        #: Life of the topic and broker name, if a master of this name lacked the deletion of this life.
        self._lost: set[tuple[int, str]] = set()
        #: Consumer and message name, if a broker that can have returned the message lacked the deletion.
        self._from_undeleted: set[tuple[str, str]] = set()
        self.add("builder", self._build)
        for kind in _KINDS:
            self.add(f"site-{kind}", self._pop if "pop" in kind else self._lite if kind == "lite" else self._push)
            scene.reads[f"site-{kind}"] = _TOPIC
            scene.rewound.add(f"site-{kind}")
        scene.excuses.append(self._is_deleted)

    def is_done(self) -> bool:
        return self._is_done

    def _is_deleted(self, sent: Sent) -> bool:
        """Returns true if the topic of the message was deleted, or may remain on a broker that was not reached."""
        if sent.topic != _TOPIC:
            return False
        return not self._is_sure or any(sent.name in life for life in self._lives[: len(self._deleted_at)])

    def _are_deletions_kept(self) -> bool:
        """Returns true if all masters have the last deletion.

        A slave copies deletions with the other tables, as Java's slaves do. If it becomes master before that, it has
        the old topic.
        """
        masters = self.scene.servers.masters()
        return not self._begins or all(
            name not in masters or masters[name].offsets.topic_begin(_TOPIC) >= begin
            for name, begin in self._begins[-1].items()
        )

    def _is_from_undeleted(self, name: str, broker: str) -> bool:
        """Returns true if a message can be from a broker of this name that lacks the deletion of its topic.

        Old messages can be from any such broker, because consumers read from slaves while the master is down. Only a
        master delivers delayed messages. They stay in the topic if another broker becomes master.
        """
        life = next(life for life, names in enumerate(self._lives) if name in names)
        if not self.scene.plan.mode or life >= len(self._begins):
            return False
        is_lacking = False
        for program, one in self.scene.servers.looked_into():
            its_name = broker_name(program.name)
            if one.offsets.topic_begin(_TOPIC) < self._begins[life].get(its_name, 0):
                is_lacking |= its_name == broker
                if one.config.broker_role is not BrokerRole.SLAVE:
                    self._lost.add((life, its_name))
        is_delayed = self.scene.history.sent[name].not_before > self._deleted_at[life]
        return (life, broker) in self._lost or (is_lacking and not is_delayed)

    def _receive(self, message: MessageExt, program: Program) -> None:
        name = self.scene.receive(message, program.name, program.name)
        if self._is_from_undeleted(name, message.broker_name):
            self._from_undeleted.add((program.name, name))

    async def _build(self, program: Program) -> None:
        async with self.admin() as admin, Producer(self.scene.names, "builders") as producer:
            for life in range(_LIVES):
                self._lives.append(set())
                await self.make_topic(program, _TOPIC, _QUEUES)
                self._made_at.append(self.scene.now())
                self._is_made.set()
                for number in range(_MESSAGES):
                    await self._send(producer, program, f"{program.name}.{life}.{number}")
                    await asyncio.sleep(self.chance.random())
                if life == _LIVES - 1:
                    break
                # Consumers receive most messages in this time.
                await asyncio.sleep(self.chance.uniform(0, 10))
                await self._send(producer, program, f"{program.name}.{life}.last", delay_s=_LATER_S)
                deleted_at = self.scene.now()
                where = await self.scene.until_done(program, lambda: admin.delete_topic(_TOPIC, _CLUSTER))
                self._is_sure &= len(where) == self.scene.plan.brokers
                begins = dict[str, int]()
                for one, broker in self.scene.servers.looked_into():
                    name, begin = broker_name(one.name), broker.offsets.topic_begin(_TOPIC)
                    begins[name] = max(begin, begins.get(name, 0))
                self._deleted_at.append(deleted_at)
                self._begins.append(begins)
                self.scene.history.note(self.scene.now(), f"deleted topic {_TOPIC}")
                await asyncio.sleep(self.chance.choice((0.0, 5.0, _ROUTES_S)) * self.chance.random())
        await asyncio.sleep(_ROUTES_S)
        self._is_done = True

    async def _send(self, producer: Producer, program: Program, name: str, delay_s: float = 0.0) -> None:
        now = self.scene.now()
        if not delay_s and self.chance.random() < _DELAYED:
            delay_s = _SOON_S
        sent = Sent(name, _TOPIC, asked_at=now, not_before=now + delay_s if delay_s else 0.0)
        message = Message(_TOPIC, name.encode())
        if delay_s:
            if self.chance.random() < 0.5:
                sent.delay = Delay.LEVEL
                message = Message(_TOPIC, name.encode(), delay_level=2 if delay_s == _SOON_S else 3)
            else:
                sent.delay = Delay.AFTER
                message = Message(_TOPIC, name.encode(), delay=delay_s)
        self._lives[-1].add(name)
        self.scene.ask(sent)
        try:
            self.scene.stored(name, await producer.send(message))
        except GantryError as e:
            self.scene.history.fail(self.scene.now(), program.name, e)
            await asyncio.sleep(AGAIN_S)

    async def _push(self, program: Program) -> None:
        await self._is_made.wait()

        async def handle(message: MessageExt) -> None:
            self._receive(message, program)

        consumer = PushConsumer(
            self.scene.names,
            program.name,
            handle,
            orderly="orderly" in program.name,
            start_from="earliest",
            broadcasting="broadcast" in program.name,
            offset_directory=Path("/offsets"),
        )
        consumer.subscribe(_TOPIC)
        async with consumer:
            assert program.ending is not None
            await program.ending.wait()

    async def _lite(self, program: Program) -> None:
        await self._is_made.wait()
        consumer = LitePullConsumer(self.scene.names, program.name, start_from="earliest")
        consumer.subscribe(_TOPIC)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                try:
                    for message in await consumer.poll(timeout=3):
                        self._receive(message, program)
                except GantryError as e:
                    self.scene.history.note(self.scene.now(), f"{program.name}: {e}")
                    await asyncio.sleep(AGAIN_S)

    async def _pop(self, program: Program) -> None:
        await self._is_made.wait()
        kind = OrderlySimpleConsumer if "orderly" in program.name else SimpleConsumer
        consumer = kind(self.scene.names, program.name)
        consumer.subscribe(_TOPIC)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                try:
                    for message in await consumer.receive(4, invisible_time=30, timeout=3):
                        self._receive(message, program)
                        await consumer.ack(message)
                except GantryError as e:
                    # The topic may be deleted.
                    self.scene.history.note(self.scene.now(), f"{program.name}: {e}")
                    await asyncio.sleep(AGAIN_S)

    def problems(self) -> Iterator[str]:
        if not self._is_sure or not self._are_deletions_kept():
            self.scene.undeleted.add(_TOPIC)
        if not self._is_sure:
            return
        for life, deleted_at in enumerate(self._deleted_at):
            made_at = self._made_at[life + 1] if life + 1 < len(self._made_at) else inf
            for one in self.scene.history.received:
                sent = self.scene.history.sent.get(one.name)
                if sent is None or one.name not in self._lives[life]:
                    continue
                is_delayed = sent.not_before > deleted_at
                if one.at <= made_at + (_UNDER_WAY_S if is_delayed else _SLAVES_S):
                    continue
                if (one.group, one.name) in self._from_undeleted:
                    continue
                kind = "which was delayed when its topic was deleted," if is_delayed else "whose topic was deleted,"
                yield f"{one.group} had {one.name}, {kind} from the next one"
