"""Producers and consumers of a run. They record all sends and deliveries in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import SendStatus
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt
from sim.cluster import Program, Servers
from sim.history import Delay, History, Sent
from sim.plan import QUEUES, TOPIC, Plan, broker_name
from sim.scene import AGAIN_S, Scene, has_wrong_clocks
from sim.system import EPOCH_S, World
from sim.watch import Watch
from sim.workloads import EXTRAS

KEYS = 4
_HANDLER_S = 0.02
#: Time from the assignment of a queue until its consumer has handled all messages, in seconds. Offsets are committed
#: each 5 s, so a killed consumer leaves few of them.
_READ_S = 5.0


class Decisions:
    """TransactionListener that derives the outcome of a transaction from its name."""

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
            return LocalTransactionState.UNKNOWN
        return LocalTransactionState.COMMIT_MESSAGE


class Clients:
    """All clients of a run, as programs on hosts of their own."""

    def __init__(self, world: World, plan: Plan, history: History, servers: Servers) -> None:
        self._world = world
        self._plan = plan
        self._history = history
        self._servers = servers
        self._names = servers.addresses
        self.scene = Scene(world, plan, history, servers)
        self.watch = Watch(self.scene)
        #: Problems that the extra workloads reported at the end.
        self.problems: list[str] = []
        #: Extra workloads of this seed.
        self.extras = [EXTRAS[name](self.scene) for name in plan.extras]
        self._setup = Program(world.host("setup", "10.0.8.1"), self._make_topic)
        #: Set when every broker has the topic.
        self.is_set_up = asyncio.Event()
        #: Start time of the producers, in seconds. The times of faults are relative to it.
        self.sending_at = 0.0
        #: Time at which the clients were stopped, in seconds.
        self.ended_at = 0.0
        #: Names of the producers that have sent all messages.
        self.done: set[str] = set()
        #: Next message number of each producer. A restarted producer continues with it.
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
        for group in self.groups:
            self.scene.reads[group] = TOPIC
        self.consumers += [program for extra in self.extras for program in extra.programs]

    @property
    def all(self) -> list[Program]:
        return self.producers + self.consumers

    @property
    def groups(self) -> list[str]:
        """Returns the groups that have members."""
        return [group for group, count in self._plan.consumers.items() if count]

    def is_done(self) -> bool:
        """Returns true if all messages are sent, and each group has received all acknowledged ones."""
        return (
            len(self.done) == len(self.producers)
            and all(self.scene.has_all(group) for group in self.scene.reads)
            and (not self._plan.consumers["orderly"] or self._has_orderly_readers())
            and all(extra.has_sent and extra.is_done() for extra in self.extras)
        )

    def _has_orderly_readers(self) -> bool:
        """Returns true if each queue has an orderly consumer that has had time to read it.

        As in Java, a broker keeps the locks of a killed consumer for a minute. Only then can another consumer continue
        at the committed offset, and commit the messages that the killed one has handled.
        """
        scene = self.scene
        names = {broker_name(program.name) for program in self._servers.brokers}
        places = [(name, TOPIC, queue_id) for name in names for queue_id in range(QUEUES)]
        has_read = scene.now() > scene.assigned_at.get("orderly", 0.0) + _READ_S
        return has_read and all(scene.readers["orderly"][place] for place in places)

    def set_up(self) -> None:
        """Creates the topic, so that groups assign its queues before the first message."""
        self._setup.start()
        self._watching = self._world.loop.create_task(self.watch.main())

    async def end(self) -> None:
        """Stops all clients and servers with SIGTERM."""
        self.ended_at = self._world.loop.time()
        self._watching.cancel()
        # The checks need running servers.
        self.problems = [problem for extra in self.extras for problem in extra.problems()]
        self.problems += [
            f"{type(extra).__name__} has not got to its end" for extra in self.extras if not extra.is_done()
        ]
        await self.watch.end_all(self.all)

    async def _make_topic(self, program: Program) -> None:
        async with AdminClient(self._names) as admin:
            while not self._servers.have_topic(TOPIC):
                try:
                    await admin.ensure_topic(TOPIC, queues=QUEUES)
                except GantryError:
                    await asyncio.sleep(AGAIN_S)
        self.is_set_up.set()

    # -- producers ----------------------------------------------------------------------------------------------

    async def _produce(self, program: Program) -> None:
        chance = Random(f"{self._plan.seed} {program.name} {self._next.get(program.name, 0)}")
        listener = Decisions(self._history)
        self.sending_at = self.sending_at or self._world.loop.time()
        assert program.ending is not None
        async with TransactionProducer(self._names, "producers", listener) as producer:
            while (number := self._next.get(program.name, 0)) < self._plan.messages:
                if program.ending.is_set():
                    return
                try:
                    await self._send(producer, program, number, chance)
                except GantryError as e:
                    self._history.fail(self._world.loop.time(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
                await asyncio.sleep(self._plan.pause_s * chance.random() * 2)
            # The producer stays connected, because brokers may check its transactions. It requests the queues first,
            # because a restarted producer may have nothing left to send.
            await self.scene.until_done(program, lambda: producer.queues(TOPIC))
            self.done.add(program.name)
            await program.ending.wait()

    async def _send(self, producer: TransactionProducer, program: Program, number: int, chance: Random) -> None:
        plan, name = self._plan, f"{program.name}.{number}"
        kind = chance.random()
        if kind < plan.ordered:
            await self._send_ordered(producer, program, chance)
            self._next[program.name] = number + 1
            return
        # The number is used even if the send fails: after an unknown outcome, the name must not be sent again.
        self._next[program.name] = number + 1
        kind -= plan.ordered
        now = self._world.loop.time()
        if kind < plan.delayed:
            self.scene.stored(name, await producer.send(self._delayed(program, name, chance)))
            return
        kind -= plan.delayed
        if kind < plan.batches:
            names = [f"{name}.{part}" for part in range(chance.randrange(2, 20))]
            for part in names:
                self.scene.ask(Sent(part, TOPIC, asked_at=now))
            result = await producer.send_batch([Message(TOPIC, part.encode()) for part in names])
            for place, part in enumerate(names):
                self.scene.stored(part, result, place)
            return
        kind -= plan.batches
        if kind < plan.transactions:
            self.scene.ask(Sent(name, TOPIC, asked_at=now, is_void=chance.random() < 0.3))
            sent = await producer.send_in_transaction(Message(TOPIC, name.encode()))
            # If the half message isn't safely stored, the producer rolls it back.
            if not self._history.sent[name].is_void and sent.result.status is SendStatus.SEND_OK:
                self.scene.stored(name, sent.result)
            return
        kind -= plan.transactions
        self.scene.ask(Sent(name, TOPIC, asked_at=now))
        if kind < plan.oneway:
            await producer.send_oneway(Message(TOPIC, name.encode()))
            if not plan.faults and "rate-limits" not in plan.extras:
                # A oneway send has no acknowledgement, but without faults and rate limits the message arrives.
                self.scene.stored(name)
            return
        body = name.encode() + b" " * chance.choice((0, 0, 100, 3000))
        self.scene.lengths[name] = len(body)
        self.scene.stored(name, await producer.send(Message(TOPIC, body)), 0)

    def _delayed(self, program: Program, name: str, chance: Random) -> Message:
        now, delay_s = self._world.loop.time(), chance.choice((1.0, 3.0, 10.0))
        sent = Sent(name, TOPIC, asked_at=now, not_before=now + delay_s)
        if chance.random() < 0.5:
            sent.delay, level = Delay.LEVEL, {1.0: 1, 3.0: 2, 10.0: 3}[delay_s]
            sent.not_before = now + {1: 1, 2: 5, 3: 10}[level]
            message = Message(TOPIC, name.encode(), delay_level=level)
        elif name.endswith("3") and has_wrong_clocks(self._plan):
            sent.delay, (sent.clock_error_s, _) = Delay.AT, program.host.clock_errors(now, now)
            at_ms = int((EPOCH_S + now + sent.clock_error_s + delay_s) * 1000)
            message = Message(TOPIC, name.encode(), deliver_at=at_ms)
        else:
            sent.delay = Delay.AFTER
            message = Message(TOPIC, name.encode(), delay=delay_s)
        self.scene.ask(sent)
        return message

    async def _send_ordered(self, producer: TransactionProducer, program: Program, chance: Random) -> None:
        key = f"{program.name}-{chance.randrange(KEYS)}"
        number = self._keys.get(key, 0)
        name = f"{key}:{number}"
        self.scene.ask(Sent(name, TOPIC, key, number, self._world.loop.time()))
        message = Message(TOPIC, name.encode(), sharding_key=key)
        self.scene.stored(name, await producer.send(message, select=select_by_hash(key)), 0)
        self._keys[key] = number + 1

    # -- consumers ----------------------------------------------------------------------------------------------

    async def _push(self, program: Program) -> None:
        group = program.name.partition("-")[0]
        is_orderly = group == "orderly"
        chance = Random(f"{self._plan.seed} {program.name} handler")

        async def handle(message: MessageExt) -> None:
            queue = (message.broker_name, message.topic, message.queue_id)
            if is_orderly:
                self.scene.begin(group, queue, program.name)
            try:
                await asyncio.sleep(_HANDLER_S * chance.random())
                if chance.random() < self._plan.failures:
                    raise RuntimeError("a handler fails")
                self.scene.receive(message, group, program.name)
            finally:
                if is_orderly:
                    self.scene.end(group, queue, program.name)

        consumer = PushConsumer(
            self._names,
            group,
            handle,
            orderly=is_orderly,
            start_from="earliest",
            concurrency=8,
            on_assigned=partial(self.scene.assigned, group, program.name),
            on_revoked=partial(self.scene.revoked, group, program.name),
        )
        consumer.subscribe(TOPIC)
        self.scene.joined(group, program.name)
        async with consumer:
            assert program.ending is not None
            await program.ending.wait()
        self.scene.left(group, program.name)

    async def _pop(self, program: Program) -> None:
        consumer = SimpleConsumer(self._names, "pop")
        consumer.subscribe(TOPIC)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                try:
                    for message in await consumer.receive(invisible_time=10, timeout=5):
                        self.scene.receive(message, "pop", program.name)
                        await consumer.ack(message)
                except GantryError as e:
                    self._history.fail(self._world.loop.time(), program.name, e)
                    await asyncio.sleep(AGAIN_S)

    async def _lite(self, program: Program) -> None:
        consumer = LitePullConsumer(
            self._names,
            "lite",
            start_from="earliest",
            on_assigned=partial(self.scene.assigned, "lite", program.name),
            on_revoked=partial(self.scene.revoked, "lite", program.name),
        )
        consumer.subscribe(TOPIC)
        self.scene.joined("lite", program.name)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                try:
                    for message in await consumer.poll(timeout=5):
                        if not message.is_damaged:
                            self.scene.receive(message, "lite", program.name)
                except GantryError as e:
                    self._history.fail(self._world.loop.time(), program.name, e)
                    await asyncio.sleep(AGAIN_S)
            # The messages of the last poll count as consumed at the next poll or commit.
            try:
                await consumer.commit()
            except GantryError as e:
                self._history.fail(self._world.loop.time(), program.name, e)
        self.scene.left("lite", program.name)

    def died(self, program: Program) -> None:
        self.scene.died(program)
