"""LitePullConsumer: the application asks for messages, in its own time.

Source: client/impl/consumer/DefaultLitePullConsumerImpl. Messages are pulled ahead of the asking. Those that `poll`
handed out count as consumed at the next `poll`, or at `commit`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.assigned_queues import AssignedQueues, PullOptions
from gantrymq.client.consuming.assignment import ErrorCallback, Health, QueuesCallback
from gantrymq.client.consuming.consume_from_where import ConsumeFromWhere
from gantrymq.client.consuming.consume_hooks import ReceiveHook, receiving
from gantrymq.client.consuming.consumer_base import DEFAULT_INSTANCE, PullingConsumer
from gantrymq.client.consuming.consumer_relay import Consumer, ConsumerRelay
from gantrymq.client.consuming.introduction import check_expression, introduce
from gantrymq.client.consuming.large_bodies import make_ready
from gantrymq.client.consuming.offset_store import LOCAL_OFFSET_DIRECTORY
from gantrymq.client.consuming.process_queue import FlowLimits, ProcessQueue
from gantrymq.client.consuming.queue_puller import PULL_BATCH_SIZE
from gantrymq.client.consuming.rebalance import AllocateStrategy, allocate_averagely
from gantrymq.client.consuming.rebalancer import Rebalancer
from gantrymq.errors import ClientClosed, ClientError, ConnectFailed
from gantrymq.protocol.bodies.heartbeat import (
    CONSUME_ACTIVELY,
    CONSUME_FROM_LAST_OFFSET,
    EXPRESSION_TAG,
    SUBSCRIBE_ALL,
    ConsumerData,
    SubscriptionData,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.remoting.connection import Connection, RpcHook
from gantrymq.system import tls

#: pollTimeoutMillis.
POLL_TIMEOUT_MS = 5000
#: The most messages of one poll.
MAX_POLL_MESSAGES = 1000


class LitePullConsumer(PullingConsumer):
    """Hands out messages by `poll` or `async for`.

    Either `subscribe` to topics, whose queues are shared out among the consumers of `group`, or `assign` queues by
    hand. With `auto_commit` the offsets of consumed messages are committed every 5 s and at the close; without it,
    by `commit` alone. With `broadcasting` every consumer reads all queues, with offsets as in `PushConsumer`.

        consumer = LitePullConsumer("127.0.0.1:9876", "group")
        consumer.subscribe("topic")
        async with consumer:
            async for message in consumer:
                ...

    `name_servers` is a list of HOST:PORT, one string with `;` between them, or the URL of a page that says them;
    `namespace` is put before topics and the group. A group that has no offset of a queue begins as
    `consume_from_where` and `consume_timestamp_ms` (since the epoch) say; `pull_batch_size` messages are pulled at a
    time, `flow_limits` says how many wait here, and `allocate` which queues of a topic are whose in the group.
    Offsets of `broadcasting` are kept in `offset_directory`, by `instance_name`. Reading the `body` of a message that
    doesn't decompress, or to more than `max_body_size` bytes, raises CompressionError.

    `on_error` is called with what goes wrong in the background, as often as it is logged, `on_assigned` and
    `on_revoked` with the queues that come and go. `receive_hooks` are called after each `poll`, `hooks` around
    requests; with an `ssl_context` connections are encrypted.
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        group: str,
        *,
        auto_commit: bool = True,
        consume_from_where: ConsumeFromWhere = CONSUME_FROM_LAST_OFFSET,
        consume_timestamp_ms: int = 0,
        pull_batch_size: int = PULL_BATCH_SIZE,
        max_body_size: int = MAX_DECOMPRESSED_SIZE,
        flow_limits: FlowLimits | None = None,
        allocate: AllocateStrategy = allocate_averagely,
        broadcasting: bool = False,
        offset_directory: Path = LOCAL_OFFSET_DIRECTORY,
        instance_name: str = DEFAULT_INSTANCE,
        on_error: ErrorCallback | None = None,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        receive_hooks: Sequence[ReceiveHook] = (),
        namespace: str = "",
        ssl_context: tls.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
    ) -> None:
        super().__init__(
            name_servers,
            group,
            PullOptions(
                consume_from_where, consume_timestamp_ms, pull_batch_size, max_body_size, flow_limits or FlowLimits()
            ),
            allocate,
            broadcasting=broadcasting,
            offset_directory=offset_directory,
            instance_name=instance_name,
            namespace=namespace,
            ssl_context=ssl_context,
            hooks=hooks,
            on_error=on_error,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )
        self._auto_commit = auto_commit
        self._receive_hooks = list(receive_hooks)
        self._data: ConsumerData | None = None
        self._parts: _Parts | None = None
        self._ready: deque[tuple[ProcessQueue, MessageExt]] = deque()
        self._handed_out: list[tuple[ProcessQueue, MessageExt]] = []
        self._is_polling = False
        self._arrival: asyncio.Future[None] | None = None

    def subscribe(self, topic: str, expression: str = SUBSCRIBE_ALL, expression_type: str = EXPRESSION_TAG) -> None:
        if self._parts is not None and self._parts.rebalancer is None:
            raise ClientError("this consumer's queues are assigned by hand: subscribe before the start to share them")
        super().subscribe(topic, expression, expression_type)

    async def _open(self, stack: AsyncExitStack) -> None:
        """Joins the group if there are subscriptions; returns before the first queue is assigned."""
        subscribed = bool(self._subscriptions)
        self._data = self._consumer_data(CONSUME_ACTIVELY)
        relay = ConsumerRelay(self._wire_group, self._namespace, CONSUME_ACTIVELY)
        handlers = relay.handlers() | {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._consumer_ids_changed}
        # Who assigns queues by hand is not a member that the others share with.
        deadline = self._deadline
        stack.callback(self._forget)
        client = self._connect(self._data if subscribed else None, handlers, self._instance_name)
        stack.push_async_callback(lambda: client.close(deadline.left()))
        queues = AssignedQueues(
            client,
            self._wire_group,
            self._subscriptions,
            self._pulled,
            self._options,
            self._offset_store(client),
            self._assigned,
            commits=self._auto_commit,
            commits_by_pull=self._auto_commit and not self._broadcasting,
            lite=True,
        )
        stack.push_async_callback(queues.close, deadline)
        stack.push_async_callback(queues.stop)
        stack.push_async_callback(relay.close)
        rebalancer = None
        if subscribed:
            share = self._share(client, queues.assign)
            rebalancer = Rebalancer(client, self._wire_group, self._subscriptions, share)
            stack.push_async_callback(rebalancer.stop)
        # Whoever waits for messages or queues waits in vain from now on.
        stack.callback(self._arrived)
        stack.callback(self._assigned.wake)
        self._parts = _Parts(client, queues, rebalancer)
        relay.attach(Consumer(client, self._subscriptions, queues))
        client.start()
        await introduce(client, self._wire_group, list(self._subscriptions.values()))
        if rebalancer is not None:
            rebalancer.start()

    def _forget(self) -> None:
        self._parts = None
        self._ready.clear()
        self._handed_out.clear()

    def _subscription_changed(self, wire_topic: str) -> None:
        if self._parts is not None and self._parts.rebalancer is not None and self._data is not None:
            self._data.subscription_data_set = list(self._subscriptions.values())
            self._parts.rebalancer.changed(wire_topic)

    # -- queues -------------------------------------------------------------------------------------------------

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues.

        Raises NoRouteInfo, and RouteNotReady while a NameServer that has just started awaits brokers of the topic.
        """
        queues = await self._started().client.routes.read_queues(self._wire_topic(topic))
        return [self._user_queue(queue) for queue in queues]

    @property
    def assignment(self) -> set[MessageQueue]:
        """The queues that this consumer reads now."""
        return {self._user_queue(queue) for queue in self._parts.queues.queues} if self._parts else set()

    async def assign(
        self,
        queues: Iterable[MessageQueue],
        expression: str = SUBSCRIBE_ALL,
        expression_type: str = EXPRESSION_TAG,
    ) -> None:
        """Reads exactly these queues, from the group's offsets on. Not together with `subscribe`.

        Of their messages those that `expression` selects, as in `subscribe`. Raises BrokerError for one that a broker
        refuses.
        """
        parts = self._started()
        if parts.rebalancer is not None:
            raise ClientError("queues are shared out in the group after `subscribe`: they can't be assigned by hand")
        wanted = {self._wire_queue(queue) for queue in queues}
        topics = {queue.topic for queue in wanted}
        for topic in topics:
            await parts.client.routes.get(topic)
            subscription = SubscriptionData.parse(topic, expression, expression_type)
            await check_expression(parts.client, self._wire_group, subscription)
            known = self._subscriptions.get(topic)
            if known is None or (known.sub_string, known.expression_type) != (expression, expression_type):
                await parts.queues.assign(topic, set())
                self._subscriptions[topic] = subscription
        for topic in topics | {queue.topic for queue in parts.queues.queues}:
            await parts.queues.assign(topic, {queue for queue in wanted if queue.topic == topic})

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Goes on at queue offset `offset` of an assigned queue."""
        if offset < 0:
            raise ClientError(f"offset {offset} of {queue}: offsets begin at 0")
        queue = self._wire_queue(queue)
        queues = self._started().queues
        queues.process_queue(queue)
        self._handed_out = [(held, message) for held, message in self._handed_out if held.queue != queue]
        await queues.seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Goes on at the queue's oldest message."""
        wire, api = self._wire_queue(queue), self._started().client.api
        first = await api.min_offset(self._address(wire), wire.topic, wire.queue_id, broker_name=wire.broker_name)
        await self.seek(queue, first)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Goes on at the message that comes next."""
        await self.seek(queue, await self.end_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Goes on at the first message stored at or after `timestamp_ms`, in ms since the epoch."""
        await self.seek(queue, await self.offset_for_time(queue, timestamp_ms))

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first queue offset stored at or after `timestamp_ms`, in ms since the epoch."""
        wire, api = self._wire_queue(queue), self._started().client.api
        return await api.search_offset(
            self._address(wire), wire.topic, wire.queue_id, timestamp_ms, broker_name=wire.broker_name
        )

    async def end_offset(self, queue: MessageQueue) -> int:
        """The queue offset that the queue's next message will get."""
        wire, api = self._wire_queue(queue), self._started().client.api
        return await api.max_offset(self._address(wire), wire.topic, wire.queue_id, broker_name=wire.broker_name)

    def position(self, queue: MessageQueue) -> int:
        """The queue offset at which an assigned queue goes on: all before it was handed out or isn't selected."""
        process_queue = self._started().queues.process_queue(self._wire_queue(queue))
        ready = (message.queue_offset for held, message in self._ready if held is process_queue)
        return next(ready, process_queue.next_offset)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Neither pulls nor hands out messages of these assigned queues, until `resume`."""
        for process_queue in self._held(queues):
            process_queue.paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Goes on with paused queues where they stand."""
        for process_queue in self._held(queues):
            process_queue.paused = False
        self._arrived()

    @property
    def paused(self) -> set[MessageQueue]:
        """The queues that `pause` stopped."""
        held = self._parts.queues.process_queues if self._parts else []
        return {self._user_queue(process_queue.queue) for process_queue in held if process_queue.paused}

    def health(self) -> Health:
        """How this consumer is: its queues, their lag and last pulls, and the last error."""
        return self._health(self._parts.queues if self._parts is not None else None)

    def lag(self) -> dict[MessageQueue, int]:
        """How many messages of each queue are stored and not yet consumed, as of the last pull."""
        return self._lag(self._parts.queues) if self._parts is not None else {}

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset of a queue; None when there is none."""
        return await self._started().queues.offset_store.read(self._wire_queue(queue), only_committed=True)

    # -- messages -----------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = POLL_TIMEOUT_MS, max_messages: int = MAX_POLL_MESSAGES) -> list[MessageExt]:
        """The messages that are there, at least one if any comes within `timeout_ms`; else an empty list.

        Those of the last poll count as consumed now. For one caller at a time: raises ClientError while another polls.
        """
        client_id = self._started().client.client_id
        if self._is_polling:
            raise ClientError("another poll is under way: what it returns would count as consumed")
        self._is_polling = True
        try:
            if not self._receive_hooks:
                return await self._poll(timeout_ms, max_messages)
            async with receiving(self._receive_hooks, self.group, client_id, self._subscribed_topics) as messages:
                messages += await self._poll(timeout_ms, max_messages)
            return messages
        finally:
            self._is_polling = False

    async def _poll(self, timeout_ms: int, max_messages: int) -> list[MessageExt]:
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
        return await self._ready_bodies(messages)

    async def _ready_bodies(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Keeps back those whose bodies would be too much with the others'."""
        if not any(message.is_packed for message in messages):
            return messages
        handed_out: set[MessageExt] = set()
        try:
            handed_out.update(messages[: await make_ready(messages)])
        finally:
            # Others may have been sought for meanwhile.
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
        """Commits all that was handed out, or the given offsets, and waits for the brokers.

        Raises a RemotingError or BrokerError.
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

    def _held(self, queues: Iterable[MessageQueue]) -> list[ProcessQueue]:
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
    """What a started consumer consists of."""

    client: ClientInstance
    queues: AssignedQueues
    rebalancer: Rebalancer | None
