"""Rate limits of a topic and of its groups. Clients wait, no acknowledged message is lost, and waits end in time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, GantryError
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message
from sim.cluster import BROKER_PORT, Program
from sim.history import Sent
from sim.plan import FAULTS_S
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import CLUSTER, Workload

_TOPIC, _QUEUES = "tickets", 2
_PUSH, _POP = "ushers", "inspectors"
_ROUNDS, _AT_ONCE = 12, 8
#: Limits in messages per second and broker: of the topic, and the lower ones of its groups. Eight messages at once
#: exceed each of them.
_SEND_RATES, _DELIVERY_RATES, _UNLIMITED = (4, 6), (2, 3), 1_000_000
#: Timeouts of sends and of receives, and the tolerance of both, in seconds.
_SEND_S, _RECEIVE_S, _LATE_S = 8.0, 5.0, 1.5
#: After a change of a limit, messages can still have the previous one for this time, in seconds.
_CHANGES_S = 2.0
#: Messages above the rate: the burst, one more request, and delays in the network.
_BURST = 3


class RateLimits(Workload):
    """A producer that sends in bursts, a push and a POP group, and an administrator that changes their limits."""

    network = 34
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        self._is_done = False
        #: (since, rate) of each limit, by name of the topic or group. A rate of 0 means no limit.
        self._limits: dict[str, list[tuple[float, int]]] = defaultdict(list)
        #: Messages whose send was refused, so that they are not stored.
        self._refused: set[str] = set()
        self._late: list[str] = []
        self.add("counter", self._send)
        self.add("usher", self._push)
        self.add("inspector", self._pop)
        self.add("limiter", self._limit)
        scene.reads[_PUSH] = scene.reads[_POP] = _TOPIC

    def is_done(self) -> bool:
        return self._is_done

    async def _send(self, program: Program) -> None:
        async with self.admin() as admin:
            for name in (_TOPIC, _PUSH, _POP):
                await self._set(admin, program, name, self._rate(name))
        self._is_made.set()
        async with Producer(self.scene.names, "counters") as producer:
            for number in range(_ROUNDS):
                names = [f"{program.name}.{number}-{part}" for part in range(_AT_ONCE)]
                await asyncio.gather(*(self._send_one(producer, program, name) for name in names))
                await asyncio.sleep(self.chance.uniform(0, 2 * FAULTS_S / _ROUNDS))
        self.has_sent = True

    async def _send_one(self, producer: Producer, program: Program, name: str) -> None:
        began = self.scene.now()
        self.scene.ask(Sent(name, _TOPIC, asked_at=began))
        try:
            self.scene.stored(name, await producer.send(Message(_TOPIC, name.encode()), timeout=_SEND_S), 0)
        except GantryError as e:
            self.scene.history.fail(self.scene.now(), program.name, e)
            if isinstance(e, BrokerError):
                self._refused.add(name)
        self._look_at_wait(f"the send of {name}", began, _SEND_S)

    def _look_at_wait(self, what: str, began: float, timeout_s: float) -> None:
        took_s = self.scene.now() - began
        if took_s > timeout_s + _LATE_S:
            self._late.append(f"{what} took {took_s:.1f} s, with a timeout of {timeout_s:.0f} s")

    async def _push(self, program: Program) -> None:
        await self._is_made.wait()
        await self.read_all(program, _TOPIC, _PUSH)

    async def _pop(self, program: Program) -> None:
        await self._is_made.wait()
        consumer = SimpleConsumer(self.scene.names, _POP)
        consumer.subscribe(_TOPIC)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                began = self.scene.now()
                try:
                    messages = await consumer.receive(invisible_time=20, timeout=_RECEIVE_S)
                    self._look_at_wait("a receive", began, _RECEIVE_S)
                    for message in messages:
                        self.scene.receive(message, _POP, program.name)
                        await consumer.ack(message)
                except GantryError as e:
                    self._look_at_wait("a receive", began, _RECEIVE_S)
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)

    # -- the limits ---------------------------------------------------------------------------------------------

    async def _limit(self, program: Program) -> None:
        await self._is_made.wait()
        async with self.admin() as admin:
            for _ in range(3):
                await asyncio.sleep(self.chance.uniform(10, 20))
                name = self.chance.choice((_TOPIC, _PUSH, _POP))
                await self._set(admin, program, name, self._rate(name))
            if self.chance.random() < 0.5:
                await self._limit_hosts(admin, program)
            # Without a limit, all waiting messages arrive.
            for name in (_TOPIC, _PUSH, _POP):
                await self._set(admin, program, name, 0)
        self._is_done = True

    def _rate(self, name: str) -> int:
        return self.chance.choice(_SEND_RATES if name == _TOPIC else _DELIVERY_RATES)

    async def _set(self, admin: AdminClient, program: Program, name: str, rate: int) -> None:
        self._limits[name].append((self.scene.now(), 0))
        # Brokers refuse to remove an attribute twice, so a removal could not be repeated after a failure.
        change = {"+rate.limit.messages": str(rate or _UNLIMITED)}
        if name == _TOPIC:
            topic = TopicConfig(name, _QUEUES, _QUEUES, attributes=change)
            await self.scene.until_done(program, lambda: admin.create_topic(topic, cluster=CLUSTER))
        else:
            group = SubscriptionGroupConfig(name, attributes=change)
            await self.scene.until_done(program, lambda: admin.create_group(group, cluster=CLUSTER))
        self._limits[name].append((self.scene.now(), rate))
        self.scene.history.note(self.scene.now(), f"{name} is limited to {rate}")

    async def _limit_hosts(self, admin: AdminClient, program: Program) -> None:
        """Limits all client hosts for a while, those of the standard programs, too."""
        for rate in ("20", "0"):
            for broker in self.scene.servers.brokers:
                address = [f"{broker.host.address}:{BROKER_PORT}"]
                await self.scene.until_done(
                    program,
                    lambda: admin.update_broker_config(address, {"clientRateLimitMessages": rate}),  # noqa: B023
                )
            await asyncio.sleep(self.chance.uniform(5, 15))

    # -- checks -------------------------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        yield from self._late[:5]
        received = [one for one in self.scene.history.received if one.group in (_PUSH, _POP)]
        for name in sorted(self._refused & {one.name for one in received}):
            yield f"{name} was refused, and was delivered"
        if self.scene.has_server_faults or self.scene.plan.mode:
            # A broker that restarts forgets debts, and slaves have limits of their own.
            return
        sent = [(one.broker, one.stored_at) for one in self.scene.history.sent.values() if one.topic == _TOPIC]
        yield from self._too_fast(_TOPIC, [(broker, at) for broker, at in sent if at is not None])
        for group in (_PUSH, _POP):
            yield from self._too_fast(group, [(one.broker, one.at) for one in received if one.group == group])

    def _too_fast(self, name: str, events: list[tuple[str, float]]) -> Iterator[str]:
        """Yields one violation of each limit of this topic or group: more messages in some time than it allows."""
        limits = [*self._limits[name], (self.scene.now(), 0)]
        for (since, rate), (until, _) in pairwise(limits):
            times: dict[str, list[float]] = defaultdict(list)
            for broker, at in events:
                if rate and since + _CHANGES_S < at < until:
                    times[broker].append(at)
            for broker, ats in sorted(times.items()):
                problem = _window(sorted(ats), rate)
                if problem:
                    yield f"{broker} exceeded the limit of {name}, {rate} messages a second: {problem}"


def _window(times: list[float], rate: int) -> str:
    """Returns a description of a time in which there are too many events, or an empty text."""
    for first, begin in enumerate(times):
        for last in range(first + _BURST, len(times)):
            if last - first + 1 > rate * (times[last] - begin) + _BURST:
                return f"{last - first + 1} in {times[last] - begin:.2f} s"
    return ""
