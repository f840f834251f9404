"""LitePullConsumer: the application polls for messages (`DefaultLitePullConsumerImpl`).

Messages are prefetched. Messages that `poll` returned count as consumed at the next `poll` or at `commit`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import NamedTuple

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.assigned_queues import AssignedQueues
from gantrymq.client.consuming.assignment import Health
from gantrymq.client.consuming.consumer_base import PullingConsumer, new_subscription
from gantrymq.client.consuming.consumer_relay import Consumer, ConsumerRelay
from gantrymq.client.consuming.introduction import check_expression, introduce
from gantrymq.client.consuming.large_bodies import make_ready
from gantrymq.client.consuming.options import LitePullConsumerOptions
from gantrymq.client.consuming.process_queue import ProcessQueue
from gantrymq.client.consuming.rebalancer import Rebalancer
from gantrymq.client.middleware import Middleware, ReceiveContext, around_receives
from gantrymq.client.options import takes
from gantrymq.errors import ClientClosed, ClientError, ConnectFailed
from gantrymq.protocol.bodies.heartbeat import (
    CONSUME_ACTIVELY,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.remoting.connection import Connection
from gantrymq.times import duration_s, timestamp_ms

#: Default timeout of a poll (pollTimeoutMillis), in seconds.
POLL_TIMEOUT_S = 5.0
MAX_POLL_MESSAGES = 1000


class LitePullConsumer(PullingConsumer):
    """Returns messages by `poll` or `async for`.

    Either `subscribe` to topics, whose queues are shared among the consumers of the group, or `assign` queues manually.

    Example:
        consumer = LitePullConsumer("127.0.0.1:9876", "group")
        consumer.subscribe("topic")
        async with consumer:
            async for message in consumer:
                ...

    With `auto_commit`, the offsets of consumed messages are committed every 5 s and at the close. Without it, only
    `commit` commits. With `broadcasting`, every consumer reads all queues, with offsets as in `PushConsumer`.
    """

    _options: LitePullConsumerOptions

    @takes(LitePullConsumerOptions)
    def __init__(self, options: LitePullConsumerOptions) -> None:
        super().__init__(options)
        self._auto_commit = options.auto_commit
        self._parts: _Parts | None = None
        self._ready: deque[tuple[ProcessQueue, MessageExt]] = deque()
        self._handed_out: list[tuple[ProcessQueue, MessageExt]] = []
        self._is_polling = False
        self._arrival: asyncio.Future[None] | None = None

    def subscribe(self, topic: str, *, tags: str | None = None, sql: str | None = None) -> None:
        if self._parts is not None and self._parts.rebalancer is None:
            raise ClientError("this consumer's queues are assigned by hand: subscribe before the start to share them")
        super().subscribe(topic, tags=tags, sql=sql)

    async def _open(self, stack: AsyncExitStack) -> None:
        """Joins the group if there are subscriptions. Returns before the first queue is assigned."""
        subscribed = bool(self._subscriptions)
        relay = ConsumerRelay(self._wire_group, self._namespace, CONSUME_ACTIVELY)
        handlers = relay.handlers() | {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._consumer_ids_changed}
        # With manual assignment the consumer is not a member of the group, so it gets no share of the queues.
        data = self._consumer_data(CONSUME_ACTIVELY) if subscribed else None
        deadline = self._deadline
        stack.callback(self._forget)
        client = self._connect(data, handlers, self._instance_name)
        stack.push_async_callback(lambda: client.close(deadline.left()))
        queues = AssignedQueues(
            self._context(client), self._pulled, self._offset_store(client), commits=self._auto_commit, lite=True
        )
        stack.push_async_callback(queues.close, deadline)
        stack.push_async_callback(queues.stop)
        stack.push_async_callback(relay.close)
        rebalancer = None
        if subscribed:
            share = self._share(client, queues.assign)
            rebalancer = Rebalancer(client, self._wire_group, self._subscriptions, share)
            stack.push_async_callback(rebalancer.stop)
        # On close, wake all callers that wait for messages or queues.
        stack.callback(self._arrived)
        stack.callback(self._assigned.wake)
        self._parts = _Parts(client, queues, rebalancer)
        relay.attach(Consumer(client, self._subscriptions, queues))
        client.start()
        await introduce(
            client, self._wire_group, list(self._subscriptions.values()), shares_queues=rebalancer is not None
        )
        if rebalancer is not None:
            rebalancer.start()

    def _forget(self) -> None:
        self._parts = None
        self._ready.clear()
        self._handed_out.clear()

    def _subscription_changed(self, wire_topic: str) -> None:
        if self._parts is not None and self._parts.rebalancer is not None:
            self._parts.client.set_subscriptions(self._subscriptions.values())
            self._parts.rebalancer.changed(wire_topic)

    # -- queues -------------------------------------------------------------------------------------------------

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Returns the readable queues of a topic.

        Raises:
            NoRouteInfo: The topic has no route.
            RouteNotReady: A NameServer has just started, and not all brokers of the topic have registered with it.
        """
        queues = await self._started().client.routes.read_queues(self._wire_topic(topic))
        return [self._user_queue(queue) for queue in queues]

    @property
    def assignment(self) -> set[MessageQueue]:
        """The assigned queues."""
        return {self._user_queue(queue) for queue in self._parts.queues.queues} if self._parts else set()

    async def assign(self, queues: Iterable[MessageQueue], *, tags: str | None = None, sql: str | None = None) -> None:
        """Assigns exactly these queues, starting at the group's offsets. Cannot be combined with `subscribe`.

        Args:
            queues: Queues to read.
            tags: Tags of the messages to receive, separated by `||`. Default: all messages.
            sql: An SQL92 condition on the properties of the messages to receive. Excludes `tags`.

        Raises:
            ClientError: The consumer has subscriptions, or the filter is invalid.
            BrokerError: A broker rejects the condition.
        """
        parts = self._started()
        if parts.rebalancer is not None:
            raise ClientError("queues are shared out in the group after `subscribe`: they can't be assigned by hand")
        wanted = {self._wire_queue(queue) for queue in queues}
        subscriptions = {queue.topic: new_subscription(queue.topic, tags, sql) for queue in wanted}
        for topic, subscription in subscriptions.items():
            await parts.client.routes.get(topic)
            await check_expression(parts.client, self._wire_group, subscription)
            known = self._subscriptions.get(topic)
            if known is None or known.filter != subscription.filter:
                await parts.queues.assign(topic, set())
                self._subscriptions[topic] = subscription
        for topic in subscriptions.keys() | {queue.topic for queue in parts.queues.queues}:
            await parts.queues.assign(topic, {queue for queue in wanted if queue.topic == topic})

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continues an assigned queue at queue offset `offset`. Raises ClientError if the queue is not assigned."""
        if offset < 0:
            raise ClientError(f"offset {offset} of {queue}: offsets begin at 0")
        queue = self._wire_queue(queue)
        queues = self._started().queues
        queues.process_queue(queue)
        self._handed_out = [(held, message) for held, message in self._handed_out if held.queue != queue]
        await queues.seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continues at the queue's oldest message."""
        wire, api = self._wire_queue(queue), self._started().client.api
        first = await api.min_offset(self._address(wire), wire.topic, wire.queue_id, broker_name=wire.broker_name)
        await self.seek(queue, first)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continues at the end of the queue, with the next new message."""
        await self.seek(queue, await self.end_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp: datetime | int) -> None:
        """Continues at the first message stored at or after `timestamp`: a datetime, or ms since the epoch."""
        await self.seek(queue, await self.offset_for_time(queue, timestamp))

    async def offset_for_time(self, queue: MessageQueue, timestamp: datetime | int) -> int:
        """Returns the offset of the first message stored at or after `timestamp`: a datetime, or ms since the epoch."""
        at_ms = timestamp_ms("timestamp", timestamp)
        wire, api = self._wire_queue(queue), self._started().client.api
        return await api.search_offset(
            self._address(wire), wire.topic, wire.queue_id, at_ms, broker_name=wire.broker_name
        )

    async def end_offset(self, queue: MessageQueue) -> int:
        """Returns the queue offset of the next new message."""
        wire, api = self._wire_queue(queue), self._started().client.api
        return await api.max_offset(self._address(wire), wire.topic, wire.queue_id, broker_name=wire.broker_name)

    def position(self, queue: MessageQueue) -> int:
        """Returns the offset of the next message that `poll` returns from an assigned queue."""
        process_queue = self._started().queues.process_queue(self._wire_queue(queue))
        ready = (message.queue_offset for held, message in self._ready if held is process_queue)
        return next(ready, process_queue.next_offset)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stops pulling and returning messages of these assigned queues, until `resume`."""
        for process_queue in self._process_queues_of(queues):
            process_queue.paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Continues paused queues at their position."""
        for process_queue in self._process_queues_of(queues):
            process_queue.paused = False
        self._arrived()

    @property
    def paused(self) -> set[MessageQueue]:
        """The paused queues."""
        held = self._parts.queues.process_queues if self._parts else []
        return {self._user_queue(process_queue.queue) for process_queue in held if process_queue.paused}

    def health(self) -> Health:
        """Returns the state of this consumer: its queues, their lag and last pulls, and the last error."""
        return self._health(self._parts.queues if self._parts is not None else None)

    def lag(self) -> dict[MessageQueue, int]:
        """Returns the number of stored messages of each queue that are not consumed, as of the last pull."""
        return self._lag(self._parts.queues) if self._parts is not None else {}

    async def committed(self, queue: MessageQueue) -> int | None:
        """Returns the committed offset of the group for a queue, or None."""
        return await self._started().queues.offset_store.read(self._wire_queue(queue), only_committed=True)

    # -- messages -----------------------------------------------------------------------------------------------

    async def poll(
        self, *, max_messages: int = MAX_POLL_MESSAGES, timeout: float | timedelta = POLL_TIMEOUT_S
    ) -> list[MessageExt]:
        """Returns the available messages. If there are none, waits for the first one.

        The messages of the previous `poll` count as consumed.

        Args:
            max_messages: Largest number of messages to return. Default: 1000.
            timeout: Longest wait, in seconds or as a timedelta. Default: 5.0.

        Returns:
            Messages; an empty list after the timeout.

        Raises:
            ClientError: Another task is polling.
        """
        timeout_s = duration_s("timeout", timeout)
        client = self._started().client
        if self._is_polling:
            raise ClientError("another poll is under way: what it returns would count as consumed")
        self._is_polling = True
        try:
            middleware = self._options.middleware
            if not middleware:
                return await self._poll(max_messages, timeout_s)
            return await self._poll_around(middleware, self._receive_context(client), max_messages, timeout_s)
        finally:
            self._is_polling = False

    async def _poll_around(
        self, middleware: Sequence[Middleware], context: ReceiveContext, max_messages: int, timeout_s: float
    ) -> list[MessageExt]:
        received = is_receiving = False

        async def receive(context: ReceiveContext) -> list[MessageExt]:
            nonlocal received, is_receiving
            if is_receiving or (received and self._handed_out):
                raise ClientError("the middleware awaited `call` again: the messages of its first call would be lost")
            is_receiving = True
            try:
                messages = await self._poll(max_messages, timeout_s)
            finally:
                is_receiving = False
            received = True
            return messages

        try:
            return await (around_receives(middleware, receive) or receive)(context)
        except BaseException:
            if received:
                # The caller did not receive the messages, so the next poll returns them.
                self._ready.extendleft(reversed(self._handed_out))
                self._handed_out = []
            raise

    async def _poll(self, max_messages: int, timeout_s: float) -> list[MessageExt]:
        self._consume_handed_out()
        deadline = asyncio.get_running_loop().time() + timeout_s
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
        return await self._ready_bodies(messages)

    async def _ready_bodies(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Decompresses the bodies. Messages that exceed the limit for large bodies stay for a later poll."""
        if not any(message.is_packed for message in messages):
            return messages
        handed_out: set[MessageExt] = set()
        try:
            handed_out.update(messages[: await make_ready(messages)])
        finally:
            # In the meantime, a `seek` may have removed messages.
            kept_back = [entry for entry in self._handed_out if entry[1] not in handed_out]
            if kept_back:
                for _, message in kept_back:
                    message.pack()
                self._ready.extendleft(reversed(kept_back))
                self._handed_out = [entry for entry in self._handed_out if entry[1] in handed_out]
        return [message for _, message in self._handed_out]

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        while self._is_open:
            try:
                messages = await self.poll(max_messages=1)
            except ClientClosed:
                return
            for message in messages:
                yield message

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commits all returned messages, or the given offsets, and waits for the brokers.

        Args:
            offsets: For each queue, the offset of the next message to consume. Default: the offsets after all returned
                messages.

        Raises:
            RemotingError: A broker is unreachable.
            BrokerError: A broker rejects the offset.
        """
        queues = self._started().queues
        if offsets is not None:
            await queues.offset_store.commit({self._wire_queue(queue): offset for queue, offset in offsets.items()})
            return
        self._consume_handed_out()
        await queues.commit_all()

    def _take(self, max_messages: int) -> list[MessageExt]:
        ready = self._ready
        paused: list[tuple[ProcessQueue, MessageExt]] = []
        while ready and len(self._handed_out) < max_messages:
            entry = ready.popleft()
            if entry[0].dropped:
                continue
            (paused if entry[0].paused else self._handed_out).append(entry)
        ready.extendleft(reversed(paused))
        return [message for _, message in self._handed_out]

    def _consume_handed_out(self) -> None:
        for process_queue, message in self._handed_out:
            process_queue.remove(message)
        self._handed_out = []

    def _pulled(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        self._strip_namespace(messages)
        self._ready.extend([(process_queue, message) for message in messages])
        self._arrived()

    def _arrived(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _consumer_ids_changed(self, connection: Connection, request: RemotingCommand) -> None:
        if self._parts is not None and self._parts.rebalancer is not None:
            self._parts.rebalancer.wake()

    def _process_queues_of(self, queues: Iterable[MessageQueue]) -> list[ProcessQueue]:
        assigned = self._started().queues
        return [assigned.process_queue(self._wire_queue(queue)) for queue in queues]

    def _address(self, queue: MessageQueue) -> str:
        address = self._started().client.routes.broker_address(queue.broker_name)
        if address is None:
            raise ConnectFailed(f"no route names broker {queue.broker_name}", queue.broker_name)
        return address

    def _started(self) -> _Parts:
        self._check_open()
        assert self._parts is not None
        return self._parts


class _Parts(NamedTuple):
    """The parts of a started consumer."""

    client: ClientInstance
    queues: AssignedQueues
    rebalancer: Rebalancer | None
