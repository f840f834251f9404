"""PushConsumer: calls a handler with each message of its topics (`DefaultMQPushConsumerImpl`).

The queues are shared among the consumers of a group. A `QueuePuller` pulls messages, and `ConsumeConcurrently` or
`ConsumeOrderly` runs the handler. Then the message is removed from its `ProcessQueue`, or sent back to the broker,
which redelivers it later through the topic %RETRY%group. In POP mode, `PoppedQueues` pops and acknowledges messages.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple, TypeVar, cast

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.assigned_queues import AssignedQueues
from gantrymq.client.consuming.assignment import Health
from gantrymq.client.consuming.batches import Batches, BatchHandler
from gantrymq.client.consuming.concurrently import ConsumeConcurrently
from gantrymq.client.consuming.consumer_base import PullingConsumer
from gantrymq.client.consuming.consumer_context import ConsumerContext
from gantrymq.client.consuming.consumer_locks import ConsumerLocks
from gantrymq.client.consuming.consumer_relay import Consumer, ConsumerRelay, StatisticsCallback
from gantrymq.client.consuming.handler_pool import MessageHandler
from gantrymq.client.consuming.handlers import check_handler
from gantrymq.client.consuming.introduction import introduce
from gantrymq.client.consuming.options import PullingOptions
from gantrymq.client.consuming.orderly import ConsumeOrderly
from gantrymq.client.consuming.process_queue import FlowLimits, ProcessQueue
from gantrymq.client.consuming.rebalancer import Rebalancer, Share
from gantrymq.client.consuming.send_back import SendBack
from gantrymq.client.middleware import around_handler
from gantrymq.client.namespace import wrap_namespace
from gantrymq.client.options import duration, option, takes
from gantrymq.client.popping.pop_assignment import STRATEGY_NAMES, ShareByBroker
from gantrymq.client.popping.popped_queues import PopOptions, PoppedQueues
from gantrymq.client.producing.producer import Producer
from gantrymq.client.trace import TRACE_GROUP_PREFIX, TraceDispatcher
from gantrymq.client.trace_middleware import traced_handler
from gantrymq.errors import ClientError
from gantrymq.protocol.bodies.heartbeat import CONSUME_PASSIVELY, SubscriptionData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.properties import RETRY_TOPIC
from gantrymq.protocol.receipt_handle import normal_topic
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, TRACE_TOPIC, retry_topic
from gantrymq.remoting.connection import Connection
from gantrymq.times import duration_s

HandlerT = TypeVar("HandlerT", bound=MessageHandler | BatchHandler)

#: Default concurrency (consumeThreadMin).
CONCURRENCY = 20
#: Default retries of consumers that are not orderly (maxReconsumeTimes).
MAX_RECONSUME_TIMES = 16
#: Orderly consumers need no limit of the span: they always handle the oldest message first.
_NO_SPAN = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerOptions(PullingOptions):
    """Options of `PushConsumer`."""

    handler: MessageHandler | BatchHandler | None = field(
        default=None,
        kw_only=False,
        metadata={
            "doc": "Called with each message, or with a list if `consume_batch_size` is given. A coroutine function or "
            "a plain function, which is called in threads. None: a function decorated with `handler` of the consumer."
        },
    )
    concurrency: int = option(CONCURRENCY, "Messages, or lists, that are handled at the same time.", minimum=1)
    consume_batch_size: int | None = option(
        None,
        "Most messages of a list. The handler returns None if all are consumed, or a sequence with the outcomes: "
        "None or True, False or an exception. If it raises, all have failed.",
        minimum=1,
    )
    consume_batch_wait: float | timedelta = duration(0.1, "How long a list waits for more messages, in seconds.")
    orderly: bool = option(False, "Handles the messages of a queue one after the other.")
    suspend: float | timedelta = duration(1.0, "Pause of an orderly queue before it retries a message, in seconds.")
    max_reconsume_times: int | None = option(
        None,
        "Retries of a message before it goes to the dead-letter queue. None: "
        f"{MAX_RECONSUME_TIMES}, and without a limit if `orderly`.",
    )
    consume_timeout: float | timedelta = duration(
        15 * 60.0, "A message whose handler takes longer is redelivered, in seconds.", minimum=0.001
    )
    on_statistics: StatisticsCallback | None = option(None, "Called every 10 s with the `ConsumeStatus` of each topic.")
    client_rebalance: bool = option(
        True, "If false, the broker shares out the queues. Topics that are in POP mode there are popped."
    )
    pop: PopOptions | None = option(None, "How topics in POP mode are popped. None: `PopOptions()`.")
    enable_trace: bool = option(False, "Writes a trace of each message's consumption to `trace_topic`.")
    trace_topic: str = option(TRACE_TOPIC, "Topic of the traces.")

    def _check(self) -> None:
        PullingOptions._check(self)
        if self.handler is not None:
            check_handler(self.handler)
        if not self.client_rebalance and (self.orderly or self.broadcasting):
            raise ClientError("the broker shares out queues for neither orderly nor broadcasting consumers")
        if not self.client_rebalance and self.allocate not in STRATEGY_NAMES:
            raise ClientError("brokers share out queues by allocate_averagely or allocate_by_circle only")
        if self.consume_batch_size is not None and self.orderly:
            raise ClientError("messages in order are handled one after the other: no consume_batch_size")

    def limits(self) -> FlowLimits:
        limits = PullingOptions.limits(self)
        return replace(limits, max_span=_NO_SPAN) if self.orderly else limits

    @property
    def consume_timeout_s(self) -> float:
        return duration_s("consume_timeout", self.consume_timeout)

    @property
    def most_reconsume_times(self) -> int:
        return MAX_RECONSUME_TIMES if self.max_reconsume_times is None else self.max_reconsume_times

    @property
    def messages_at_a_time(self) -> int:
        return self.concurrency * (self.consume_batch_size or 1)


class PushConsumer(PullingConsumer):
    """Calls a handler with every message of the subscribed topics, up to `concurrency` at a time.

    Example:
        consumer = PushConsumer("127.0.0.1:9876", "group")
        consumer.subscribe("topic", tags="TagA || TagB")

        @consumer.handler
        async def handle(message: MessageExt) -> None: ...

        async with consumer:
            await asyncio.Event().wait()

    A message is consumed when the handler returns. If the handler raises or takes longer than `consume_timeout`, the
    message is redelivered after a delay that grows with each retry. After `max_reconsume_times` it goes to the
    dead-letter queue. Every message is delivered at least once. All consumers of a group must have the same
    subscriptions.

    If the handler of an `orderly` consumer raises, the queue waits `suspend` and the handler gets the same message
    again. An `orderly` consumer handles a message with an unreadable body only once.
    """

    _options: PushConsumerOptions

    @takes(PushConsumerOptions)
    def __init__(self, options: PushConsumerOptions) -> None:
        super().__init__(options)
        self._handler = options.handler
        self._orderly = options.orderly
        self._retry_topic = retry_topic(self._wire_group)
        self._parts: _Parts | None = None

    def handler(self, handler: HandlerT) -> HandlerT:
        """Decorator for the function that handles the messages, as an alternative to the argument `handler`.

        Args:
            handler: Called with each message, as the constructor's argument.

        Raises:
            ClientError: The consumer has a handler, or this one cannot be called with one argument.
        """
        if self._handler is not None:
            raise ClientError(f"the consumer of group {self.group} has a handler: {self._handler!r}")
        check_handler(handler)
        self._handler = handler
        return handler

    async def _open(self, stack: AsyncExitStack) -> None:
        """Joins the group and starts to consume. Returns before the first queue is assigned."""
        options = self._options
        if self._handler is None:
            raise ClientError("no handler: decorate a function with `@consumer.handler`, or pass it to PushConsumer")
        if not self._subscriptions:
            raise ClientError("subscribe to a topic before the start")
        if not self._broadcasting:
            self._subscriptions[self._retry_topic] = SubscriptionData.parse(self._retry_topic)
        relay = ConsumerRelay(
            self._wire_group, self._namespace, CONSUME_PASSIVELY, self._orderly, options.on_statistics
        )
        handlers = relay.handlers() | {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._consumer_ids_changed}
        deadline = self._deadline
        stack.callback(self._forget)
        client = self._connect(self._consumer_data(CONSUME_PASSIVELY), handlers, self._instance_name)
        stack.push_async_callback(lambda: client.close(deadline.left()))
        context = self._context(client)
        offset_store = self._offset_store(client)
        handler = await self._traced(self._single_handler(stack), stack)
        handler = around_handler(handler, options.middleware, self.group, client.client_id)
        locks = ConsumerLocks(client, self._wire_group) if self._orderly and not self._broadcasting else None
        consumption = self._consumption(client, handler, locks)
        queues = AssignedQueues(
            context,
            self._pulled,
            offset_store,
            commits=True,
            lite=False,
            locks=locks,
            finish=consumption.release,
        )
        stack.push_async_callback(queues.close, deadline)
        stack.push_async_callback(lambda: consumption.close(deadline.left()))
        popped: PoppedQueues | None = None
        share: Share = self._share(client, queues.assign)
        if not options.client_rebalance:
            popped = self._pop_queues(context, handler)
            stack.push_async_callback(popped.close, deadline)
            share = ShareByBroker(
                client, self._wire_group, options.allocate, self._subscriptions, queues.assign, popped.assign
            )
        stack.push_async_callback(queues.stop)
        rebalancer = Rebalancer(client, self._wire_group, self._subscriptions, share)
        stack.push_async_callback(relay.close)
        stack.push_async_callback(rebalancer.stop)
        # On close, wake all callers that wait for queues.
        stack.callback(self._assigned.wake)
        self._parts = _Parts(client, consumption, queues, popped, rebalancer)
        relay.attach(Consumer(client, self._subscriptions, queues, popped, locks, consumption.pool, handler))
        client.start()
        await introduce(
            client,
            self._wire_group,
            list(self._subscriptions.values()),
            shares_queues=not self._broadcasting and options.client_rebalance,
        )
        rebalancer.start()

    def _single_handler(self, stack: AsyncExitStack) -> MessageHandler:
        """Returns a handler of one message: the application's handler, or one that collects batches for it."""
        options = self._options
        if options.consume_batch_size is None:
            return cast(MessageHandler, self._handler)
        batches = Batches(
            cast(BatchHandler, self._handler),
            options.consume_batch_size,
            duration_s("consume_batch_wait", options.consume_batch_wait),
            options.concurrency,
        )
        stack.push_async_callback(batches.close)
        return batches

    def _consumption(
        self, client: ClientInstance, handler: MessageHandler, locks: ConsumerLocks | None
    ) -> ConsumeConcurrently | ConsumeOrderly:
        options = self._options
        send_back = None if self._broadcasting else SendBack(client, self._wire_group, options.most_reconsume_times)
        if self._orderly:
            return ConsumeOrderly(
                handler,
                options.concurrency,
                locks,
                send_back,
                options.max_reconsume_times,
                duration_s("suspend", options.suspend),
                self._wire_topic_of,
                self._take_anew,
            )
        return ConsumeConcurrently(
            handler, options.messages_at_a_time, send_back, options.consume_timeout_s, self._wire_topic_of
        )

    def _pop_queues(self, context: ConsumerContext, handler: MessageHandler) -> PoppedQueues:
        options = self._options
        return PoppedQueues(
            context,
            options.pop or PopOptions(),
            handler,
            self._strip_namespace,
            concurrency=options.messages_at_a_time,
            max_reconsume_times=options.most_reconsume_times,
        )

    async def _traced(self, handler: MessageHandler, stack: AsyncExitStack) -> MessageHandler:
        options = self._options
        if not options.enable_trace:
            return handler
        producer = Producer(
            options.name_servers,
            f"{TRACE_GROUP_PREFIX}-{self.group}-CONSUME",
            ssl_context=options.ssl_context,
            credentials=options.credentials,
            hooks=options.hooks,
        )
        await producer.start()
        stack.push_async_callback(lambda: producer.close(timeout=self._deadline.left()))
        dispatcher = TraceDispatcher(producer.send, options.trace_topic)
        stack.push_async_callback(lambda: dispatcher.close(self._deadline.left()))
        return traced_handler(handler, dispatcher, self.group, options.consume_timeout_s)

    def _forget(self) -> None:
        self._parts = None

    @property
    def assignment(self) -> set[MessageQueue]:
        """The assigned queues, including queues of the retry topic."""
        if self._parts is None:
            return set()
        popped = self._parts.popped.queues if self._parts.popped is not None else set()
        return {self._user_queue(queue) for queue in self._parts.queues.queues | popped}

    def health(self) -> Health:
        """Returns the state of this consumer: its queues, their lag and last pulls, and the last error."""
        return self._health(self._parts.queues if self._parts is not None else None)

    def lag(self) -> dict[MessageQueue, int]:
        """Returns the number of stored messages of each pulled queue that are not consumed, as of the last pull."""
        return self._lag(self._parts.queues) if self._parts is not None else {}

    def _subscription_changed(self, wire_topic: str) -> None:
        if self._parts is not None:
            self._parts.client.set_subscriptions(self._subscriptions.values())
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
            # The message was redelivered in POP mode, before the broker changed to pull mode.
            for message in messages:
                message.topic = normal_topic(topic, self._wire_group)
        self._strip_namespace(messages)
        if self._parts is not None:
            self._parts.consumption.submit(process_queue, messages)

    def _take_anew(self, process_queue: ProcessQueue) -> None:
        if self._parts is not None:
            self._parts.queues.take_anew(process_queue)

    def _wire_topic_of(self, message: MessageExt) -> str:
        return wrap_namespace(self._namespace, message.topic)


class _Parts(NamedTuple):
    """The parts of a started consumer that its methods use."""

    client: ClientInstance
    consumption: ConsumeConcurrently | ConsumeOrderly
    queues: AssignedQueues
    popped: PoppedQueues | None
    rebalancer: Rebalancer
