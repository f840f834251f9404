"""Producers and consumers of a run; all they see goes into the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_FIRST_OFFSET
from gantrymq.protocol.message import Message, MessageExt
from sim.cluster import Program, Servers
from sim.history import Handling, History, Received, Sent
from sim.plan import Plan
from sim.system import World

TOPIC = "orders"
KEYS = 4
#: A send that failed is tried again after, a call of a consumer that failed too, s.
_AGAIN_S = 0.5
_HANDLER_S = 0.02
#: How long a consumer may believe in the lock of a broker that died, with what it takes to come back, s.
_LOCK_LIFE_S = 90.0


class Decisions:
    """A TransactionListener: what became of each transaction is decided by its name."""

    def __init__(self, history: History) -> None:
        self._history = history

    async def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return self._state(message.body.decode())

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return self._state(message.body.decode(), asked=True)

    def _state(self, name: str, *, asked: bool = False) -> LocalTransactionState:
        if self._history.sent[name].is_void:
            return LocalTransactionState.ROLLBACK_MESSAGE
        if not asked and name.endswith("7"):
            return LocalTransactionState.UNKNOW
        return LocalTransactionState.COMMIT_MESSAGE


class Clients:
    """All clients of a run, as programs on hosts of their own."""

    def __init__(self, world: World, plan: Plan, history: History, servers: Servers) -> None:
        self._world = world
        self._plan = plan
        self._history = history
        self._names = servers.addresses
        #: When a broker died last. Its locks die with it, here as in Java, and who had one believes in it for a while.
        self._broker_died: dict[str, float] = {}
        self._setup = Program(world.host("setup", "10.0.8.1"), self._make_topic)
        #: The topic is on every broker.
        self.is_set_up = asyncio.Event()
        #: Producers that have sent all.
        self.done: set[str] = set()
        #: Numbers go on where a killed producer was.
        self._next: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self.producers = [
            Program(world.host(f"producer-{n}", f"10.0.3.{n + 1}"), self._produce) for n in range(plan.producers)
        ]
        kinds: dict[str, Callable[[Program], object]] = {
            "push": self._push,
            "orderly": self._push,
            "pop": self._pop,
            "lite": self._lite,
        }
        self.consumers = [
            Program(world.host(f"{kind}-{n}", f"10.0.{4 + number}.{n + 1}"), kinds[kind])  # type: ignore[arg-type]
            for number, kind in enumerate(kinds)
            for n in range(plan.consumers[kind])
        ]

    @property
    def all(self) -> list[Program]:
        return self.producers + self.consumers

    @property
    def groups(self) -> list[str]:
        """Those that somebody is in."""
        return [group for group, count in self._plan.consumers.items() if count]

    def set_up(self) -> None:
        """Makes the topic, so that groups share out its queues before there are messages."""
        self._setup.start()

    async def _make_topic(self, program: Program) -> None:
        async with AdminClient(self._names) as admin:
            while True:
                try:
                    await admin.ensure_topic(TOPIC, queues=4)
                    break
                except GantryError:
                    await asyncio.sleep(_AGAIN_S)
        self.is_set_up.set()

    # -- producers ----------------------------------------------------------------------------------------------

    async def _produce(self, program: Program) -> None:
        chance = Random(f"{self._plan.seed} {program.name} {self._next.get(program.name, 0)}")
        listener = Decisions(self._history)
        assert program.ending is not None
        async with TransactionProducer(self._names, "producers", listener) as producer:
            while (number := self._next.get(program.name, 0)) < self._plan.messages:
                if program.ending.is_set():
                    return
                try:
                    await self._send(producer, program, number, chance)
                except GantryError as e:
                    self._history.fail(self._world.loop.time(), program.name, e)
                    await asyncio.sleep(_AGAIN_S)
                await asyncio.sleep(self._plan.pause_s * chance.random() * 2)
            # It stays: it may be asked what became of a transaction.
            self.done.add(program.name)
            await program.ending.wait()

    async def _send(self, producer: TransactionProducer, program: Program, number: int, chance: Random) -> None:
        plan, name = self._plan, f"{program.name}.{number}"
        kind = chance.random()
        if kind < plan.ordered:
            await self._send_ordered(producer, program, chance)
            self._next[program.name] = number + 1
            return
        # The number is used up whatever comes of it: an unknown outcome is no reason to send the same name again.
        self._next[program.name] = number + 1
        kind -= plan.ordered
        now = self._world.loop.time()
        if kind < plan.delayed:
            delay_s = chance.choice((1.0, 3.0, 10.0))
            self._ask(Sent(name, TOPIC, asked_at=now, not_before=now + delay_s))
            if chance.random() < 0.5:
                message = Message(TOPIC, name.encode(), delay_level={1.0: 1, 3.0: 2, 10.0: 3}[delay_s])
                self._history.sent[name].not_before = now + {1.0: 1, 3.0: 5, 10.0: 10}[delay_s]
            else:
                message = Message(TOPIC, name.encode(), delay_ms=int(delay_s * 1000))
            await producer.send(message)
            self._stored(name)
            return
        kind -= plan.delayed
        if kind < plan.batches:
            names = [f"{name}.{part}" for part in range(chance.randrange(2, 20))]
            for part in names:
                self._ask(Sent(part, TOPIC, asked_at=now))
            await producer.send_batch([Message(TOPIC, part.encode()) for part in names])
            for part in names:
                self._stored(part)
            return
        kind -= plan.batches
        if kind < plan.transactions:
            self._ask(Sent(name, TOPIC, asked_at=now, is_void=chance.random() < 0.3))
            sent = await producer.send_in_transaction(Message(TOPIC, name.encode()))
            if not self._history.sent[name].is_void and sent is not None:
                self._stored(name)
            return
        self._ask(Sent(name, TOPIC, asked_at=now))
        await producer.send(Message(TOPIC, name.encode() + b" " * chance.choice((0, 0, 100, 3000))))
        self._stored(name)

    async def _send_ordered(self, producer: TransactionProducer, program: Program, chance: Random) -> None:
        key = f"{program.name}-{chance.randrange(KEYS)}"
        number = self._keys.get(key, 0)
        name = f"{key}:{number}"
        self._ask(Sent(name, TOPIC, key, number, self._world.loop.time()))
        await producer.send_with(Message(TOPIC, name.encode(), sharding_key=key), select_by_hash, key)
        self._stored(name)
        self._keys[key] = number + 1

    def _ask(self, message: Sent) -> None:
        self._history.ask(message)

    def _stored(self, name: str) -> None:
        self._history.acknowledge(name, self._world.loop.time())

    # -- consumers ----------------------------------------------------------------------------------------------

    async def _push(self, program: Program) -> None:
        group = program.name.partition("-")[0]
        is_orderly = group == "orderly"
        chance = Random(f"{self._plan.seed} {program.name} handler")

        async def handle(message: MessageExt) -> None:
            queue = (message.broker_name, message.topic, message.queue_id)
            if is_orderly:
                self._begin(group, queue, program.name)
            try:
                await asyncio.sleep(_HANDLER_S * chance.random())
                if chance.random() < self._plan.failures:
                    raise RuntimeError("a handler fails")
                self._received(message, group, program.name)
            finally:
                if is_orderly:
                    self._end(group, queue)

        consumer = PushConsumer(
            self._names,
            group,
            handle,
            orderly=is_orderly,
            consume_from_where=CONSUME_FROM_FIRST_OFFSET,
            concurrency=8,
        )
        consumer.subscribe(TOPIC)
        async with consumer:
            assert program.ending is not None
            await program.ending.wait()

    async def _pop(self, program: Program) -> None:
        consumer = SimpleConsumer(self._names, "pop")
        consumer.subscribe(TOPIC)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                try:
                    for message in await consumer.receive(invisible_ms=10_000, await_ms=5_000):
                        self._received(message, "pop", program.name)
                        await consumer.ack(message)
                except GantryError as e:
                    self._history.fail(self._world.loop.time(), program.name, e)
                    await asyncio.sleep(_AGAIN_S)

    async def _lite(self, program: Program) -> None:
        consumer = LitePullConsumer(self._names, "lite", consume_from_where=CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe(TOPIC)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                try:
                    for message in await consumer.poll(5_000):
                        self._received(message, "lite", program.name)
                except GantryError as e:
                    self._history.fail(self._world.loop.time(), program.name, e)
                    await asyncio.sleep(_AGAIN_S)

    def _received(self, message: MessageExt, group: str, by: str) -> None:
        name = message.body.decode().strip()
        at = self._world.loop.time()
        self._history.receive(
            Received(name, group, at, by, message.broker_name, message.queue_id, message.queue_offset)
        )

    def _begin(self, group: str, queue: tuple[str, str, int], by: str) -> None:
        died = self._broker_died.get(queue[0])
        if died is not None and self._world.loop.time() < died + _LOCK_LIFE_S:
            return
        for other in self._history.handling:
            if (other.group, other.queue) == (group, queue):
                self._history.problems.append(
                    f"at {self._world.loop.time():.3f} s two handlers of {group} are at work on {queue}: "
                    f"{other.by} and {by}"
                )
        self._history.handling.append(Handling(group, queue, by))

    def _end(self, group: str, queue: tuple[str, str, int]) -> None:
        for place, other in enumerate(self._history.handling):
            if (other.group, other.queue) == (group, queue):
                del self._history.handling[place]
                return

    def died(self, program: Program) -> None:
        """Its handlers are no more, or its locks."""
        if program.name.startswith("broker"):
            self._broker_died[program.name] = self._world.loop.time()
        self._history.handling = [one for one in self._history.handling if one.by != program.name]
