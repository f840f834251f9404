"""`ClusterClient` sends the requests of reads and writes to brokers, with retries while a broker is down."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from gantrymq.arrow.name_server_client import PASSING, NameServerClient
from gantrymq.arrow.offsets import FirstMessage
from gantrymq.arrow.security import Security
from gantrymq.background.event_loop import new_event_loop
from gantrymq.client.broker_api import PullResult, PullStatus, SendResult, SendStatus, is_unconfirmed, unconfirmed
from gantrymq.client.producing.send_command import DEFAULT_TOPIC_QUEUE_NUMS
from gantrymq.client.routes import no_writable_queue, read_queues, write_queues
from gantrymq.errors import (
    BrokerError,
    BrokerUnavailable,
    ClientError,
    ConnectFailed,
    RemotingError,
    RouteNotReady,
    SendOutcomeUnknown,
)
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID, TopicRouteData
from gantrymq.protocol.bodies.stats import QueryConsumeQueueResponseBody, max_offsets
from gantrymq.protocol.bodies.topic_config import PERM_WRITE
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.query import QueryConsumeQueueRequestHeader
from gantrymq.protocol.headers.send import GetWriterQueuesRequestHeader, GetWriterQueuesResponseHeader
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.protocol.headers.transaction import EndTransactionRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.record import unpacker
from gantrymq.protocol.refusals import broker_error
from gantrymq.protocol.row_ids import LAST_ROW_FIELD
from gantrymq.remoting.client import RemotingClient

log = peer_log(__name__)

#: The timeout is long, because a broker may have to read from its disk.
PULL_TIMEOUT_MS = 15_000
SEND_TIMEOUT_MS = 10_000
#: The response codes of a send whose messages the master has stored.
_STORED = frozenset(status.value for status in SendStatus)

_offset_and_time = unpacker("queue_offset", "store_timestamp")

T = TypeVar("T")


class BrokersAway(BrokerUnavailable):
    """Raised if brokers with a part of the data are not registered."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` on a new event loop, and returns its result."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


class ClusterClient(NameServerClient):
    """A client of all brokers of a cluster. It is an async context manager.

    Reads go to the master of a broker, or to a slave while the route has no master. The client also retries if a topic
    has no route, because brokers need up to 30 s to register at a NameServer that has just started.
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
        """Creates a client.

        Args:
            name_servers: The NameServers, as HOST:PORT.
            retry_timeout_ms: Limits the retries of one request, in ms.
            security: Keys and TLS settings.
            remoting: Connections to use. The client does not close them. Default: own connections.
            from_slaves: If true, pulls go to slaves.
        """
        self._is_owner = remoting is None
        super().__init__(name_servers, remoting or (security or Security()).remoting_client(), retry_timeout_ms)
        self._from_slaves = from_slaves
        #: Slaves that don't respond or don't serve pulls.
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

    async def read_queues(self, topic: str, *, wait: bool = True) -> list[MessageQueue]:
        """Returns the readable queues of the topic.

        Raises NoRouteInfo for a topic without a route: after retries, or at once if `wait` is false. Raises ClientError
        for a topic without readable queues.
        """
        passing = PASSING if wait else (RemotingError, BrokerError)
        queues = read_queues(topic, await self.retry(partial(self._routes.refresh, topic), passing=passing))
        if not queues:
            raise ClientError(f"topic {topic} has no readable queue: check its permission on the brokers")
        return queues

    async def write_queues(self, topic: str, queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS) -> list[MessageQueue]:
        """Returns the writable queues of the topic.

        If the topic doesn't exist and brokers create topics automatically, these are the first `queue_nums` queues of
        the default topic.

        Raises:
            NoRouteInfo: The topic has no route, or NameServers have just started and await brokers of the topic.
            BrokerUnavailable: No broker of the topic has a master.
            ClientError: The topic has no writable queue.
        """

        async def attempt() -> list[MessageQueue]:
            if self._routes.awaited(topic):
                await self._routes.refresh(topic)
            return _writable(topic, self._complete(topic, await self._routes.get_or_default(topic, queue_nums)))

        return await self.retry(attempt, topic)

    async def all_write_queues(self, topic: str) -> list[MessageQueue]:
        """Returns the writable queues of an existing topic, on all of its brokers.

        Raises:
            NoRouteInfo: The topic has no route.
            BrokersAway: The master of one of its brokers is down.
            ClientError: The topic has no writable queue.
        """

        async def attempt() -> TopicRouteData:
            return self._complete(topic, await self._routes.refresh(topic))

        route = await self.retry(attempt)
        for data in route.queue_datas:
            if data.perm & PERM_WRITE and self._routes.master_address(data.broker_name) is None:
                raise BrokersAway(f"the master of broker {data.broker_name}, which topic {topic} is on, is away")
        return _writable(topic, route)

    def _complete(self, topic: str, route: TopicRouteData) -> TopicRouteData:
        """Returns `route`. Raises RouteNotReady if the route lacks brokers that NameServers await."""
        if awaited := self.awaited_brokers(topic):
            raise RouteNotReady(topic, self._routes.name_servers, awaited)
        return route

    async def min_offset(self, queue: MessageQueue) -> int:
        return await self.request_broker(queue, lambda to: self._api.min_offset(to, queue.topic, queue.queue_id))

    async def max_offset(self, queue: MessageQueue) -> int:
        return await self.request_broker(queue, lambda to: self._api.max_offset(to, queue.topic, queue.queue_id))

    async def max_offset_once(self, queue: MessageQueue) -> int:
        """Like `max_offset`, without retries."""
        return await self._api.max_offset(self._address(queue), queue.topic, queue.queue_id)

    async def max_offsets_once(self, queue: MessageQueue) -> dict[int, int]:
        """Returns {queue id: max offset} for all queues of the topic on the broker of `queue`. Without retries.

        The result is empty if only requests for single queues are possible: for a static topic, whose queues have parts
        on several brokers, and if access control refuses the request.
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

    async def end_of_removed(self, queue: MessageQueue, offset: int) -> int:
        """Returns the end of a queue, which the topic may no longer have. Does not retry.

        The result is 0 if the broker has no message from `offset` on.
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
        # The response of Apache's brokers is empty if there is no such offset.
        return decode_json(response.body, QueryConsumeQueueResponseBody).max_queue_index if response.body else 0

    async def first_message(self, queue: MessageQueue) -> FirstMessage | None:
        """Returns the oldest message of a queue; None for an empty queue. Without retries."""
        address = self._address(queue)
        offset = await self._api.min_offset(address, queue.topic, queue.queue_id)
        store_time_ms = await self._api.earliest_store_time(address, queue.topic, queue.queue_id)
        # Retention may have removed the message between the two requests.
        if store_time_ms < 0 or offset != await self._api.min_offset(address, queue.topic, queue.queue_id):
            return None
        return FirstMessage(offset, store_time_ms)

    async def store_time(self, queue: MessageQueue, offset: int, group: str) -> int | None:
        """Returns the store time of the message at `offset`, in ms; None without such a message. Does not retry."""
        address = self._address(queue)
        result = await self._api.pull_at_once(address, queue, offset, 1, group, timeout_ms=PULL_TIMEOUT_MS)
        if result.status is not PullStatus.FOUND:
            return None
        found, store_time_ms = _offset_and_time(result.body, 0)
        # In a compacted topic, the broker returns the next message in place of a removed message.
        return store_time_ms if found == offset else None

    def has_master(self, queue: MessageQueue) -> bool:
        """Whether the broker of the queue has a master. Without a master, a slave responds, which may lag behind."""
        return self._routes.master_address(queue.broker_name) is not None

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return await self.request_broker(
            queue, lambda to: self._api.search_offset(to, queue.topic, queue.queue_id, timestamp_ms)
        )

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commits `offset` for `group` on the master, without retries."""
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
        """Returns messages from `offset` on, without waiting for new messages.

        `filter_expression` is (expression, type of the expression).
        """

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
                # Only the master has the last messages, as a slave may lag behind.
                if result.status is PullStatus.FOUND:
                    return result
            except (RemotingError, BrokerError) as e:
                log.warning("reading from the master of broker %s instead of a slave: %s", queue.broker_name, e)
                self._refusing.add(slave)
        return await self.request_broker(queue, pull_from)

    async def _slave(self, queue: MessageQueue) -> str | None:
        """Returns HOST:PORT of a slave; None if there is none. If there are several, each queue uses one of them."""
        if self._routes.cached(queue.topic) is None:
            await self._refresh(queue.topic)
        replicas = sorted(self._routes.all_brokers().get(queue.broker_name, {}).items())
        slaves = [address for number, address in replicas if number != MASTER_ID and address not in self._refusing]
        return slaves[queue.queue_id % len(slaves)] if slaves else None

    async def send(
        self, queues: Sequence[MessageQueue], command: Callable[[MessageQueue], RemotingCommand]
    ) -> SendResult:
        """Sends the request of `command` to the first of `queues`. After a failure, tries the next queue, in a cycle.

        If a response is lost, a retry can store the messages more than once.
        """
        turns = itertools.cycle(queues)

        async def attempt() -> SendResult:
            queue = next(turns)
            address = self._address(queue, master=True)
            return await self._api.send(address, command(queue), queue, timeout_ms=SEND_TIMEOUT_MS)

        return await self.retry(attempt, queues[0].topic)

    async def send_rows(self, queue: MessageQueue, command: Callable[[MessageQueue], RemotingCommand]) -> int | None:
        """Sends the request of `command` to `queue` only. Returns the last row of the queue (`protocol.row_ids`).

        The result is None if the broker doesn't track rows; a retry may then have stored the messages more than once.
        """
        if self._routes.cached(queue.topic) is None:
            await self.retry(partial(self._routes.get_or_default, queue.topic))

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

        return await self.retry(attempt, queue.topic)

    async def writer_queues(self, queue: MessageQueue, writer: str, batch: int) -> str | None:
        """Returns the list of target queues of a writer's batch (`row_ids.QUEUES_FIELD`) from the broker of `queue`.

        The result is None if the broker has no such list, as on brokers of Apache.
        """
        if self._routes.cached(queue.topic) is None:
            await self.retry(partial(self._routes.get_or_default, queue.topic))
        header = GetWriterQueuesRequestHeader(topic=queue.topic, writer=writer, batch=batch)
        try:
            response = await self.request_master(queue, RemotingCommand.request(RequestCode.GET_WRITER_QUEUES, header))
        except BrokerError as e:
            if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return None
        return response.read_header(GetWriterQueuesResponseHeader).queues

    async def end_transaction(self, queue: MessageQueue, header: EndTransactionRequestHeader) -> None:
        """Commits or rolls back a half message of `queue`, with retries.

        If a response is lost, a repeated commit can store the message more than once.
        """

        async def attempt() -> None:
            request = RemotingCommand.request(RequestCode.END_TRANSACTION, header)
            await self._remoting.call(self._address(queue, master=True), request, SEND_TIMEOUT_MS)

        await self.retry(attempt, queue.topic)

    async def request_master(self, queue: MessageQueue, request: RemotingCommand) -> RemotingCommand:
        """Sends an idempotent request to the master of the queue, with retries, and returns the response."""

        async def attempt() -> RemotingCommand:
            return await self._remoting.call(self._address(queue, master=True), request, SEND_TIMEOUT_MS)

        return await self.retry(attempt, queue.topic)

    async def request_broker(self, queue: MessageQueue, request: Callable[[str], Awaitable[T]]) -> T:
        """Calls `request` with the address of the queue's broker. Each retry uses the newest address."""
        if self._routes.cached(queue.topic) is None:
            await self._refresh(queue.topic)

        async def attempt() -> T:
            return await request(self._address(queue))

        return await self.retry(attempt, queue.topic)

    def _address(self, queue: MessageQueue, *, master: bool = False) -> str:
        routes, name = self._routes, queue.broker_name
        address = routes.master_address(name) if master else routes.broker_address(name)
        if address is None:
            raise ConnectFailed(f"the route of topic {queue.topic} names no address of broker {name}", name)
        return address


def _writable(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    queues = write_queues(topic, route)
    if not queues:
        raise no_writable_queue(topic, route)
    return queues
