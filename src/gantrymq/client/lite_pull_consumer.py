"""LitePullConsumer: the application asks for messages, in its own time.

Source: client/impl/consumer/DefaultLitePullConsumerImpl. Messages are pulled ahead of the asking. Those that `poll`
handed out count as consumed at the next `poll`, or at `commit`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from gantrymq.client.assigned_queues import AssignedQueues, PullOptions
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.process_queue import FlowLimits, ProcessQueue
from gantrymq.client.queue_puller import PULL_BATCH_SIZE
from gantrymq.client.rebalance import AllocateStrategy, allocate_averagely
from gantrymq.client.rebalancer import Rebalancer
from gantrymq.errors import ClientClosed, ClientError, ConnectFailed, IllegalMessage
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.heartbeat import (
    CONSUME_ACTIVELY,
    CONSUME_FROM_LAST_OFFSET,
    EXPRESSION_TAG,
    SUBSCRIBE_ALL,
    ConsumerData,
    SubscriptionData,
)
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.topic_name import group_problem, topic_problem
from gantrymq.remoting.connection import Connection, RpcHook

#: pollTimeoutMillis.
POLL_TIMEOUT_MS = 5000
#: The most messages of one poll.
MAX_POLL_MESSAGES = 1000


class LitePullConsumer:
    """Hands out messages by `poll` or `async for`.

    Either `subscribe` to topics, whose queues are shared out among the consumers of `group`, or `assign` queues by
    hand. With `auto_commit` the offsets of consumed messages are committed every 5 s and at the close; without it,
    by `commit` alone.

        consumer = LitePullConsumer("127.0.0.1:9876", "group")
        consumer.subscribe("topic")
        async with consumer:
            async for message in consumer:
                ...
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        group: str,
        *,
        auto_commit: bool = True,
        consume_from_where: str = CONSUME_FROM_LAST_OFFSET,
        consume_timestamp_ms: int = 0,
        pull_batch_size: int = PULL_BATCH_SIZE,
        flow_limits: FlowLimits | None = None,
        allocate: AllocateStrategy = allocate_averagely,
        ssl_context: ssl.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
    ) -> None:
        if problem := group_problem(group):
            raise IllegalMessage(problem)
        self.group = group
        self._auto_commit = auto_commit
        self._options = PullOptions(
            consume_from_where, consume_timestamp_ms, pull_batch_size, flow_limits or FlowLimits()
        )
        self._allocate = allocate
        self._name_servers = name_servers
        self._ssl_context = ssl_context
        self._hooks = hooks
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._parts: _Parts | None = None
        self._ready: deque[tuple[ProcessQueue, MessageExt]] = deque()
        self._handed_out: list[tuple[ProcessQueue, MessageExt]] = []
        self._arrival: asyncio.Future[None] | None = None

    def subscribe(self, topic: str, expression: str = SUBSCRIBE_ALL, expression_type: str = EXPRESSION_TAG) -> None:
        """Adds a topic, before the start. `expression` is `*`, tags separated by `||`, or SQL92 as its type says."""
        if self._parts is not None:
            raise ClientError("subscribe before the start")
        if problem := topic_problem(topic):
            raise IllegalMessage(problem)
        self._subscriptions[topic] = SubscriptionData.parse(topic, expression, expression_type)

    async def start(self) -> None:
        """Joins the group if there are subscriptions; returns before the first queue is assigned."""
        if self._parts is not None:
            raise ClientError("this consumer is already started")
        subscribed = bool(self._subscriptions)
        consumer_data = ConsumerData(
            self.group,
            CONSUME_ACTIVELY,
            consume_from_where=self._options.consume_from_where,
            subscription_data_set=list(self._subscriptions.values()),
        )
        client = ClientInstance(
            self._name_servers,
            # Who assigns queues by hand is not a member that the others share with.
            consumer_data=consumer_data if subscribed else None,
            handlers={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._consumer_ids_changed},
            ssl_context=self._ssl_context,
            hooks=self._hooks,
        )
        queues = AssignedQueues(
            client, self.group, self._subscriptions, self._pulled, self._options, commits=self._auto_commit, lite=True
        )
        rebalancer = Rebalancer(client, self.group, self._subscriptions, self._allocate, queues.assign)
        self._parts = _Parts(client, queues, rebalancer if subscribed else None)
        client.start()
        if subscribed:
            rebalancer.start()

    async def close(self) -> None:
        """Leaves the group. Messages handed out last are delivered again unless `commit` was called after them."""
        if self._parts is None:
            return
        client, queues, rebalancer = self._parts
        self._parts = None
        if rebalancer is not None:
            await rebalancer.stop()
        await queues.close()
        self._ready.clear()
        self._handed_out.clear()
        self._arrived()
        await client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- queues -------------------------------------------------------------------------------------------------

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues. Raises NoRouteInfo."""
        return await self._started().client.routes.read_queues(topic)

    @property
    def assignment(self) -> set[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._parts.queues.queues if self._parts else set()

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Reads exactly these queues, from the group's offsets on. Not together with `subscribe`."""
        parts = self._started()
        if parts.rebalancer is not None:
            raise ClientError("queues are shared out in the group after `subscribe`: they can't be assigned by hand")
        wanted = set(queues)
        topics = {queue.topic for queue in wanted}
        for topic in topics:
            await parts.client.routes.get(topic)
            self._subscriptions.setdefault(topic, SubscriptionData.parse(topic))
        for topic in topics | {queue.topic for queue in parts.queues.queues}:
            await parts.queues.assign(topic, {queue for queue in wanted if queue.topic == topic})

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Goes on at queue offset `offset` of an assigned queue."""
        queues = self._started().queues
        if queue not in queues.queues:
            raise ClientError(f"{queue} is not assigned to this consumer")
        self._handed_out = [(held, message) for held, message in self._handed_out if held.queue != queue]
        await queues.seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Goes on at the queue's oldest message."""
        await self.seek(
            queue, await self._started().client.api.min_offset(self._address(queue), queue.topic, queue.queue_id)
        )

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Goes on at the message that comes next."""
        await self.seek(
            queue, await self._started().client.api.max_offset(self._address(queue), queue.topic, queue.queue_id)
        )

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset of a queue; None when there is none."""
        return await self._started().queues.offset_store.read(queue)

    # -- messages -----------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = POLL_TIMEOUT_MS, max_messages: int = MAX_POLL_MESSAGES) -> list[MessageExt]:
        """The messages that are there, at least one if any comes within `timeout_ms`; else an empty list.

        Those of the last poll count as consumed now. For one caller at a time.
        """
        self._started()
        self._consume_handed_out()
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while not (messages := self._take(max_messages)):
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrival
            except TimeoutError:
                return []
            finally:
                self._arrival = None
            self._started()
        return messages

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        while self._parts is not None:
            try:
                messages = await self.poll(max_messages=1)
            except ClientClosed:
                return
            for message in messages:
                yield message

    async def commit(self) -> None:
        """Commits all that was handed out and waits for the brokers. Raises a RemotingError or BrokerError."""
        queues = self._started().queues
        self._consume_handed_out()
        await queues.commit_all()

    def _take(self, max_messages: int) -> list[MessageExt]:
        ready = self._ready
        while ready and len(self._handed_out) < max_messages:
            entry = ready.popleft()
            if not entry[0].dropped:
                self._handed_out.append(entry)
        return [message for _, message in self._handed_out]

    def _consume_handed_out(self) -> None:
        for process_queue, message in self._handed_out:
            process_queue.remove(message)
        self._handed_out = []

    def _pulled(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        self._ready.extend([(process_queue, message) for message in messages])
        self._arrived()

    def _arrived(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _consumer_ids_changed(self, connection: Connection, request: RemotingCommand) -> None:
        if self._parts is not None and self._parts.rebalancer is not None:
            self._parts.rebalancer.wake()

    def _address(self, queue: MessageQueue) -> str:
        address = self._started().client.routes.broker_address(queue.broker_name)
        if address is None:
            raise ConnectFailed(f"no route names broker {queue.broker_name}", queue.broker_name)
        return address

    def _started(self) -> _Parts:
        if self._parts is None:
            raise ClientClosed("this consumer is not started, or closed: use it inside `async with`")
        return self._parts


class _Parts(NamedTuple):
    """What a started consumer consists of."""

    client: ClientInstance
    queues: AssignedQueues
    rebalancer: Rebalancer | None
