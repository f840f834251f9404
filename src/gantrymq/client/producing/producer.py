"""Producer: sends messages (`DefaultMQProducerImpl`).

`send` encodes the message (`message_encoder`). A `Sender` picks a queue from the topic's route and makes the request.
This path creates no task and copies the body once, into the frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from itertools import chain
from typing import Any, cast

from gantrymq.client.broker_api import TIMEOUT_MS, SendResult
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.lifecycle import Lifecycle
from gantrymq.client.middleware import Send, SendContext, around_sends
from gantrymq.client.namespace import without_namespace, wrap_namespace
from gantrymq.client.options import takes
from gantrymq.client.producing.batch_accumulator import BatchAccumulator, BatchKey
from gantrymq.client.producing.blocking_sends import BlockingSends
from gantrymq.client.producing.direct_sends import DirectSends
from gantrymq.client.producing.enqueued_sends import EnqueuedSend, EnqueuedSends
from gantrymq.client.producing.message_encoder import NOT_IN_A_BATCH, EncodedMessage, Encoder, may_be_batched
from gantrymq.client.producing.options import ProducerOptions
from gantrymq.client.producing.queue_selector import QueueSelector, queue_by_hash, queue_of_lite_topic
from gantrymq.client.producing.request_reply import Requests, reply_topic
from gantrymq.client.producing.send_attempt import Outcome, SendAttempt, first_look
from gantrymq.client.producing.sender import MIN_TRY_MS, MOVING_S, Sender
from gantrymq.client.trace import TraceDispatcher
from gantrymq.client.trace_middleware import SendTraces
from gantrymq.errors import (
    BrokerError,
    BrokerUnavailable,
    ClientClosed,
    ClientError,
    GantryError,
    IllegalMessage,
    NoRouteInfo,
    RemotingError,
    RequestTimeout,
    RouteNotReady,
    SendOutcomeUnknown,
)
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.bodies.heartbeat import ProducerData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.timer import RecallMessageRequestHeader
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.recall_handle import decode_recall_handle
from gantrymq.remoting.connection import RequestHandler
from gantrymq.system import clock, network
from gantrymq.times import duration_ms

log = peer_log(__name__)

#: The properties that select the queue of a message. They are constants here, because each send looks for them.
SHARDING_KEY, DEDUPLICATE_ID, LITE_TOPIC = names.SHARDING_KEY, names.DEDUPLICATE_ID, names.LITE_TOPIC
SELECTING = frozenset((SHARDING_KEY, DEDUPLICATE_ID, LITE_TOPIC))

#: Default timeout of a call, in seconds.
TIMEOUT_S = TIMEOUT_MS / 1000
#: Share of a call's timeout for heartbeats to new brokers. There is a limit, because a broker may hang.
GREETING_SHARE = 0.25
#: Default group of Java's producers (`MixAll.DEFAULT_PRODUCER_GROUP`).
DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"


class Producer(Lifecycle):
    """Sends messages to a RocketMQ cluster.

    Example:
        async with Producer("127.0.0.1:9876", "orders") as producer:
            result = await producer.send(Message("orders", b"42 apples"))

    A failed send is retried on another broker if the topic has several. All attempts share the timeout of the call.
    With `linger`, messages are sent in batches. Each timeout is in seconds, or a timedelta.
    """

    @takes(ProducerOptions)
    def __init__(self, options: ProducerOptions) -> None:
        super().__init__()
        self._options = options
        self._namespace = options.namespace
        #: Group with its namespace.
        self.group = options.wire_group
        self._trace_dispatcher: TraceDispatcher | None = None
        self._batches: BatchAccumulator | None = None
        #: True if `enqueue` needs no middleware and no namespace.
        self._adds_at_once = False
        self._trace_topic = options.trace_topic if options.enable_trace else None
        #: The middleware around sends, or None.
        self._around = around_sends(options.middleware)
        self._sender: Sender | None = None
        #: Starts the sends that need no namespace, middleware, hook or batch. None if one of these is in use.
        self._direct: DirectSends | None = None
        #: Sends in the thread of a caller, under the same conditions. Also None with TLS.
        self._blocking: BlockingSends | None = None
        self._requests = Requests()
        self._enqueued = EnqueuedSends()
        self._set_encoder(UniqueKeys())

    async def _open(self, stack: AsyncExitStack) -> None:
        options = self._options
        if options.group == DEFAULT_PRODUCER_GROUP:
            raise IllegalMessage(f"the group {DEFAULT_PRODUCER_GROUP} is no program's own: name another")
        needs_steps = (options.rpc_hooks, self._namespace, options.linger_s, self._around, self._trace_topic)
        has_direct_sends = not any(needs_steps)
        client = ClientInstance(
            options.name_servers,
            group_data=ProducerData(self.group),
            handlers=self._handlers(),
            ssl_context=options.ssl_context,
            hooks=options.rpc_hooks,
            unit_name=options.unit_name,
            first_look=first_look() if has_direct_sends else None,
        )
        stack.callback(self._forget)
        stack.push_async_callback(lambda: client.close(self._deadline.left()))
        client.start()
        packed_ip = network.packed_ip(client.ip)
        self._set_encoder(UniqueKeys(packed_ip))
        self._sender = sender = Sender(client, self.group, options)
        stack.push_async_callback(self._sender.close)
        stack.callback(self._requests.close)
        if self._trace_topic is not None:
            self._trace_dispatcher = TraceDispatcher(self._send_now, self._trace_topic)
            stack.push_async_callback(lambda trace: trace.close(self._deadline.left()), self._trace_dispatcher)
            self._around = around_sends([*options.middleware, SendTraces(self._trace_dispatcher)])
        stack.push_async_callback(lambda: self._enqueued.close(self._deadline.left()))
        if has_direct_sends:
            self._direct = DirectSends(sender, self._encoder)
            if options.ssl_context is None:
                # Each thread has its own encoder, because two threads must not take the same message id.
                self._blocking = BlockingSends(
                    lambda to: DirectSends(sender, Encoder(UniqueKeys(packed_ip), options), to)
                )
        if options.linger_s > 0:
            self._batches = BatchAccumulator(self._send_gathered, options)
            self._adds_at_once = self._around is None and not self._namespace
            stack.push_async_callback(lambda batches: batches.close(self._deadline.left()), self._batches)

    def _forget(self) -> None:
        if self._blocking is not None:
            # Last, because its sends may receive their responses while the client closes.
            self._blocking.close()
        self._sender = self._direct = self._blocking = self._batches = self._trace_dispatcher = None
        # Drops the middleware for traces.
        self._around = around_sends(self._options.middleware)

    @property
    def client(self) -> ClientInstance:
        """Connections and routes. Raises ClientClosed before the start and after the close."""
        return self.sender.client

    @property
    def sender(self) -> Sender:
        """Sends encoded messages to brokers. Raises ClientClosed before the start and after the close."""
        self._check_open()
        assert self._sender is not None
        return self._sender

    def _handlers(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._requests.push}

    # -- sending ------------------------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        timeout: float | timedelta = TIMEOUT_S,
    ) -> SendResult:
        """Stores `message` in a broker.

        The client uses the queues of the topic in turn. If the message has a `lite_topic`, its hash code selects the
        queue, otherwise that of its `sharding_key` or `deduplicate_id`. A send to a selected queue is never retried on
        another broker. It is retried while the broker's master changes. With a `deduplicate_id`, it is also retried if
        the connection is lost.

        Args:
            message: Message to send.
            queue: Queue to send to. Default: the client selects one.
            select: Called with the topic's writable queues and the message. Returns one of the queues.
            timeout: Timeout for all attempts together, in seconds or as a timedelta. Default: 3.0.

        Returns:
            The result. Its status is SEND_OK. Without a controller, another status is possible: the master has the
            message, but its flush or a slave was too slow.

        Raises:
            SendOutcomeUnknown: The message may be stored. If `status` is set, the master has the message, but the
                in-sync set (of a broker with a controller) has not confirmed it.
            IllegalMessage: The message is invalid and not stored.
            ClientError: `select` fails, or returns anything other than one of the topic's queues; or middleware does
                not return the result of its `call`.
            NoRouteInfo: The topic has no route.
            RouteNotReady: A NameServer has just started, and the topic's route is incomplete. Raised only with
                `select`, a `lite_topic`, a `sharding_key` or a `deduplicate_id`, which could select another queue than
                with the complete route.
            BrokerUnavailable: No broker of the topic has a master at present.
            BrokerError: The broker rejected the message.
            RemotingError: Another failure of the connection. The message is not stored.
        """
        timeout_ms = TIMEOUT_MS if timeout is TIMEOUT_S else _timeout_ms(timeout)
        direct = self._direct
        if direct is not None and queue is None and select is None:
            self._check_open()
            assert self._loop is not None
            future: asyncio.Future[SendResult | RemotingCommand] = self._loop.create_future()
            attempt = direct.begin(message, timeout_ms, future)
            if attempt is not None:
                # Written out here, because each nested coroutine costs 0.2 us per message.
                sender = direct.sender
                result: SendResult | RemotingCommand | None
                try:
                    result = await future
                except RemotingError:
                    result = None
                except BaseException:
                    # A later response is ignored.
                    attempt.connection.pending.discard(attempt.opaque)
                    sender.cancelled(attempt)
                    raise
                if type(result) is SendResult:
                    if attempt.fault is not None:
                        sender.stored(attempt)
                    return result
                return await sender.send_after(attempt)
        if select is not None:
            if queue is not None:
                raise ClientError("queue and select exclude each other: give one of them")
            deadline = clock.monotonic() + timeout_ms / 1000
            queue = await self._selected(message, select, timeout_ms)
            timeout_ms = _left_ms(deadline)
        if self._batches is not None and may_be_batched(message):
            return await (await self._enqueue(message, timeout_ms, queue, or_alone=True))
        self._check_open()
        return await self._send_one(message, timeout_ms, queue)

    def begin_send(
        self, message: Message, outcome: Outcome, *, timeout: float | timedelta = TIMEOUT_S
    ) -> SendAttempt | None:
        """Writes the request of the first attempt of a `send`, for `SyncProducer`. Call it in the event loop.

        Args:
            message: Message to send.
            outcome: Receives the outcome of the attempt.
            timeout: Limit for all attempts together, in seconds or as a timedelta. Default: 3.0.

        Returns:
            The attempt, or None if this message needs `send`.

        Raises:
            IllegalMessage: The message is invalid.
            ClientClosed: The producer is not started, or it is closed.
            ClientError: The timeout is invalid.
        """
        direct = self._direct
        if direct is None:
            return None
        self._check_open()
        return direct.begin(message, _timeout_ms(timeout), outcome)

    def send_blocking(
        self, message: Message, *, timeout: float | timedelta = TIMEOUT_S
    ) -> SendResult | Coroutine[Any, Any, SendResult] | None:
        """Sends like `send`, for `SyncProducer`. Call it in a thread without the event loop.

        Args:
            message: Message to send.
            timeout: Limit for all attempts together, in seconds or as a timedelta. Default: 3.0.

        Returns:
            The result. If the first attempt has failed, a coroutine that continues the send in the event loop. None if
            this message needs the event loop, or if another thread uses this method.

        Raises:
            IllegalMessage: The message is invalid.
            ClientError: The timeout is invalid.
        """
        blocking, sender = self._blocking, self._sender
        if blocking is None or sender is None or not self._is_open:
            return None
        sent = blocking.send(message, _timeout_ms(timeout))
        return sender.send_after(sent) if isinstance(sent, SendAttempt) else sent

    async def send_alone(
        self, message: Message, *, queue: MessageQueue | None = None, timeout: float | timedelta = TIMEOUT_S
    ) -> SendResult:
        """Sends like `send`, but never in a batch."""
        self._check_open()
        return await self._send_one(message, _timeout_ms(timeout), queue)

    def _send_one(
        self, message: Message, timeout_ms: int = TIMEOUT_MS, queue: MessageQueue | None = None
    ) -> Coroutine[Any, Any, SendResult]:
        if self._around is None:
            return self._send_now(message, timeout_ms, queue)
        return self._send_around([message], lambda context: self._send_now(context.messages[0], timeout_ms, queue))

    def _send_now(
        self, message: Message, timeout_ms: int = TIMEOUT_MS, queue: MessageQueue | None = None
    ) -> Coroutine[Any, Any, SendResult]:
        """Sends one message without the middleware. Also works while the producer closes, for traces."""
        topic = self._topic(message, queue)
        encoded = self._encoder.encode(topic, message, message.properties)
        if (own := message.properties) and (
            DEDUPLICATE_ID in own or (queue is None and (SHARDING_KEY in own or LITE_TOPIC in own))
        ):
            return self._send_by_key([message], encoded, timeout_ms, queue)
        return self._send_encoded(encoded, timeout_ms, queue)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout: float | timedelta = TIMEOUT_S
    ) -> SendResult:
        """Stores messages of one topic in one queue, in one request.

        The broker stores either all messages or none. Messages that it has stored before (`deduplicate_id`) are left
        out. Raises the errors of `send`, and ClientError if `queue` is not given and the sharding keys of the messages
        select several queues, or their ids select several brokers.

        Args:
            messages: Messages to send.
            queue: Queue to send to. Default: the client selects one.
            timeout: Timeout for all attempts together, in seconds or as a timedelta. Default: 3.0.
        """
        self._check_open()
        timeout_ms = _timeout_ms(timeout)
        if not messages:
            raise IllegalMessage("a batch needs at least one message")
        if self._around is None:
            return await self._send_batch(messages, timeout_ms, queue)
        return await self._send_around(messages, lambda context: self._send_batch(context.messages, timeout_ms, queue))

    async def _send_batch(self, messages: Sequence[Message], timeout_ms: int, queue: MessageQueue | None) -> SendResult:
        topic = self._topic(messages[0], queue)
        properties = [message.properties for message in messages]
        encoded = self._encoder.encode_batch(topic, messages, properties)
        if queue is None and any(properties) and not SELECTING.isdisjoint(chain.from_iterable(properties)):
            return await self._send_by_key(messages, encoded, timeout_ms)
        return await self._send_encoded(encoded, timeout_ms, queue)

    async def enqueue(
        self, message: Message, *, queue: MessageQueue | None = None, timeout: float | timedelta = TIMEOUT_S
    ) -> asyncio.Future[SendResult]:
        """Adds `message` to a batch and returns a future for the result of `send`.

        This method waits while `buffer_bytes` are pending. For a message with a `sharding_key`, it also waits for the
        topic's route, and can raise the errors of `send` about routes. The broker stores the whole batch or nothing, so
        an error applies to all its messages.

        Args:
            message: Message to send.
            queue: Queue to send to. Default: the client selects one, as in `send`.
            timeout: Timeout from the send of the batch, in seconds or as a timedelta. Default: 3.0.

        Raises:
            ClientError: The producer has no `linger`.
            IllegalMessage: The message is invalid, or cannot be in a batch: delayed and half messages, replies,
                messages with a priority or a lite topic, and those to retry topics. Middleware can cause this error,
                too, if it adds a delay, a priority or a lite topic.
        """
        timeout_ms = TIMEOUT_MS if timeout is TIMEOUT_S else _timeout_ms(timeout)
        batches = self._batches
        if batches is not None and queue is None and not message.properties and self._adds_at_once:
            # The steps of `_enqueue` that an ordinary message needs. `_enqueue` takes 1 us more.
            self._check_open()
            future = batches.add_to_open(message.topic, self._encoder.encode_part(message.topic, message), timeout_ms)
            if future is not None:
                if batches.has_begun or batches.bytes >= batches.buffer_bytes:
                    await self._wait_for_space(batches, future)
                return future
        return await self._enqueue(message, timeout_ms, queue)

    async def _enqueue(
        self, message: Message, timeout_ms: int, queue: MessageQueue | None, *, or_alone: bool = False
    ) -> asyncio.Future[SendResult]:
        """With `or_alone`, a message is sent alone if a change by the middleware excludes it from batches."""
        self._check_open()
        batches = self._batches
        if batches is None:
            raise ClientError("this producer makes no batches: give it linger, or use send")
        if self._around is not None:
            future = await self._add_around(message, timeout_ms, queue, or_alone)
        elif queue is None and (own := message.properties) and (SHARDING_KEY in own or DEDUPLICATE_ID in own):
            future = await self._add_by_key(message, timeout_ms)
        else:
            future = self._add_to_batch(message, timeout_ms, queue)
        if batches.has_begun or batches.bytes >= batches.buffer_bytes:
            await self._wait_for_space(batches, future)
        return future

    async def _wait_for_space(self, batches: BatchAccumulator, future: asyncio.Future[SendResult]) -> None:
        try:
            await batches.wait_for_space()
        except asyncio.CancelledError:
            # Cancels the middleware. The batch still has the message.
            future.cancel()
            raise

    async def _add_around(
        self, message: Message, timeout_ms: int, queue: MessageQueue | None, or_alone: bool
    ) -> asyncio.Future[SendResult]:
        """Adds a message to a batch inside the middleware. The future gets the result of the middleware."""

        async def send(enqueued: EnqueuedSend) -> SendResult:
            async def add(context: SendContext) -> SendResult:
                self._check_open()
                changed = context.messages[0]
                if or_alone and not may_be_batched(changed):
                    enqueued.set_added()
                    return await self._send_now(changed, timeout_ms, queue)
                if queue is None and not SELECTING.isdisjoint(changed.properties):
                    future = await self._add_by_key(changed, timeout_ms)
                else:
                    future = self._add_to_batch(changed, timeout_ms, queue)
                enqueued.set_added()
                return await future

            return await self._send_around([message], add)

        return await self._enqueued.start(message.topic, send)

    async def _add_by_key(self, message: Message, timeout_ms: int) -> asyncio.Future[SendResult]:
        """Adds a message to a batch for its sharding key's queue. The timeout includes the search for the queue."""
        if not may_be_batched(message):
            raise IllegalMessage(NOT_IN_A_BATCH)
        deadline = clock.monotonic() + timeout_ms / 1000
        queue = await self._queue_of_key([message], timeout_ms)
        # The producer may have been closed in the meantime.
        self._check_open()
        return self._add_to_batch(message, _left_ms(deadline), queue)

    def _add_to_batch(
        self, message: Message, timeout_ms: int, queue: MessageQueue | None
    ) -> asyncio.Future[SendResult]:
        topic = self._topic(message, queue)
        if not may_be_batched(message):
            raise IllegalMessage(NOT_IN_A_BATCH)
        batches = self._batches
        if batches is None:
            raise ClientClosed("this producer was closed meanwhile")
        key = topic, queue if queue is None else self._with_namespace(queue)
        return batches.add(key, self._encoder.encode_part(topic, message), timeout_ms)

    async def flush(self) -> None:
        """Sends all open batches at once, and waits until each message in a batch has a result or an error.

        The wait includes the middleware of these messages, unless middleware itself calls `flush`. It does not include
        messages that are added after the call. `flush` raises no errors of sends. The futures of `enqueue` and the
        calls of `send` raise them. Without `linger` there are no batches, and `flush` has no effect.
        """
        self._check_open()
        if self._batches is not None:
            inside_middleware = self._enqueued.added()
            await self._batches.flush()
            if inside_middleware:
                await asyncio.wait(inside_middleware)

    async def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Sends a message without a response. The result is unknown, and there are no retries.

        For a message with a `sharding_key`, waits for the topic's route, and raises the errors of `send` about routes.
        """
        self._check_open()
        if self._around is None:
            await self._send_oneway(message, queue)
            return

        async def send(context: SendContext) -> None:
            context.msg_id, context.address = await self._send_oneway(context.messages[0], queue)

        await self._send_around([message], send, oneway=True)

    async def _send_oneway(self, message: Message, queue: MessageQueue | None) -> tuple[str, str]:
        """Returns the message id, and HOST:PORT of the broker."""
        topic = self._topic(message, queue)
        encoded = self._encoder.encode(topic, message, message.properties)
        if queue is None and not SELECTING.isdisjoint(message.properties):
            queue = await self._queue_of_key([message], TIMEOUT_MS)
        if self._encoder.wants_compression(encoded):
            encoded = await self._encoder.compress(encoded)
        return encoded.msg_id, await self.sender.send_oneway(encoded, self._with_namespace(queue))

    async def request(self, message: Message, *, timeout: float | timedelta = TIMEOUT_S) -> MessageExt:
        """Sends `message` as a request and returns the consumer's reply, which `reply_message` creates.

        Args:
            message: Request to send.
            timeout: Timeout for the request and its reply, in seconds or as a timedelta. Default: 3.0.

        Raises:
            RequestTimeout: No reply arrives in this time.
            GantryError: As for `send`.
        """
        client, timeout_ms = self.client, _timeout_ms(timeout)
        request, correlation_id, reply = self._requests.begin(message, client.client_id, timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                # A broker needs this client's heartbeat first, because it routes the reply by client id.
                await self._greet_repliers(message.topic, timeout_ms)
                await self._send_one(request, timeout_ms)
                return await reply
        except TimeoutError:
            text = f"no reply to the request to {message.topic} in {timeout_ms} ms: is a consumer there that replies?"
            raise RequestTimeout(text, message.topic) from None
        finally:
            self._requests.end(correlation_id)

    async def _greet_repliers(self, topic: str, timeout_ms: int) -> None:
        """Sends heartbeats to all brokers of the topic's clusters, because a reply can arrive through any of them."""
        topic = wrap_namespace(self._namespace, topic)
        await self.sender.publish_info(topic, timeout_ms)
        routes = self.client.routes
        route = routes.cached(topic)
        for cluster in {broker.cluster for broker in route.broker_datas} if route is not None else ():
            with suppress(NoRouteInfo):
                await routes.get(reply_topic(cluster))
        await self.client.greet_new_brokers(timeout_ms * GREETING_SHARE / 1000)

    async def recall(self, topic: str, recall_handle: str, *, timeout: float | timedelta = TIMEOUT_S) -> str:
        """Recalls a timer message that has not been delivered yet, and returns its unique key.

        Args:
            topic: Topic of the message.
            recall_handle: `recall_handle` of the result of its send.
            timeout: Timeout, in seconds or as a timedelta. Default: 3.0.

        Raises:
            IllegalMessage: The handle is invalid.
            NoRouteInfo: The topic has no route.
            BrokerUnavailable: The broker has no master at present.
            BrokerError: The broker rejected the request.
            RemotingError: The connection failed.
        """
        timeout_ms = _timeout_ms(timeout)
        handle = decode_recall_handle(recall_handle)
        topic = wrap_namespace(self._namespace, topic)
        header = RecallMessageRequestHeader(
            topic=topic, recall_handle=recall_handle, producer_group=self.group, bname=handle.broker_name
        )
        client = self.client
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.sender.publish_info(topic, timeout_ms)
                address = await self.sender.broker_address(MessageQueue(topic, handle.broker_name, 0), timeout_ms)
                return await client.api.recall(address, header, timeout_ms)
        except TimeoutError:
            raise RequestTimeout(
                f"{handle.broker_name} did not answer in {timeout_ms} ms", handle.broker_name
            ) from None

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Returns the writable queues of `topic`.

        Raises:
            NoRouteInfo: The topic has no route.
            RouteNotReady: A NameServer has just started, and not all brokers of the topic have registered with it.
        """
        return await self._queues(topic, TIMEOUT_MS)

    # -- for subclasses -----------------------------------------------------------------------------------------

    def _next_unique_key(self) -> str:
        return self._unique_keys.next()

    def _wire_topic(self, topic: str) -> str:
        """Returns `topic` with the namespace, as brokers see it."""
        return wrap_namespace(self._namespace, topic)

    async def _greet_brokers_of(self, topic: str, timeout_ms: int) -> None:
        """Sends heartbeats to the brokers of `topic`, without waiting for brokers that hang."""
        await self.sender.publish_info(wrap_namespace(self._namespace, topic), timeout_ms)
        await self.client.greet_new_brokers(timeout_ms * GREETING_SHARE / 1000)

    # -- one send -----------------------------------------------------------------------------------------------

    def _send_encoded(
        self, encoded: EncodedMessage, timeout_ms: int, queue: MessageQueue | None
    ) -> Coroutine[Any, Any, SendResult]:
        """Returns a coroutine that sends `encoded`: the sender's own one if no namespace or compression is needed."""
        if self._namespace or self._encoder.wants_compression(encoded) or self._sender is None:
            return self._prepare_and_send(encoded, timeout_ms, queue)
        return self._sender.send(encoded, timeout_ms, queue)

    async def _send_by_key(
        self, messages: Sequence[Message], encoded: EncodedMessage, timeout_ms: int, queue: MessageQueue | None = None
    ) -> SendResult:
        """Sends to `queue`, or to the queue of the lite topic, sharding keys or ids. The timeout includes the search.

        If all messages have ids, repeats the send after a lost connection. If a message was stored before, the result
        has the unique key of the stored message.
        """
        deadline = clock.monotonic() + timeout_ms / 1000
        if queue is None:
            queue = await self._queue_of_key(messages, timeout_ms)
        have_ids = all(DEDUPLICATE_ID in message.properties for message in messages)
        repeats_left = self._options.retry_times if have_ids else 0
        unknown: SendOutcomeUnknown | None = None
        while True:
            try:
                result = await self._send_encoded(encoded, _left_ms(deadline), queue)
                break
            except SendOutcomeUnknown as e:
                unknown = e
                is_late = _left_ms(deadline) < 1000 * MOVING_S + MIN_TRY_MS
                if not repeats_left or e.status is not None or is_late:
                    raise
                log.info("send of %s to %s is repeated: %s", encoded.msg_id, queue, e)
            except (BrokerError, RemotingError, BrokerUnavailable) as e:
                if unknown is None:
                    raise
                # An earlier attempt may have stored the message, so this error must not hide it.
                raise unknown from e
            repeats_left -= 1
            await asyncio.sleep(MOVING_S)
        if have_ids and len(messages) == 1 and result.transaction_id:
            result = result._replace(msg_id=result.transaction_id)
        return result

    async def _prepare_and_send(
        self, encoded: EncodedMessage, timeout_ms: int, queue: MessageQueue | None
    ) -> SendResult:
        if self._encoder.wants_compression(encoded):
            encoded = await self._encoder.compress(encoded)
        if self._sender is None:
            raise ClientClosed("this producer was closed meanwhile")
        result = await self._sender.send(encoded, timeout_ms, self._with_namespace(queue))
        if self._namespace:
            topic = without_namespace(result.queue.topic, self._namespace)
            result = result._replace(queue=result.queue._replace(topic=topic))
        return result

    async def _send_around(
        self,
        messages: Sequence[Message],
        send: Callable[[SendContext], Coroutine[Any, Any, SendResult | None]],
        *,
        oneway: bool = False,
    ) -> SendResult:
        """Calls `send` inside the middleware, with copies of the messages. Returns the result of the middleware."""
        assert self._around is not None
        client = self.client

        async def sent(context: SendContext) -> SendResult | None:
            if not context.messages:
                raise ClientError("middleware removed all messages of the send: raise an error to refuse a message")
            try:
                result = await send(context)
            except (RemotingError, BrokerError) as e:
                context.address = e.address
                raise
            if result is not None:
                context.address = client.routes.master_address(result.queue.broker_name) or ""
            return result

        context = Send(
            group=self._options.group,
            client_id=client.client_id,
            messages=tuple(
                Message(message.topic, message.body, flag=message.flag, properties=message.properties)
                for message in messages
            ),
            oneway=oneway,
            send=sent,
        )
        return cast(SendResult, await self._around(context))

    async def _send_gathered(self, key: BatchKey, parts: Sequence[EncodedMessage], timeout_ms: int) -> SendResult:
        topic, queue = key
        encoded = self._encoder.with_id(parts[0]) if len(parts) == 1 else self._encoder.join(topic, parts)
        return await self._send_encoded(encoded, timeout_ms, queue)

    # -- topics and queues --------------------------------------------------------------------------------------

    def _topic(self, message: Message, queue: MessageQueue | None) -> str:
        """Returns the topic of the message with its namespace. Raises IllegalMessage if `queue` has another topic."""
        topic = message.topic
        if queue is not None and queue.topic != topic:
            raise IllegalMessage(f"a message of topic {topic} can't go to a queue of {queue.topic}")
        return wrap_namespace(self._namespace, topic) if self._namespace else topic

    async def _selected(self, message: Message, select: QueueSelector, timeout_ms: int) -> MessageQueue:
        """Returns the queue that `select` returns. Raises ClientError if `select` fails or returns another value."""
        queues = await self._queues(message.topic, timeout_ms)
        try:
            queue = select(queues, message)
        except GantryError:
            raise
        except Exception as e:
            raise ClientError(f"the selector of a queue for topic {message.topic} failed: {e!r}") from e
        if not isinstance(queue, MessageQueue) or queue not in queues:
            raise ClientError(f"the selector returned {queue!r}, which is no writable queue of topic {message.topic!r}")
        return queue

    async def _queue_of_key(self, messages: Sequence[Message], timeout_ms: int) -> MessageQueue | None:
        """Returns the queue of the lite topic, of the sharding keys or of the ids; None without them.

        Raises ClientError if the keys select several queues or, without keys, the ids select several brokers.
        """
        if lite_topic := messages[0].lite_topic:
            return queue_of_lite_topic(lite_topic, await self._queues(messages[0].topic, timeout_ms))
        keys = {key for message in messages if (key := message.sharding_key)}
        ids = [] if keys else [own for message in messages if (own := message.deduplicate_id)]
        if not keys and not ids:
            return None
        queues = await self._queues(messages[0].topic, timeout_ms)
        if ids:
            found_for_ids = [queue_by_hash(own, queues) for own in ids]
            if len({queue.broker_name for queue in found_for_ids}) > 1:
                raise ClientError(
                    "the deduplication ids of a batch map to different brokers: send the messages one by one, with "
                    "linger, or pass queue="
                )
            return found_for_ids[0]
        found = {queue_by_hash(key, queues): key for key in sorted(keys)}
        if len(found) > 1:
            first, second, *_ = found.values()
            raise ClientError(
                f"the sharding keys {first!r} and {second!r} of a batch map to different queues: send a batch for each "
                "key, or pass queue="
            )
        return next(iter(found))

    def _with_namespace(self, queue: MessageQueue | None) -> MessageQueue | None:
        if queue is None or not self._namespace:
            return queue
        return queue._replace(topic=wrap_namespace(self._namespace, queue.topic))

    async def _queues(self, topic: str, timeout_ms: int) -> Sequence[MessageQueue]:
        wire_topic = wrap_namespace(self._namespace, topic)
        queues = (await self.sender.publish_info(wire_topic, timeout_ms)).queues
        # If the route lacks brokers, a selector maps keys to other queues than with the complete route.
        if awaited := self.client.routes.awaited(wire_topic):
            raise RouteNotReady(topic, self.client.routes.name_servers, awaited)
        return [queue._replace(topic=topic) for queue in queues] if self._namespace else queues

    def _set_encoder(self, unique_keys: UniqueKeys) -> None:
        self._unique_keys = unique_keys
        self._encoder = Encoder(unique_keys, self._options)


def _timeout_ms(timeout: float | timedelta) -> int:
    # The default needs no conversion. A comparison by identity costs least for each message.
    return TIMEOUT_MS if timeout is TIMEOUT_S else duration_ms("timeout", timeout)


def _left_ms(deadline: float) -> int:
    """Returns the time until `deadline` of the monotonic clock, at least 1 ms."""
    return max(1, int((deadline - clock.monotonic()) * 1000))
