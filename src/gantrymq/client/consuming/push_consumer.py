"""PushConsumer: hands each message of its topics to a handler, shared out among the consumers of a group.

Source: client/impl/consumer/DefaultMQPushConsumerImpl. A message's way: a `QueuePuller` pulls it, `ConsumeConcurrently`
or `ConsumeOrderly` runs the handler on it; then it is taken out of its `ProcessQueue`, or sent back to the broker,
which delivers it again later through the topic %RETRY%group. In POP mode `PoppedQueues` gets it and acknowledges it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.assigned_queues import AssignedQueues, PullOptions
from gantrymq.client.consuming.assignment import ErrorCallback, Health, QueuesCallback
from gantrymq.client.consuming.batches import BATCH_WAIT_MS, Batches, BatchHandler
from gantrymq.client.consuming.concurrently import ConsumeConcurrently
from gantrymq.client.consuming.consume_from_where import ConsumeFromWhere
from gantrymq.client.consuming.consume_hooks import ConsumeHook, TraceHook, with_hooks
from gantrymq.client.consuming.consumer_base import DEFAULT_INSTANCE, PullingConsumer
from gantrymq.client.consuming.consumer_relay import Consumer, ConsumerRelay, StatisticsCallback
from gantrymq.client.consuming.handler_pool import MessageHandler
from gantrymq.client.consuming.handlers import check_handler
from gantrymq.client.consuming.held_locks import HeldLocks
from gantrymq.client.consuming.introduction import introduce
from gantrymq.client.consuming.offset_store import LOCAL_OFFSET_DIRECTORY
from gantrymq.client.consuming.orderly import SUSPEND_S, ConsumeOrderly
from gantrymq.client.consuming.process_queue import FlowLimits, ProcessQueue
from gantrymq.client.consuming.queue_puller import PULL_BATCH_SIZE
from gantrymq.client.consuming.rebalance import AllocateStrategy, allocate_averagely
from gantrymq.client.consuming.rebalancer import Rebalancer, Share
from gantrymq.client.consuming.send_back import SendBack
from gantrymq.client.namespace import wrap_namespace
from gantrymq.client.popping.pop_assignment import STRATEGY_NAMES, ShareByBroker
from gantrymq.client.popping.popped_queues import PopOptions, PoppedQueues
from gantrymq.client.producing.producer import Producer
from gantrymq.client.trace import TRACE_GROUP_PREFIX, TraceDispatcher
from gantrymq.errors import ClientError
from gantrymq.protocol.bodies.heartbeat import (
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_PASSIVELY,
    ConsumerData,
    SubscriptionData,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.properties import RETRY_TOPIC
from gantrymq.protocol.receipt_handle import normal_topic
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, TRACE_TOPIC, retry_topic
from gantrymq.remoting.connection import Connection, RpcHook
from gantrymq.system import tls

#: consumeThreadMin.
CONCURRENCY = 20
#: maxReconsumeTimes: so often is a message delivered again before it goes to the dead letter queue %DLQ%group.
MAX_RECONSUME_TIMES = 16
#: consumeTimeout: a message whose handler takes longer is sent back.
CONSUME_TIMEOUT_S = 15 * 60.0
#: A queue in order has its oldest message first: there is no distance to limit.
_NO_SPAN = 1 << 62


class PushConsumer(PullingConsumer):
    """Calls `handler` with every message of the subscribed topics, up to `concurrency` at a time.

    `handler` is a coroutine function, or a plain one that is called in threads. A message counts as consumed when it
    returns; when it raises, or takes longer than `consume_timeout_s`, the message comes again later, after longer and
    longer times, and after `max_reconsume_times` goes to the dead letter queue. Every message is delivered at least
    once. Messages are spread over all consumers of `group`, which must have the same subscriptions.

        consumer = PushConsumer("127.0.0.1:9876", "group", handle)
        consumer.subscribe("topic", "TagA || TagB")
        async with consumer:
            await asyncio.Event().wait()

    `orderly`: the messages of a queue one after the other. When the handler raises, the queue waits `suspend_s` and the
    same message comes again, without end unless `max_reconsume_times` is given.

    `consume_batch_size`: the handler gets a list of so many messages, or of fewer `consume_batch_wait_ms` after the
    first, `concurrency` lists at a time. It returns None when all are consumed, or a sequence with each message's
    outcome: None or True, False or an exception. When it raises, all have failed.

    `broadcasting`: every consumer gets every message. Offsets are kept on this machine, in `offset_directory`, by
    `instance_name`; a message that the handler fails on does not come again.

    `client_rebalance=False`: the broker shares out the queues; a topic in POP mode there is popped, as `pop` says.

    No body is decompressed to more than `max_body_size` bytes. Reading the `body` of one that decompresses to more, or
    not at all, raises a ProtocolError, which is a failure like any other; in order such a message is tried once.

    `on_error` is called with what goes wrong in the background, as often as it is logged, `on_assigned` and
    `on_revoked` with the queues that come and go, `on_statistics` every 10 s with each topic's `ConsumeStatus`.

    `name_servers` is a list of HOST:PORT, one string with `;` between them, or the URL of a page that says them;
    `namespace` is put before topics and the group. A group that has no offset of a queue begins as
    `consume_from_where` and `consume_timestamp_ms` (since the epoch) say; `pull_batch_size` messages are pulled at a
    time, `flow_limits` says how many wait here, and `allocate` which queues of a topic are whose in the group.

    `enable_trace` has each message's consumption told to `trace_topic`; `consume_hooks` are called around the handler,
    `hooks` around requests; with an `ssl_context` connections are encrypted.
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        group: str,
        handler: MessageHandler | BatchHandler,
        *,
        concurrency: int = CONCURRENCY,
        consume_batch_size: int | None = None,
        consume_batch_wait_ms: int = BATCH_WAIT_MS,
        orderly: bool = False,
        suspend_s: float = SUSPEND_S,
        max_reconsume_times: int | None = None,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
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
        on_statistics: StatisticsCallback | None = None,
        client_rebalance: bool = True,
        pop: PopOptions | None = None,
        consume_hooks: Sequence[ConsumeHook] = (),
        enable_trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
        namespace: str = "",
        ssl_context: tls.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
    ) -> None:
        limits = flow_limits or FlowLimits()
        if orderly:
            limits = replace(limits, max_span=_NO_SPAN)
        super().__init__(
            name_servers,
            group,
            PullOptions(consume_from_where, consume_timestamp_ms, pull_batch_size, max_body_size, limits),
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
        check_handler(handler)
        if concurrency < 1:
            raise ClientError(f"concurrency {concurrency}: at least one message must be handled at a time")
        if consume_timeout_s <= 0:
            raise ClientError(f"consume_timeout_s {consume_timeout_s}: must be more than 0")
        if not client_rebalance and (orderly or broadcasting):
            raise ClientError("the broker shares out queues for neither orderly nor broadcasting consumers")
        if not client_rebalance and allocate not in STRATEGY_NAMES:
            raise ClientError("brokers share out queues by allocate_averagely or allocate_by_circle only")
        if consume_batch_size is not None and (consume_batch_size < 1 or consume_batch_wait_ms < 0):
            raise ClientError(f"consume_batch_size {consume_batch_size}, consume_batch_wait_ms {consume_batch_wait_ms}")
        if consume_batch_size is not None and orderly:
            raise ClientError("messages in order are handled one after the other: no consume_batch_size")
        self._handler = handler
        self._concurrency = concurrency
        self._consume_batch_size = consume_batch_size
        self._consume_batch_wait_ms = consume_batch_wait_ms
        self._on_statistics = on_statistics
        self._orderly = orderly
        self._suspend_s = suspend_s
        self._max_reconsume_times = max_reconsume_times
        self._consume_timeout_s = consume_timeout_s
        self._client_rebalance = client_rebalance
        self._pop = pop or PopOptions()
        self._consume_hooks = list(consume_hooks)
        self._enable_trace = enable_trace
        self._trace_topic = trace_topic
        self._retry_topic = retry_topic(self._wire_group)
        self._data: ConsumerData | None = None
        self._parts: _Parts | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        """Joins the group and begins to consume; returns before the first queue is assigned."""
        if not self._subscriptions:
            raise ClientError("subscribe to a topic before the start")
        if not self._broadcasting:
            self._subscriptions[self._retry_topic] = SubscriptionData.parse(self._retry_topic)
        self._data = self._consumer_data(CONSUME_PASSIVELY)
        relay = ConsumerRelay(self._wire_group, self._namespace, CONSUME_PASSIVELY, self._orderly, self._on_statistics)
        handlers = relay.handlers() | {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._consumer_ids_changed}
        deadline = self._deadline
        stack.callback(self._forget)
        client = self._connect(self._data, handlers, self._instance_name)
        stack.push_async_callback(lambda: client.close(deadline.left()))
        offset_store = self._offset_store(client)
        hooks = [*self._consume_hooks, *await self._trace_hooks(stack)]
        handler = with_hooks(self._single_handler(stack), hooks, self.group, client.client_id, self._consume_timeout_s)
        locks = HeldLocks(client, self._wire_group) if self._orderly and not self._broadcasting else None
        consumption = self._consumption(client, handler, locks)
        queues = AssignedQueues(
            client,
            self._wire_group,
            self._subscriptions,
            self._pulled,
            self._options,
            offset_store,
            self._assigned,
            commits=True,
            commits_by_pull=not self._broadcasting,
            lite=False,
            locks=locks,
            finish=consumption.release,
        )
        if isinstance(consumption, ConsumeOrderly):
            consumption.take_anew = queues.take_anew
        stack.push_async_callback(queues.close, deadline)
        stack.push_async_callback(lambda: consumption.close(deadline.left()))
        popped: PoppedQueues | None = None
        share: Share = self._share(client, queues.assign)
        if not self._client_rebalance:
            popped = self._pop_queues(client, handler, queues)
            stack.push_async_callback(popped.close, deadline)
            share = ShareByBroker(
                client, self._wire_group, self._allocate, self._subscriptions, queues.assign, popped.assign
            )
        stack.push_async_callback(queues.stop)
        rebalancer = Rebalancer(client, self._wire_group, self._subscriptions, share)
        stack.push_async_callback(relay.close)
        stack.push_async_callback(rebalancer.stop)
        # Whoever waits for queues waits in vain from now on.
        stack.callback(self._assigned.wake)
        self._parts = _Parts(consumption, queues, popped, rebalancer)
        relay.attach(Consumer(client, self._subscriptions, queues, popped, locks, consumption.pool, handler))
        client.start()
        await introduce(client, self._wire_group, list(self._subscriptions.values()))
        rebalancer.start()

    def _single_handler(self, stack: AsyncExitStack) -> MessageHandler:
        """What is called with one message at a time."""
        if self._consume_batch_size is None:
            return cast(MessageHandler, self._handler)
        batches = Batches(
            cast(BatchHandler, self._handler), self._consume_batch_size, self._consume_batch_wait_ms, self._concurrency
        )
        stack.push_async_callback(batches.close)
        return batches

    @property
    def _messages_at_a_time(self) -> int:
        return self._concurrency * (self._consume_batch_size or 1)

    def _consumption(
        self, client: ClientInstance, handler: MessageHandler, locks: HeldLocks | None
    ) -> ConsumeConcurrently | ConsumeOrderly:
        most = self._most_reconsume_times
        send_back = None if self._broadcasting else SendBack(client, self._wire_group, most)
        if self._orderly:
            return ConsumeOrderly(
                handler,
                self._concurrency,
                locks,
                send_back,
                self._max_reconsume_times,
                self._suspend_s,
                self._wire_topic_of,
            )
        return ConsumeConcurrently(
            handler, self._messages_at_a_time, send_back, self._consume_timeout_s, self._wire_topic_of
        )

    def _pop_queues(self, client: ClientInstance, handler: MessageHandler, queues: AssignedQueues) -> PoppedQueues:
        return PoppedQueues(
            client,
            self._wire_group,
            self._subscriptions,
            handler,
            self._messages_at_a_time,
            self._pop,
            self._options.max_body_size,
            self._options.consume_from_where,
            self._most_reconsume_times,
            self._strip_namespace,
            queues.statistics,
            self._assigned,
        )

    @property
    def _most_reconsume_times(self) -> int:
        return MAX_RECONSUME_TIMES if self._max_reconsume_times is None else self._max_reconsume_times

    async def _trace_hooks(self, stack: AsyncExitStack) -> list[ConsumeHook]:
        if not self._enable_trace:
            return []
        producer = Producer(
            self._name_servers,
            f"{TRACE_GROUP_PREFIX}-{self.group}-CONSUME",
            ssl_context=self._ssl_context,
            hooks=self._hooks,
        )
        await producer.start()
        stack.push_async_callback(lambda: producer.close(self._deadline.left()))
        dispatcher = TraceDispatcher(producer.send, self._trace_topic)
        stack.push_async_callback(lambda: dispatcher.close(self._deadline.left()))
        return [TraceHook(dispatcher)]

    def _forget(self) -> None:
        self._parts = None

    @property
    def assignment(self) -> set[MessageQueue]:
        """The queues that this consumer reads now; the retry topic's are among them."""
        if self._parts is None:
            return set()
        popped = self._parts.popped.queues if self._parts.popped is not None else set()
        return {self._user_queue(queue) for queue in self._parts.queues.queues | popped}

    def health(self) -> Health:
        """How this consumer is: its queues, their lag and last pulls, and the last error."""
        return self._health(self._parts.queues if self._parts is not None else None)

    def lag(self) -> dict[MessageQueue, int]:
        """How many messages of each pulled queue are stored and not yet consumed, as of the last pull."""
        return self._lag(self._parts.queues) if self._parts is not None else {}

    def _subscription_changed(self, wire_topic: str) -> None:
        if self._parts is not None and self._data is not None:
            self._data.subscription_data_set = list(self._subscriptions.values())
            self._parts.rebalancer.changed(wire_topic)

    def _consumer_ids_changed(self, connection: Connection, request: RemotingCommand) -> None:
        if self._parts is not None:
            self._parts.rebalancer.wake()

    def _pulled(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        topic = process_queue.queue.topic
        if topic == self._retry_topic:
            for message in messages:
                message.topic = message.properties.get(RETRY_TOPIC, message.topic)
        elif topic.startswith(RETRY_TOPIC_PREFIX):
            # What came back in POP mode, before the broker went over to PULL.
            for message in messages:
                message.topic = normal_topic(topic, self._wire_group)
        self._strip_namespace(messages)
        if self._parts is not None:
            self._parts.consumption.submit(process_queue, messages)

    def _wire_topic_of(self, message: MessageExt) -> str:
        return wrap_namespace(self._namespace, message.topic)


class _Parts(NamedTuple):
    """What a started consumer consists of, as far as it is asked for."""

    consumption: ConsumeConcurrently | ConsumeOrderly
    queues: AssignedQueues
    popped: PoppedQueues | None
    rebalancer: Rebalancer
