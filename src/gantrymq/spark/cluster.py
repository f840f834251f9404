"""Cluster: what Spark's driver and tasks ask of brokers, each request tried again while its broker is away."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from gantrymq.background.event_loop import new_event_loop
from gantrymq.client.broker_api import PullResult, PullStatus, SendResult, SendStatus, is_unconfirmed, unconfirmed
from gantrymq.client.routes import no_writable_queue, read_queues, write_queues
from gantrymq.errors import (
    BrokerError,
    BrokerUnavailable,
    ClientError,
    ConnectFailed,
    GantryError,
    NoRouteInfo,
    RemotingError,
    RouteNotReady,
    SendOutcomeUnknown,
)
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID, ClusterInfo, TopicList, TopicRouteData
from gantrymq.protocol.bodies.stats import QueryConsumeQueueResponseBody, max_offsets
from gantrymq.protocol.bodies.topic_config import PERM_WRITE
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.namesrv import GetKVConfigResponseHeader, KVConfigRequestHeader
from gantrymq.protocol.headers.query import QueryConsumeQueueRequestHeader
from gantrymq.protocol.headers.send import GetWriterQueuesRequestHeader, GetWriterQueuesResponseHeader
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.protocol.headers.transaction import EndTransactionRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.record import unpacker
from gantrymq.protocol.refusals import broker_error
from gantrymq.protocol.row_ids import LAST_ROW_FIELD
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark.name_servers import BUSY, NameServers
from gantrymq.spark.offsets import FirstMessage
from gantrymq.spark.security import Security

log = peer_log(__name__)

#: A pull may have to come from the broker's disk.
PULL_TIMEOUT_MS = 15_000
SEND_TIMEOUT_MS = 10_000
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
#: What answers to sends say when the master has the messages.
_STORED = frozenset(status.value for status in SendStatus)

_offset_and_time = unpacker("queue_offset", "store_timestamp")

T = TypeVar("T")


class NoBrokers(BrokerUnavailable):
    """No broker has registered at a NameServer, which has just started."""


class BrokersAway(BrokerUnavailable):
    """NameServers don't know brokers that have a part of what is to be read."""


#: Failures that may pass: no connection or answer, a broker's word that it is busy, nobody registered yet, no master.
PASSING = (RemotingError, BrokerError, NoRouteInfo, BrokerUnavailable)
#: Where NameServers keep the configuration of order topics (`NamesrvUtil`).
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, on an event loop of its own."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


class Cluster(NameServers):
    """The brokers behind some NameServers; an async context manager.

    Reads go to a broker's master, or to a slave while the route names no master. `retry_timeout_ms` bounds how long
    one request is tried again; when it is over the last error is raised. Topics without a route are asked for again,
    too: a NameServer that has started knows them when their brokers have registered, which takes half a minute.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        retry_timeout_ms: int,
        security: Security | None = None,
        *,
        remoting: RemotingClient | None = None,
        from_slaves: bool = False,
    ) -> None:
        """`remoting` is used instead of connections of its own, and left open; `from_slaves`: pulls go to slaves."""
        self._retry_timeout_s = retry_timeout_ms / 1000
        self._is_owner = remoting is None
        super().__init__(name_servers, remoting or (security or Security()).remoting_client())
        self._from_slaves = from_slaves
        #: Slaves that didn't answer, or don't serve pulls.
        self._refusing: set[str] = set()
        #: Names of brokers that refuse GET_TOPIC_STATS_INFO.
        self._without_stats: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_owner:
            await self._remoting.close()

    # -- queues -------------------------------------------------------------------------------------------------

    async def topics(self, *, wait: bool = True) -> list[str]:
        """Every topic that a NameServer knows, sorted. Raises NoBrokers, unless it isn't to `wait` for some."""

        async def attempt() -> list[str]:
            response = await self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            topics = sorted(decode_json(response.body, TopicList).topic_list)
            if wait and not topics:
                raise NoBrokers(f"no broker has registered at {', '.join(self._routes.name_servers)}")
            return topics

        return await self.until(attempt)

    async def brokers(self) -> set[str]:
        """The names of all brokers that a NameServer knows."""
        response = await self.until(lambda: self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO))
        return set(decode_json(response.body, ClusterInfo).broker_addr_table)

    async def order_of(self, topic: str) -> str:
        """An order topic's "BROKER:QUEUES;...", which names brokers that are away, too; empty for any other topic."""
        route = self._routes.cached(topic)
        if route is not None and route.order_topic_conf:
            return route.order_topic_conf
        # NameServers leave it out of routes unless orderMessageEnable is on.
        header = KVConfigRequestHeader(namespace=ORDER_TOPIC_NAMESPACE, key=topic)
        try:
            response = await self.until(lambda: self._ask_name_server(RequestCode.GET_KV_CONFIG, header))
        except BrokerError as e:
            if e.code in BUSY:
                raise
            return ""
        return response.read_header(GetKVConfigResponseHeader).value

    async def read_queues(self, topic: str, *, wait: bool = True) -> list[MessageQueue]:
        """The topic's readable queues.

        Raises NoRouteInfo, at once unless it is to `wait`, or ClientError for a topic without any.
        """
        passing = PASSING if wait else (RemotingError, BrokerError)
        queues = read_queues(topic, await self.until(partial(self._routes.refresh, topic), passing=passing))
        if not queues:
            raise ClientError(f"topic {topic} has no readable queue: check its permission on the brokers")
        return queues

    async def write_queues(self, topic: str) -> list[MessageQueue]:
        """The writable queues; a topic that brokers would make on the first message is made of theirs.

        Raises NoRouteInfo, also while NameServers await brokers of the topic, BrokerUnavailable while no broker of the
        topic has a master, or ClientError for a topic without any.
        """

        async def attempt() -> list[MessageQueue]:
            if self._routes.awaited(topic):
                await self._routes.refresh(topic)
            return _writable(topic, self._complete(topic, await self._routes.get_or_default(topic)))

        return await self.until(attempt, topic)

    async def all_write_queues(self, topic: str) -> list[MessageQueue]:
        """The writable queues of a topic that is there, on all of its brokers.

        Raises NoRouteInfo, BrokersAway while a master is away, or ClientError for a topic without any.
        """

        async def attempt() -> TopicRouteData:
            return self._complete(topic, await self._routes.refresh(topic))

        route = await self.until(attempt)
        for data in route.queue_datas:
            if data.perm & PERM_WRITE and self._routes.master_address(data.broker_name) is None:
                raise BrokersAway(f"the master of broker {data.broker_name}, which topic {topic} is on, is away")
        return _writable(topic, route)

    def _complete(self, topic: str, route: TopicRouteData) -> TopicRouteData:
        """Returns `route`. Raises RouteNotReady if it lacks brokers that NameServers await."""
        if awaited := self.awaited_brokers(topic):
            raise RouteNotReady(topic, self._routes.name_servers, awaited)
        return route

    async def min_offset(self, queue: MessageQueue) -> int:
        return await self.ask(queue, lambda to: self._api.min_offset(to, queue.topic, queue.queue_id))

    async def max_offset(self, queue: MessageQueue) -> int:
        return await self.ask(queue, lambda to: self._api.max_offset(to, queue.topic, queue.queue_id))

    async def max_offset_once(self, queue: MessageQueue) -> int:
        """Without a second try."""
        return await self._api.max_offset(self._address(queue), queue.topic, queue.queue_id)

    async def max_offsets_once(self, queue: MessageQueue) -> dict[int, int]:
        """{queue id: max offset} of all queues that the broker of `queue` has of its topic, without a second try.

        Empty if only requests for single queues are possible: for a static topic, whose queues have parts on several
        brokers, and if access control refuses the request.
        """
        route = self._routes.cached(queue.topic)
        if route is None or route.topic_queue_mapping_by_broker or queue.broker_name in self._without_stats:
            return {}
        request = RemotingCommand.request(RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic=queue.topic))
        try:
            response = await self._remoting.call(self._address(queue), request)
        except BrokerError as e:
            if e.code in (ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
                self._without_stats.add(queue.broker_name)
            return {}
        return max_offsets(response.body)

    async def kept_end(self, queue: MessageQueue, offset: int) -> int:
        """The end of a queue that its topic may have no more; 0 where the broker has none, or nothing from `offset` on.

        Without a second try.
        """
        header = QueryConsumeQueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id, index=offset, count=1)
        # GET_MAX_OFFSET refuses queues that the topic doesn't have.
        request = RemotingCommand.request(RequestCode.QUERY_CONSUME_QUEUE, header)
        try:
            response = await self._remoting.call(self._address(queue), request)
        except BrokerError as e:
            if e.code != ResponseCode.SYSTEM_ERROR:
                raise
            return 0
        # Apache's brokers say nothing else where there is no such offset.
        return decode_json(response.body, QueryConsumeQueueResponseBody).max_queue_index if response.body else 0

    async def first_message(self, queue: MessageQueue) -> FirstMessage | None:
        """The oldest message that is left; None for a queue without any. Without a second try."""
        address = self._address(queue)
        offset = await self._api.min_offset(address, queue.topic, queue.queue_id)
        store_time_ms = await self._api.earliest_store_time(address, queue.topic, queue.queue_id)
        # Retention may have been faster.
        if store_time_ms < 0 or offset != await self._api.min_offset(address, queue.topic, queue.queue_id):
            return None
        return FirstMessage(offset, store_time_ms)

    async def store_time(self, queue: MessageQueue, offset: int, group: str) -> int | None:
        """When the message at `offset` was stored, in ms; None where there is none. Without a second try."""
        address = self._address(queue)
        result = await self._api.pull_at_once(address, queue, offset, 1, group, timeout_ms=PULL_TIMEOUT_MS)
        if result.status is not PullStatus.FOUND:
            return None
        found, store_time_ms = _offset_and_time(result.body, 0)
        # A topic that was compacted sends the one that follows.
        return store_time_ms if found == offset else None

    def has_master(self, queue: MessageQueue) -> bool:
        """Whether the master answers for the queue, who knows its last offset, and not a slave."""
        return self._routes.master_address(queue.broker_name) is not None

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return await self.ask(queue, lambda to: self._api.search_offset(to, queue.topic, queue.queue_id, timestamp_ms))

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commits `offset` for `group`, on the master and without a second try."""
        await self._routes.get(queue.topic)
        address = self._routes.master_address(queue.broker_name) or self._address(queue)
        await self._api.update_offset(address, group, queue.topic, queue.queue_id, offset)

    # -- messages -----------------------------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        group: str,
        filter_expression: tuple[str, str],
    ) -> PullResult:
        """What is there from `offset` on, at once; `filter_expression` is an expression and its type."""

        async def pull_from(address: str) -> PullResult:
            return await self._api.pull_at_once(
                address,
                queue,
                offset,
                max_messages,
                group,
                max_bytes=max_bytes,
                filter_expression=filter_expression,
                timeout_ms=PULL_TIMEOUT_MS,
            )

        if self._from_slaves and (slave := await self._slave(queue)) is not None:
            try:
                result = await pull_from(slave)
                # It may be behind: what isn't there only the master can say.
                if result.status is PullStatus.FOUND:
                    return result
            except (RemotingError, BrokerError) as e:
                log.warning("a slave of broker %s isn't read from, but its master: %s", queue.broker_name, e)
                self._refusing.add(slave)
        return await self.ask(queue, pull_from)

    async def _slave(self, queue: MessageQueue) -> str | None:
        """host:port of a slave; of several each has some of the queues."""
        if self._routes.cached(queue.topic) is None:
            await self._refresh(queue.topic)
        replicas = sorted(self._routes.all_brokers().get(queue.broker_name, {}).items())
        slaves = [address for number, address in replicas if number != MASTER_ID and address not in self._refusing]
        return slaves[queue.queue_id % len(slaves)] if slaves else None

    async def send(
        self, queues: Sequence[MessageQueue], command: Callable[[MessageQueue], RemotingCommand]
    ) -> SendResult:
        """Stores what `command` makes in the first of `queues`, or when that fails in the next, round and round.

        It may be stored more than once, when an answer gets lost.
        """
        turns = itertools.cycle(queues)

        async def attempt() -> SendResult:
            queue = next(turns)
            address = self._address(queue, master=True)
            return await self._api.send(address, command(queue), queue, timeout_ms=SEND_TIMEOUT_MS)

        return await self.until(attempt, queues[0].topic)

    async def send_rows(self, queue: MessageQueue, command: Callable[[MessageQueue], RemotingCommand]) -> int | None:
        """Stores what `command` makes in `queue` and nowhere else; the row that the queue has now (`protocol.row_ids`).

        None from a broker that doesn't say, and may have stored it more than once.
        """
        if self._routes.cached(queue.topic) is None:
            await self.until(partial(self._routes.get_or_default, queue.topic))

        async def attempt() -> int | None:
            address = self._address(queue, master=True)
            response = await self._remoting.invoke(address, command(queue), SEND_TIMEOUT_MS)
            if response.code not in _STORED:
                raise broker_error(response, address)
            if is_unconfirmed(response):
                status = SendStatus(response.code)
                raise SendOutcomeUnknown(unconfirmed("", queue.broker_name, status), address)
            last_row = response.ext_fields.get(LAST_ROW_FIELD)
            return None if last_row is None else int(last_row)

        return await self.until(attempt, queue.topic)

    async def writer_queues(self, queue: MessageQueue, writer: str, batch: int) -> str | None:
        """The list of target queues of a writer's batch (`row_ids.QUEUES_FIELD`) from the broker of `queue`.

        None if the broker has no such list. Java's brokers have none.
        """
        if self._routes.cached(queue.topic) is None:
            await self.until(partial(self._routes.get_or_default, queue.topic))
        header = GetWriterQueuesRequestHeader(topic=queue.topic, writer=writer, batch=batch)
        try:
            response = await self.ask_master(queue, RemotingCommand.request(RequestCode.GET_WRITER_QUEUES, header))
        except BrokerError as e:
            if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return None
        return response.read_header(GetWriterQueuesResponseHeader).queues

    async def end_transaction(self, queue: MessageQueue, header: EndTransactionRequestHeader) -> None:
        """Commits or rolls back a half message of `queue`, and waits for the broker's answer.

        A commit may store the message more than once, when an answer gets lost.
        """

        async def attempt() -> None:
            request = RemotingCommand.request(RequestCode.END_TRANSACTION, header)
            await self._remoting.call(self._address(queue, master=True), request, SEND_TIMEOUT_MS)

        await self.until(attempt, queue.topic)

    async def ask_master(self, queue: MessageQueue, request: RemotingCommand) -> RemotingCommand:
        """The answer of the queue's master to a request that may come more than once."""

        async def attempt() -> RemotingCommand:
            return await self._remoting.call(self._address(queue, master=True), request, SEND_TIMEOUT_MS)

        return await self.until(attempt, queue.topic)

    # -- retries ------------------------------------------------------------------------------------------------

    async def ask(self, queue: MessageQueue, request: Callable[[str], Awaitable[T]]) -> T:
        """`request` of the queue's broker, whose address may change on the way."""
        if self._routes.cached(queue.topic) is None:
            await self._refresh(queue.topic)

        async def attempt() -> T:
            return await request(self._address(queue))

        return await self.until(attempt, queue.topic)

    def _address(self, queue: MessageQueue, *, master: bool = False) -> str:
        routes, name = self._routes, queue.broker_name
        address = routes.master_address(name) if master else routes.broker_address(name)
        if address is None:
            raise ConnectFailed(f"the route of topic {queue.topic} names no address of broker {name}", name)
        return address

    async def until(
        self,
        attempt: Callable[[], Awaitable[T]],
        topic: str | None = None,
        passing: tuple[type[GantryError], ...] = PASSING,
    ) -> T:
        """What `attempt` returns when it succeeds, after failures of those kinds that may pass.

        `topic`: whose route is asked for again after a failure.
        """
        deadline: float | None = None
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await attempt()
            except passing as e:
                if isinstance(e, BrokerError) and e.code not in BUSY:
                    raise
                now = time.monotonic()
                if deadline is None:
                    deadline = now + self._retry_timeout_s
                    log.warning("trying again for %g s: %s", self._retry_timeout_s, e)
                if now + pause_s > deadline:
                    e.add_note(f"tried again for {self._retry_timeout_s:g} s (option retryTimeoutMs)")
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if topic is not None:
                await self._refresh(topic)

    async def _refresh(self, topic: str) -> None:
        try:
            await self._routes.refresh(topic)
        except NoRouteInfo:
            # Its only broker has gone; the address that is known stays in use until there is another.
            pass
        except GantryError as e:
            log.warning("can't refresh the route of topic %s: %s", topic, e)


def _writable(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    queues = write_queues(topic, route)
    if not queues:
        raise no_writable_queue(topic, route)
    return queues
