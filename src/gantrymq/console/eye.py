"""Eye: the cluster as one user sees it: each question is signed with this user's keys.

What all pages need of the whole cluster is gathered here, and kept for seconds: servers, topics, groups' progress.
Tables of thousands of topics and groups are read in a thread, `gatherer`, which all eyes share: pages of all users are
painted meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.admin.base import any_address
from gantrymq.client.doctor.diagnosis import diagnose
from gantrymq.client.doctor.finding import Finding
from gantrymq.console.asking import Answers, Unasked, ask_each
from gantrymq.console.gathered import Gathered
from gantrymq.console.history import History
from gantrymq.console.limited import LimitedAdmin, Limits
from gantrymq.console.settings import Settings
from gantrymq.console.works import Works
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.route import ClusterInfo
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.remoting.connection import RpcHook

T = TypeVar("T")

#: How old may be what is shown of servers, and what doctor says, s.
SERVERS_FRESH_S = 2.0
DOCTOR_FRESH_S = 60.0
#: The progress of thousands of groups takes a broker some seconds.
TABLES_WITHIN_S = 30.0
#: Brokers of which tables are read at once: each holds some megabytes meanwhile.
GATHERED_AT_ONCE = 3
_STEP = 100
#: Times that a request may take, in which the servers' figures are waited for.
_SERVERS_WAITS = 3
#: The attribute in which a topic says what messages it takes (`TopicAttributes.TOPIC_MESSAGE_TYPE_ATTRIBUTE`).
MESSAGE_TYPE = "message.type"


@dataclass(slots=True)
class Servers:
    """Who belongs to the cluster, and the figures of each broker by host:port."""

    info: ClusterInfo
    runtime: dict[str, dict[str, str]]
    unasked: list[Unasked]

    @property
    def masters(self) -> dict[str, str]:
        """host:port of each master by broker name; of a slave where there is no master."""
        addresses = {name: any_address(broker) for name, broker in sorted(self.info.broker_addr_table.items())}
        return {name: address for name, address in addresses.items() if address}


@dataclass(slots=True)
class TopicSeen:
    """One topic of all brokers together: sums of queues, what any of the brokers allows."""

    message_type: str
    read_queues: int = 0
    write_queues: int = 0
    perm: int = 0
    brokers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Topics:
    """By name."""

    seen: dict[str, TopicSeen]
    unasked: list[Unasked]


@dataclass(slots=True)
class TopicProgress:
    """Of one group in one topic, all brokers together. `oldest_ms` is the store time of the last message consumed of
    that queue among those behind where it is the oldest; 0 when that isn't known."""

    behind: int = 0
    oldest_ms: int = 0
    tps: float = 0.0


@dataclass(slots=True)
class Groups:
    """{group: {topic: its progress}}"""

    progress: dict[str, dict[str, TopicProgress]] = field(default_factory=dict)
    unasked: list[Unasked] = field(default_factory=list)


class Eye:
    """Questions of one user. `close` it in the end."""

    def __init__(
        self,
        settings: Settings,
        limits: Limits,
        hooks: Sequence[RpcHook],
        history: History | None = None,
        gatherer: LoopThread | None = None,
    ) -> None:
        self.settings = settings
        self.history = history
        self.hooks = hooks
        #: Held while a page or a download has message bodies in memory.
        self.bodies = limits.bodies
        self.admin = self._new_admin(limits)
        self._gatherer = gatherer
        #: The connections of the other thread, which has limits of its own.
        self._gathering = (
            self.admin if gatherer is None else self._new_admin(Limits(GATHERED_AT_ONCE, breakers=limits.breakers))
        )
        self.servers = Gathered(self._gather_servers, SERVERS_FRESH_S)
        self.topics = Gathered(self._gather_topics, settings.tables_fresh_s)
        self.groups = Gathered(self._gather_groups, settings.tables_fresh_s)
        self.findings = Gathered(self._gather_findings, DOCTOR_FRESH_S)
        self.works = Works()

    async def close(self) -> None:
        await self.works.close()
        await asyncio.gather(*(part.close() for part in (self.servers, self.topics, self.groups, self.findings)))
        if self._gathering is not self.admin:
            await self._there(self._gathering.close())
        await self.admin.close()

    def forget(self) -> None:
        """Something was changed by this user: what is kept may be wrong."""
        self.servers.forget()
        self.topics.forget()
        self.groups.forget()

    async def each(
        self, whom: Iterable[str], question: Callable[[str], Awaitable[T]], within_s: float | None = None
    ) -> Answers[T]:
        """Asks many, each for at most `within_s`, else the time that one question has."""
        return await ask_each(whom, question, within_s or self.settings.timeout_ms / 1000)

    # -- gathering ----------------------------------------------------------------------------------------------

    def _new_admin(self, limits: Limits) -> LimitedAdmin:
        return LimitedAdmin(
            self.settings.name_servers,
            limits,
            hooks=self.hooks,
            ssl_context=self.settings.ssl_context,
            timeout_ms=self.settings.timeout_ms,
        )

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it in the other thread, where there is one."""
        return await (work if self._gatherer is None else asyncio.wrap_future(self._gatherer.submit(work)))

    async def _gather_servers(self) -> Servers:
        info = await self.admin.cluster_info()
        addresses = [address for broker in info.broker_addr_table.values() for address in broker.broker_addrs.values()]
        answers = await self.each(addresses, self.admin.runtime_info)
        return Servers(info, answers.answers, answers.unasked)

    async def _masters(self) -> dict[str, str]:
        """{host:port: broker name}"""
        info = await self._gathering.cluster_info()
        found = {any_address(broker): name for name, broker in sorted(info.broker_addr_table.items())}
        return {address: name for address, name in found.items() if address}

    async def _find_silent_servers(self) -> None:
        """Opens the circuits of servers that don't answer: a table is waited for much longer than a figure."""
        with suppress(GantryError):
            wait_s = _SERVERS_WAITS * self.settings.timeout_ms / 1000
            await self.servers.get(wait_s, wait_s)

    async def _gather_topics(self) -> Topics:
        await self._find_silent_servers()
        return await self._there(self._all_topics())

    async def _all_topics(self) -> Topics:
        masters = await self._masters()
        seen: dict[str, TopicSeen] = {}

        async def ask(address: str) -> None:
            for number, (name, config) in enumerate((await self._gathering.topic_configs(address)).items()):
                topic = seen.get(name)
                if topic is None:
                    topic = seen[name] = TopicSeen(message_type(config))
                topic.read_queues += config.read_queue_nums
                topic.write_queues += config.write_queue_nums
                topic.perm |= config.perm
                topic.brokers.append(masters[address])
                if not number % _STEP:
                    await asyncio.sleep(0)

        unasked = (await self.each(masters, ask, TABLES_WITHIN_S)).unasked
        for topic in seen.values():
            topic.brokers.sort()
        return Topics(seen, unasked)

    async def _gather_groups(self) -> Groups:
        await self._find_silent_servers()
        return await self._there(self._all_groups())

    async def _all_groups(self) -> Groups:
        masters = await self._masters()
        groups = Groups()

        async def ask(address: str) -> None:
            stats = await self._gathering.broker_consume_stats(address, timeout_ms=int(TABLES_WITHIN_S * 1000))
            for number, (group, of_topics) in enumerate(stats.by_group.items()):
                known = groups.progress.setdefault(group, {})
                for of_topic in of_topics:
                    for queue, offsets in of_topic.offset_table.items():
                        progress = known.get(queue.topic)
                        if progress is None:
                            progress = known[queue.topic] = TopicProgress()
                        if offsets.lag:
                            progress.behind += offsets.lag
                            if offsets.last_timestamp and not 0 < progress.oldest_ms <= offsets.last_timestamp:
                                progress.oldest_ms = offsets.last_timestamp
                    if of_topic.offset_table:
                        known[next(iter(of_topic.offset_table)).topic].tps += of_topic.consume_tps
                if not number % _STEP:
                    await asyncio.sleep(0)

        groups.unasked = (await self.each(masters, ask, TABLES_WITHIN_S)).unasked
        return groups

    async def _gather_findings(self) -> list[Finding]:
        return await self._there(
            diagnose(
                self.settings.name_servers,
                ssl_context=self.settings.ssl_context,
                hooks=self.hooks,
                timeout_ms=self.settings.timeout_ms,
            )
        )


def message_type(config: TopicConfig) -> str:
    """What messages a topic takes."""
    return config.attributes.get(MESSAGE_TYPE, "NORMAL")
