"""The cluster from the view of one logged-in user, whose keys sign every request.

The view caches data of the whole cluster for some seconds, for several pages: servers, topics, progress of groups. All
views share a thread that decodes tables of thousands of topics and groups, which would block the event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.admin.base import any_address
from gantrymq.client.credentials import Credentials
from gantrymq.client.doctor.diagnosis import diagnose
from gantrymq.client.doctor.finding import Finding
from gantrymq.console.cached_value import CachedValue, CachedValues
from gantrymq.console.fan_out import Responses, Unasked, query_each
from gantrymq.console.history import History
from gantrymq.console.operations import Operations
from gantrymq.console.request_limits import LimitedAdmin, RequestLimits
from gantrymq.console.settings import Settings
from gantrymq.errors import ClientError, GantryError
from gantrymq.protocol.bodies.route import ClusterInfo
from gantrymq.protocol.bodies.stats import TopicStatsTable
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX

T = TypeVar("T")

#: Age at which metrics of servers and findings of doctor are queried again, s.
SERVERS_FRESH_S = 2.0
DOCTOR_FRESH_S = 60.0
#: Timeout of a table, s. A broker needs some seconds for the progress of thousands of groups.
TABLES_WITHIN_S = 30.0
#: Largest number of brokers whose tables are read at once. Each table takes some megabytes of memory.
GATHERED_AT_ONCE = 3
_STEP = 100
#: Counter of a broker: total size of the messages that were sent to a topic.
_PUT_SIZE = "TOPIC_PUT_SIZE"
#: Largest valid size of a topic, bytes.
_MAX_BYTES = 2.0**63
#: A valid retention time, h.
_HOURS = re.compile(r"[0-9]{1,9}")
#: Timeout of the servers' metrics, as a multiple of the timeout of one request.
_SERVERS_WAITS = 3
#: Age at which the retention times of brokers are queried again, s.
RETENTION_FRESH_S = 60.0
#: Largest number of topics whose figures are cached.
MAX_FIGURES = 1000
#: Largest number of groups whose dead-letter messages are counted. Pages show how many groups are left out.
MAX_COUNTED = 1000
#: Topic attribute with the message type (`TopicAttributes.TOPIC_MESSAGE_TYPE_ATTRIBUTE`).
MESSAGE_TYPE = "message.type"


@dataclass(slots=True)
class Servers:
    """The registered brokers, and the runtime metrics of each by host:port."""

    info: ClusterInfo
    runtime: dict[str, dict[str, str]]
    unasked: list[Unasked]

    @property
    def masters(self) -> dict[str, str]:
        """Returns the address (host:port) of each master by broker name; that of a slave if there is no master."""
        addresses = {name: any_address(broker) for name, broker in sorted(self.info.broker_addr_table.items())}
        return {name: address for name, address in addresses.items() if address}


@dataclass(slots=True)
class TopicSeen:
    """One topic on all brokers: the sum of its queues, and the union of its permissions."""

    message_type: str
    read_queues: int = 0
    write_queues: int = 0
    perm: int = 0
    brokers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Topics:
    """All topics by name."""

    seen: dict[str, TopicSeen]
    unasked: list[Unasked]


@dataclass(slots=True)
class TopicFigures:
    """Figures of one topic on all brokers. `newest_ms` is the time of the last write, 0 if there was none.

    `bytes` is an estimate: all messages times the mean size of the last day's messages. None if a broker with messages
    does not report a mean size. The figures do not include the brokers in `unasked`, whose requests failed.
    """

    messages: int
    in_tps: float
    newest_ms: int
    bytes: int | None
    unasked: list[Unasked]


@dataclass(slots=True)
class TopicProgress:
    """Progress of one group in one topic on all brokers.

    `oldest_ms` is the earliest store time among the last consumed messages of the queues with lag; 0 if unknown.
    """

    lag: int = 0
    oldest_ms: int = 0
    tps: float = 0.0


@dataclass(slots=True)
class Groups:
    """The progress of all groups: {group: {topic: progress}}."""

    progress: dict[str, dict[str, TopicProgress]] = field(default_factory=dict)
    unasked: list[Unasked] = field(default_factory=list)


@dataclass(slots=True)
class DeadLetterStats:
    """The offsets of all dead-letter queues by group."""

    stats: dict[str, TopicStatsTable]
    unasked: list[Unasked]


class ClusterView:
    """Sends the requests of one user and caches the responses. The owner must call `close`."""

    def __init__(
        self,
        settings: Settings,
        limits: RequestLimits,
        credentials: Credentials | None,
        history: History | None = None,
        gatherer: LoopThread | None = None,
    ) -> None:
        self.settings = settings
        self.history = history
        self.credentials = credentials
        #: Semaphore that a page or a download holds while it has message bodies in memory.
        self.bodies = limits.bodies
        self.admin = self._new_admin(limits)
        self._gatherer = gatherer
        #: Client that the other thread uses. It has separate limits.
        self._gathering = (
            self.admin
            if gatherer is None
            else self._new_admin(RequestLimits(GATHERED_AT_ONCE, breakers=limits.breakers))
        )
        self.servers = CachedValue(self._gather_servers, SERVERS_FRESH_S)
        self.topics = CachedValue(self._gather_topics, settings.tables_fresh_s)
        self.groups = CachedValue(self._gather_groups, settings.tables_fresh_s)
        self.dead_letters = CachedValue(self._gather_dead_letter_stats, settings.tables_fresh_s)
        self.topic_figures = CachedValues(self._gather_topic_figures, settings.tables_fresh_s, MAX_FIGURES)
        #: Retention time (`fileReservedTime`) by broker name, h. Omits brokers that do not report their configuration.
        self.retention = CachedValue(self._gather_retention, RETENTION_FRESH_S)
        self.findings = CachedValue(self._gather_findings, DOCTOR_FRESH_S)
        self.operations = Operations()

    async def close(self) -> None:
        await self.operations.close()
        tables = (self.servers, self.topics, self.groups, self.dead_letters)
        cached = (*tables, self.topic_figures, self.retention, self.findings)
        await asyncio.gather(*(part.close() for part in cached))
        if self._gathering is not self.admin:
            await self._in_thread(self._gathering.close())
        await self.admin.close()

    def forget(self) -> None:
        """Invalidates the caches after a change by this user."""
        self.servers.forget()
        self.topics.forget()
        self.groups.forget()
        self.dead_letters.forget()
        self.topic_figures.forget()
        self.retention.forget()

    async def each(
        self, keys: Iterable[str], request: Callable[[str], Awaitable[T]], within_s: float | None = None
    ) -> Responses[T]:
        """Sends a request for each key concurrently. `within_s` is the timeout of each, s.

        Default: the timeout of one request.
        """
        return await query_each(keys, request, within_s or self.settings.timeout_ms / 1000)

    async def each_holder(self, topic: str, request: Callable[[str], Awaitable[T]]) -> Responses[T]:
        """Sends a request to one replica of each broker with the topic. A failed broker does not affect the others.

        If all fail, raises the error of the only broker, or a ClientError with the reasons of all. Also raises
        NoRouteInfo, or BrokerUnavailable if there is no broker. Only the requests have timeouts. A timeout starts after
        the wait for the request limits.
        """
        addresses = await self.admin.holders(topic)
        if len(addresses) == 1:
            responses: Responses[T] = Responses()
            responses.results[addresses[0]] = await request(addresses[0])
            return responses
        responses = await query_each(addresses, request, None)
        if not responses.results:
            raise ClientError("; ".join(f"{one.what}: {one.why}" for one in responses.unasked))
        return responses

    async def topic_stats(self, topic: str) -> tuple[TopicStatsTable, list[Unasked]]:
        """Returns the offsets of a topic's queues, and the failed brokers. Raises the same errors as `each_holder`."""
        responses = await self.each_holder(topic, lambda address: self.admin.topic_stats(topic, broker=address))
        total = TopicStatsTable()
        for of_broker in responses.results.values():
            total.offset_table |= of_broker.offset_table
            total.topic_put_tps += of_broker.topic_put_tps
        return total, responses.unasked

    async def groups_of_topic(self, topic: str) -> tuple[list[str], list[Unasked]]:
        """Returns the groups that subscribe to a topic or have offsets in it, sorted, and the failed brokers.

        Raises the same errors as `each_holder`.
        """
        responses = await self.each_holder(topic, lambda address: self.admin.groups_of_topic(topic, broker=address))
        return sorted({group for of_broker in responses.results.values() for group in of_broker}), responses.unasked

    # -- queries ----------------------------------------------------------------------------------------------

    def _new_admin(self, limits: RequestLimits) -> LimitedAdmin:
        return LimitedAdmin(
            self.settings.name_servers,
            limits,
            credentials=self.credentials,
            ssl_context=self.settings.ssl_context,
            timeout_ms=self.settings.timeout_ms,
        )

    async def _in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the other thread if there is one."""
        return await (work if self._gatherer is None else asyncio.wrap_future(self._gatherer.submit(work)))

    async def _gather_servers(self) -> Servers:
        info = await self.admin.cluster_info()
        addresses = [address for broker in info.broker_addr_table.values() for address in broker.broker_addrs.values()]
        answers = await self.each(addresses, self.admin.runtime_info)
        return Servers(info, answers.results, answers.unasked)

    async def _masters(self) -> dict[str, str]:
        """Returns {host:port of a master: broker name}."""
        info = await self._gathering.cluster_info()
        found = {any_address(broker): name for name, broker in sorted(info.broker_addr_table.items())}
        return {address: name for address, name in found.items() if address}

    async def _find_silent_servers(self) -> None:
        """Opens the circuits of servers that do not respond to a short request.

        Otherwise the requests for tables, with a much longer timeout, would wait for these servers.
        """
        with suppress(GantryError):
            wait_s = _SERVERS_WAITS * self.settings.timeout_ms / 1000
            await self.servers.get(wait_s, wait_s)

    async def _gather_topics(self) -> Topics:
        await self._find_silent_servers()
        return await self._in_thread(self._all_topics())

    async def _all_topics(self) -> Topics:
        """Reads the topics of all brokers."""
        masters = await self._masters()
        seen: dict[str, TopicSeen] = {}

        async def read(address: str) -> None:
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

        unasked = (await self.each(masters, read, TABLES_WITHIN_S)).unasked
        for topic in seen.values():
            topic.brokers.sort()
        return Topics(seen, unasked)

    async def _gather_dead_letter_stats(self) -> DeadLetterStats:
        topics = await self.topics.get(TABLES_WITHIN_S, TABLES_WITHIN_S)
        if topics is None:
            return DeadLetterStats({}, [Unasked("topics", f"no answer in {TABLES_WITHIN_S:g} s")])
        found = sorted(name for name in topics.seen if name.startswith(DLQ_TOPIC_PREFIX))
        # A failing request ends within the timeout of one request.
        answers = await self.each(found[:MAX_COUNTED], self.topic_stats, 2 * self.settings.timeout_ms / 1000)
        unasked = [
            *topics.unasked,
            *answers.unasked,
            *(one for _, failed in answers.results.values() for one in failed),
        ]
        if len(found) > MAX_COUNTED:
            unasked.append(Unasked(f"{len(found) - MAX_COUNTED} groups", f"only {MAX_COUNTED} are counted"))
        stats = {topic.removeprefix(DLQ_TOPIC_PREFIX): one for topic, (one, _) in answers.results.items()}
        return DeadLetterStats(stats, list(dict.fromkeys(unasked)))

    async def _gather_topic_figures(self, name: str) -> TopicFigures:
        stats, unasked = await self.topic_stats(name)
        counts: dict[str, int] = {}
        for queue, offsets in stats.offset_table.items():
            counts[queue.broker_name] = counts.get(queue.broker_name, 0) + offsets.max_offset - offsets.min_offset
        servers = await self.servers.get()
        masters = servers.masters if servers is not None else {}
        held = [broker for broker, count in counts.items() if count and broker in masters]
        sizes = await self.each(held, lambda broker: self.admin.broker_stats(masters[broker], _PUT_SIZE, name))
        means = {broker: one.stats_day.avgpt for broker, one in sizes.results.items() if one is not None}
        is_known = all(means.get(broker) for broker, count in counts.items() if count)
        total_bytes = sum(count * means[broker] for broker, count in counts.items() if count) if is_known else 0.0
        return TopicFigures(
            sum(counts.values()),
            stats.topic_put_tps,
            max((offsets.last_update_timestamp for offsets in stats.offset_table.values()), default=0),
            # The limit excludes invalid means: int() of an infinite number raises OverflowError.
            int(min(total_bytes, _MAX_BYTES)) if is_known else None,
            unasked,
        )

    async def _gather_retention(self) -> dict[str, int]:
        # Does not use `servers`: metrics can take longer than a page waits, and then an empty result would be cached.
        masters = Servers(await self.admin.cluster_info(), {}, []).masters
        configs = await self.each(masters, lambda broker: self.admin.broker_config(masters[broker]))
        texts = {broker: config.get("fileReservedTime", "") for broker, config in configs.results.items()}
        return {broker: int(text) for broker, text in texts.items() if _HOURS.fullmatch(text)}

    async def _gather_groups(self) -> Groups:
        await self._find_silent_servers()
        return await self._in_thread(self._all_groups())

    async def _all_groups(self) -> Groups:
        """Reads the progress of all groups from all brokers."""
        masters = await self._masters()
        groups = Groups()

        async def read(address: str) -> None:
            stats = await self._gathering.broker_consume_stats(address, timeout=TABLES_WITHIN_S)
            for number, (group, of_topics) in enumerate(stats.by_group.items()):
                known = groups.progress.setdefault(group, {})
                for of_topic in of_topics:
                    for queue, offsets in of_topic.offset_table.items():
                        progress = known.get(queue.topic)
                        if progress is None:
                            progress = known[queue.topic] = TopicProgress()
                        if offsets.lag:
                            progress.lag += offsets.lag
                            if offsets.last_timestamp and not 0 < progress.oldest_ms <= offsets.last_timestamp:
                                progress.oldest_ms = offsets.last_timestamp
                    if of_topic.offset_table:
                        known[next(iter(of_topic.offset_table)).topic].tps += of_topic.consume_tps
                if not number % _STEP:
                    await asyncio.sleep(0)

        groups.unasked = (await self.each(masters, read, TABLES_WITHIN_S)).unasked
        return groups

    async def _gather_findings(self) -> list[Finding]:
        return await self._in_thread(
            diagnose(
                self.settings.name_servers,
                ssl_context=self.settings.ssl_context,
                credentials=self.credentials,
                timeout_ms=self.settings.timeout_ms,
            )
        )


def message_type(config: TopicConfig) -> str:
    """Returns the message type of a topic."""
    return config.attributes.get(MESSAGE_TYPE, "NORMAL")
