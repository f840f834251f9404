"""Producer: sends messages.

The path of one message: `send` has it encoded (`outgoing`), a `Sender` picks a queue from the topic's route and makes
the request. It makes no task; the body is copied once, into the frame.
Source: client/impl/producer/DefaultMQProducerImpl.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from gantrymq.client.broker_api import TIMEOUT_MS, SendResult
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.lifecycle import Lifecycle
from gantrymq.client.namespace import without_namespace, wrap_namespace
from gantrymq.client.producing.batch_accumulator import BATCH_SIZE, BUFFER_BYTES, BatchAccumulator, BatchKey
from gantrymq.client.producing.options import check_names, check_options, whole_ms
from gantrymq.client.producing.outgoing import (
    COMPRESS_OVER,
    MAX_MESSAGE_SIZE,
    NOT_IN_A_BATCH,
    Encoder,
    Outgoing,
    may_be_batched,
)
from gantrymq.client.producing.queue_selector import QueueSelector
from gantrymq.client.producing.request_reply import Requests, reply_topic
from gantrymq.client.producing.send_command import DEFAULT_TOPIC_QUEUE_NUMS
from gantrymq.client.producing.send_hook import HookedSends, SendHook
from gantrymq.client.producing.sender import Sender, SendSettings
from gantrymq.client.trace import TraceDispatcher
from gantrymq.client.trace_hook import SendTraceHook
from gantrymq.errors import (
    ClientClosed,
    ClientError,
    GantryError,
    IllegalMessage,
    NoRouteInfo,
    RequestTimeout,
    RouteNotReady,
)
from gantrymq.protocol.bodies.heartbeat import ProducerData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.compression import CompressionType
from gantrymq.protocol.headers.timer import RecallMessageRequestHeader
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.recall_handle import decode_recall_handle
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC, TRACE_TOPIC
from gantrymq.remoting.connection import RequestHandler, RpcHook
from gantrymq.system import clock, network, tls

#: How much of its time a call that needs brokers to know this client waits for them: one may hang, and others do.
GREETING_SHARE = 0.25
#: `MixAll.DEFAULT_PRODUCER_GROUP`: the group of those who name none.
DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"


class Producer(Lifecycle):
    """Sends messages: `async with Producer("127.0.0.1:9876", "group") as producer: await producer.send(message)`.

    `name_servers` is a list of HOST:PORT, one string with `;` between them, or the URL of a page that says them.

    A failed send is tried again `retry_times` times, on another broker where there is one; so is, with
    `retry_when_not_stored_safely`, one that a broker stored without its flush or slave in time. All tries share the
    send's timeout: where a topic has several brokers each of the first ones has one of `retry_times` + 2 shares of it,
    so that a broker that hangs doesn't take all, and the last has what is left; `try_timeout_ms` is another bound for
    each but the last, and with the send's whole timeout there is none, as in Java. Brokers that were slow or failed are
    left out for a while, and those that owe answers asked last, unless `send_latency_fault_enable` is false; with
    `start_detector_enable` those that failed come back when they answer again.

    With `linger_ms` messages wait so long for others of their topic (or queue) and go out in one request, of at most
    `batch_size` bytes; senders wait while `buffer_bytes` are under way.

    A broker that makes topics by itself takes permissions of a new one from its topic `create_topic_key`, and gives it
    that one's queues, at most `default_topic_queue_nums`.

    Bodies of `compress_over` bytes and more are compressed, by `compression`; larger ones than `max_message_size` are
    refused. `namespace` is put before topics and the group. `enable_trace` has every send told to `trace_topic`;
    `send_hooks` are called around sends, `hooks` around requests; with an `ssl_context` connections are encrypted.
    Every `timeout_ms` is a whole number of milliseconds, for all that the call does.
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        group: str,
        *,
        namespace: str = "",
        retry_times: int = 2,
        retry_when_not_stored_safely: bool = False,
        try_timeout_ms: int | None = None,
        send_latency_fault_enable: bool = True,
        start_detector_enable: bool = False,
        linger_ms: float = 0,
        batch_size: int = BATCH_SIZE,
        buffer_bytes: int = BUFFER_BYTES,
        compress_over: int = COMPRESS_OVER,
        compression: CompressionType = CompressionType.ZLIB,
        max_message_size: int = MAX_MESSAGE_SIZE,
        create_topic_key: str = AUTO_CREATE_TOPIC,
        default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS,
        enable_trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
        send_hooks: Sequence[SendHook] = (),
        ssl_context: tls.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
    ) -> None:
        super().__init__()
        check_names(name_servers, group)
        check_options(
            {
                "retry_times": retry_times,
                "try_timeout_ms": try_timeout_ms,
                "linger_ms": linger_ms,
                "compress_over": compress_over,
                "compression": compression,
                "max_message_size": max_message_size,
                "default_topic_queue_nums": default_topic_queue_nums,
                "send_hooks": send_hooks,
                "ssl_context": ssl_context,
                "hooks": hooks,
            }
        )
        self.namespace = namespace
        #: With its namespace.
        self.group = wrap_namespace(namespace, group)
        self.trace: TraceDispatcher | None = None
        self._user_group = group
        self._settings = SendSettings(
            retry_times,
            retry_when_not_stored_safely,
            try_timeout_ms,
            send_latency_fault_enable,
            start_detector_enable,
            create_topic_key,
            default_topic_queue_nums,
        )
        self._batching = (linger_ms, batch_size, buffer_bytes) if linger_ms > 0 else None
        self._batches: BatchAccumulator | None = None
        self._encoding: dict[str, Any] = {
            "compress_over": compress_over,
            "compression": compression,
            "max_message_size": max_message_size,
        }
        self._trace_topic = trace_topic if enable_trace else None
        self._hooked = HookedSends(group, send_hooks)
        self._name_servers = name_servers
        self._ssl_context = ssl_context
        self._hooks = hooks
        self._sender: Sender | None = None
        self._requests = Requests()
        self._set_encoder(UniqueKeys())

    async def _open(self, stack: AsyncExitStack) -> None:
        if self._user_group == DEFAULT_PRODUCER_GROUP:
            raise IllegalMessage(f"the group {DEFAULT_PRODUCER_GROUP} is no program's own: name another")
        client = ClientInstance(
            self._name_servers,
            producer_data=ProducerData(self.group),
            handlers=self.handlers(),
            ssl_context=self._ssl_context,
            hooks=self._hooks,
        )
        stack.callback(self._forget)
        stack.push_async_callback(lambda: client.close(self._deadline.left()))
        client.start()
        self._hooked.client = client
        self._set_encoder(UniqueKeys(network.packed_ip(client.ip)))
        self._sender = Sender(client, self.group, self._settings)
        stack.push_async_callback(self._sender.close)
        stack.callback(self._requests.close)
        if self._trace_topic is not None:
            self.trace = TraceDispatcher(self._send_one, self._trace_topic)
            stack.push_async_callback(lambda trace: trace.close(self._deadline.left()), self.trace)
            self._hooked.trace_by(SendTraceHook(self.trace))
        if self._batching is not None:
            self._batches = BatchAccumulator(self._send_gathered, *self._batching)
            stack.push_async_callback(lambda batches: batches.close(self._deadline.left()), self._batches)

    def _forget(self) -> None:
        self._sender = self._batches = self.trace = None
        self._hooked.trace_by(None)

    @property
    def client(self) -> ClientInstance:
        """Connections and routes. Raises ClientClosed before the start and after the close."""
        return self.sender.client

    @property
    def sender(self) -> Sender:
        """What brings encoded messages to brokers. Raises ClientClosed before the start and after the close."""
        self._check_open()
        assert self._sender is not None
        return self._sender

    def handlers(self) -> Mapping[int, RequestHandler]:
        """What answers the requests of brokers."""
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._requests.push}

    # -- sending ------------------------------------------------------------------------------------------------

    async def send(
        self, message: Message, timeout_ms: int = TIMEOUT_MS, queue: MessageQueue | None = None
    ) -> SendResult:
        """Stores `message`; to `queue` alone if one is given. `timeout_ms` is for all tries together.

        The result's status is SEND_OK. Without a controller, it can also say that the master has the message, and that
        its flush or its slaves were late.

        Raises SendOutcomeUnknown if the message may be stored, also if the in-sync set of a broker with a controller
        has not confirmed it (`status` says how far it got). If it is not stored, raises IllegalMessage, NoRouteInfo,
        BrokerUnavailable (no master at present), BrokerError (refused) or another RemotingError.
        """
        if type(timeout_ms) is not int or timeout_ms < 0:
            timeout_ms = whole_ms(timeout_ms)
        if self._batches is not None and may_be_batched(message):
            return await (await self.enqueue(message, timeout_ms, queue))
        self._check_open()
        return await self._send_one(message, timeout_ms, queue)

    async def send_alone(
        self, message: Message, timeout_ms: int = TIMEOUT_MS, queue: MessageQueue | None = None
    ) -> SendResult:
        """As `send`, but never in a batch."""
        self._check_open()
        timeout_ms = whole_ms(timeout_ms)
        return await self._send_one(message, timeout_ms, queue)

    def _send_one(
        self, message: Message, timeout_ms: int = TIMEOUT_MS, queue: MessageQueue | None = None
    ) -> Coroutine[Any, Any, SendResult]:
        """Also while the producer closes."""
        topic = self._topic(message, queue)
        if self._hooked.any and topic != self._trace_topic:
            return self._send_with_hooks(
                [message], lambda own: self._encoder.encode(topic, message, own[0]), timeout_ms, queue
            )
        return self._send_encoded(self._encoder.encode(topic, message, message.properties), timeout_ms, queue)

    async def send_batch(
        self, messages: Sequence[Message], timeout_ms: int = TIMEOUT_MS, queue: MessageQueue | None = None
    ) -> SendResult:
        """Stores messages of one topic in one request, all in one queue; all or none. Raises as `send` does."""
        self._check_open()
        timeout_ms = whole_ms(timeout_ms)
        if not messages:
            raise IllegalMessage("a batch needs at least one message")
        topic = self._topic(messages[0], queue)
        if self._hooked.any:
            return await self._send_with_hooks(
                messages, lambda own: self._encoder.encode_batch(topic, messages, own), timeout_ms, queue
            )
        outgoing = self._encoder.encode_batch(topic, messages, [message.properties for message in messages])
        return await self._send_encoded(outgoing, timeout_ms, queue)

    async def enqueue(
        self, message: Message, timeout_ms: int = TIMEOUT_MS, queue: MessageQueue | None = None
    ) -> asyncio.Future[SendResult]:
        """Puts `message` into a batch and returns at once, or when there is room; the future is `send`'s result.

        The whole batch is stored or none of it: an error is that of all its messages. For producers with `linger_ms`.
        Raises IllegalMessage, also for what can't go in a batch: delayed messages, those of transactions, replies.
        """
        self._check_open()
        if type(timeout_ms) is not int or timeout_ms < 0:
            timeout_ms = whole_ms(timeout_ms)
        batches = self._batches
        if batches is None:
            raise ClientError("this producer makes no batches: give it linger_ms, or use send")
        topic = self._topic(message, queue)
        properties, context = message.properties, None
        if not may_be_batched(message):
            raise IllegalMessage(NOT_IN_A_BATCH)
        if self._hooked.any:
            context = self._hooked.begin([message])
            properties = context.properties[0]
        key = topic, queue if queue is None else self._with_namespace(queue)
        future = batches.add(key, self._encoder.encode(topic, message, properties), timeout_ms)
        if context is not None:
            future.add_done_callback(lambda done: self._hooked.end_with(context, done))
        if batches.has_begun or batches.bytes >= batches.buffer_bytes:
            await batches.room()
        return future

    async def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Sends without an answer: it is not known whether the message is stored, and there is no second try."""
        topic, sender = self._topic(message, queue), self.sender
        context = self._hooked.begin([message]) if self._hooked.any and topic != self._trace_topic else None
        properties = message.properties if context is None else context.properties[0]
        try:
            outgoing = self._encoder.encode(topic, message, properties)
            if self._encoder.wants_compression(outgoing):
                outgoing = await self._encoder.compress(outgoing)
            address = await sender.send_oneway(outgoing, self._with_namespace(queue))
            if context is not None:
                context.oneway, context.msg_id, context.address = True, outgoing.msg_id, address
        except BaseException as e:
            if context is not None:
                context.error = e
            raise
        finally:
            if context is not None:
                self._hooked.end(context)

    async def send_with(
        self, message: Message, selector: QueueSelector, arg: Any = None, timeout_ms: int = TIMEOUT_MS
    ) -> SendResult:
        """Stores `message` in the queue that `selector` picks. There is no second try, which would pick the same, but
        when its broker says that another is master.

        Raises as `send`, and ClientError when the selector picks none, or fails.
        """
        deadline = clock.monotonic() + whole_ms(timeout_ms) / 1000
        queues = await self._queues(message.topic, timeout_ms)
        try:
            queue = selector(queues, message, arg)
        except GantryError:
            raise
        except Exception as e:
            raise ClientError(f"the selector of a queue for topic {message.topic} failed: {e!r}") from e
        if queue is None:
            raise ClientError(f"the selector picked no queue of topic {message.topic}")
        return await self.send(message, max(1, int((deadline - clock.monotonic()) * 1000)), queue)

    async def request(self, message: Message, timeout_ms: int = TIMEOUT_MS) -> MessageExt:
        """Sends `message` to whoever consumes its topic and returns the reply, which `reply_message` makes there.

        Raises as `send`, and RequestTimeout when no reply has come in `timeout_ms`.
        """
        client, timeout_ms = self.client, whole_ms(timeout_ms)
        request, correlation_id, reply = self._requests.begin(message, client.client_id, timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                # The broker of the reply finds this client by its id: it must have heard of it.
                await self._greet_repliers(message.topic, timeout_ms)
                await self.send_alone(request, timeout_ms)
                return await reply
        except TimeoutError:
            text = f"no reply to the request to {message.topic} in {timeout_ms} ms: is a consumer there that replies?"
            raise RequestTimeout(text, message.topic) from None
        finally:
            self._requests.end(correlation_id)

    async def _greet_repliers(self, topic: str, timeout_ms: int) -> None:
        """Makes sure that all brokers of the topic's clusters have been told: a reply may come by way of any."""
        topic = wrap_namespace(self.namespace, topic)
        await self.sender.publish_info(topic, timeout_ms)
        routes = self.client.routes
        route = routes.cached(topic)
        for cluster in {broker.cluster for broker in route.broker_datas} if route is not None else ():
            with suppress(NoRouteInfo):
                await routes.get(reply_topic(cluster))
        await self.client.greet_new_brokers(timeout_ms * GREETING_SHARE / 1000)

    async def recall(self, topic: str, recall_handle: str, timeout_ms: int = TIMEOUT_MS) -> str:
        """Takes back a timer message that is not yet delivered, by its send's `recall_handle`; its unique key.

        Raises IllegalMessage for a handle that can't be read, NoRouteInfo, BrokerUnavailable, BrokerError or a
        RemotingError.
        """
        timeout_ms = whole_ms(timeout_ms)
        handle = decode_recall_handle(recall_handle)
        topic = wrap_namespace(self.namespace, topic)
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
        """The queues that a message of `topic` can go to.

        Raises NoRouteInfo, and RouteNotReady while a NameServer that has just started awaits brokers of the topic.
        """
        return await self._queues(topic, TIMEOUT_MS)

    # -- what subclasses use ------------------------------------------------------------------------------------

    def next_unique_key(self) -> str:
        """The id of the next message."""
        return self._unique_keys.next()

    def with_namespace(self, topic: str) -> str:
        """The topic as brokers know it."""
        return wrap_namespace(self.namespace, topic)

    async def greet_brokers_of(self, topic: str, timeout_ms: int = TIMEOUT_MS) -> None:
        """Makes sure that the brokers of `topic` have been told of this client, but for those that hang."""
        await self.sender.publish_info(wrap_namespace(self.namespace, topic), timeout_ms)
        await self.client.greet_new_brokers(timeout_ms * GREETING_SHARE / 1000)

    # -- one send -----------------------------------------------------------------------------------------------

    def _send_encoded(
        self, outgoing: Outgoing, timeout_ms: int, queue: MessageQueue | None
    ) -> Coroutine[Any, Any, SendResult]:
        """What sends `outgoing`: a sender's own coroutine where nothing else is to be done."""
        if self.namespace or self._encoder.wants_compression(outgoing) or self._sender is None:
            return self._prepare_and_send(outgoing, timeout_ms, queue)
        return self._sender.send(outgoing, timeout_ms, queue)

    async def _prepare_and_send(self, outgoing: Outgoing, timeout_ms: int, queue: MessageQueue | None) -> SendResult:
        if self._encoder.wants_compression(outgoing):
            outgoing = await self._encoder.compress(outgoing)
        if self._sender is None:
            raise ClientClosed("this producer was closed meanwhile")
        result = await self._sender.send(outgoing, timeout_ms, self._with_namespace(queue))
        if self.namespace:
            topic = without_namespace(result.queue.topic, self.namespace)
            result = result._replace(queue=result.queue._replace(topic=topic))
        return result

    async def _send_with_hooks(
        self,
        messages: Sequence[Message],
        encode: Callable[[list[dict[str, str]]], Outgoing],
        timeout_ms: int,
        queue: MessageQueue | None,
    ) -> SendResult:
        context = self._hooked.begin(messages)
        try:
            context.result = await self._send_encoded(encode(context.properties), timeout_ms, queue)
            return context.result
        except BaseException as e:
            context.error = e
            raise
        finally:
            self._hooked.end(context)

    async def _send_gathered(self, key: BatchKey, parts: Sequence[Outgoing], timeout_ms: int) -> SendResult:
        topic, queue = key
        outgoing = parts[0] if len(parts) == 1 else self._encoder.join(topic, parts)
        return await self._send_encoded(outgoing, timeout_ms, queue)

    # -- where to -----------------------------------------------------------------------------------------------

    def _topic(self, message: Message, queue: MessageQueue | None) -> str:
        """The message's topic as brokers know it."""
        topic = message.topic
        if queue is not None and queue.topic != topic:
            raise IllegalMessage(f"a message of topic {topic} can't go to a queue of {queue.topic}")
        return wrap_namespace(self.namespace, topic) if self.namespace else topic

    def _with_namespace(self, queue: MessageQueue | None) -> MessageQueue | None:
        if queue is None or not self.namespace:
            return queue
        return queue._replace(topic=wrap_namespace(self.namespace, queue.topic))

    async def _queues(self, topic: str, timeout_ms: int) -> Sequence[MessageQueue]:
        wire_topic = wrap_namespace(self.namespace, topic)
        queues = (await self.sender.publish_info(wire_topic, timeout_ms)).queues
        # A selector would map keys to other queues than it does when all brokers have registered.
        if awaited := self.client.routes.awaited(wire_topic):
            raise RouteNotReady(topic, self.client.routes.name_servers, awaited)
        return [queue._replace(topic=topic) for queue in queues] if self.namespace else queues

    def _set_encoder(self, unique_keys: UniqueKeys) -> None:
        self._unique_keys = unique_keys
        self._encoder = Encoder(unique_keys, namespace=self.namespace, **self._encoding)
