"""Producer: sends messages.

Source: client/impl/producer/DefaultMQProducerImpl, client/Validators. The path of one message: `send` encodes it,
`_send_with_retries` picks a queue from the topic's route, `_send_to` makes the request. It makes no task; the body is
copied once, into the frame.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from gantrymq.client.broker_api import TIMEOUT_MS, SendResult
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.publish_info import TopicPublishInfo
from gantrymq.client.queue_selector import QueueSelector
from gantrymq.client.routes import write_queues
from gantrymq.client.send_command import DEFAULT_TOPIC_QUEUE_NUMS, send_command
from gantrymq.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectFailed,
    IllegalMessage,
    RemotingError,
    RequestTimeout,
)
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.compression import CompressionType, compress, compression_flag
from gantrymq.protocol.heartbeat import ProducerData
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.properties import DELAY_TIME_LEVEL, MAX_PROPERTIES_LENGTH, UNIQUE_KEY, encode_properties
from gantrymq.protocol.route import TopicRouteData
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, SEND_FORBIDDEN_TOPICS, group_problem, topic_problem
from gantrymq.remoting.connection import RpcHook

log = logging.getLogger(__name__)

#: maxMessageSize, in bytes.
MAX_MESSAGE_SIZE = 4 * 1024 * 1024
#: compressMsgBodyOverHowmuch, in bytes.
COMPRESS_OVER = 4096
#: Compressing a larger body would hold up the event loop for milliseconds, so a thread does it.
COMPRESS_IN_THREAD_OVER = 128 * 1024
#: Answers after which another broker may take the message (`DefaultMQProducer.retryResponseCodes`).
RETRY_RESPONSE_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)


class _Outgoing(NamedTuple):
    """A message, or a batch, as it goes out."""

    topic: str
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    batch: bool
    msg_id: str


class Producer:
    """Sends messages: `async with Producer("127.0.0.1:9876", "group") as producer: await producer.send(message)`.

    `name_servers` is a list of HOST:PORT, or one string with `;` between them. A failed send is tried again
    `retry_times` times, on another broker where there is one. Bodies of `compress_over` bytes and more are compressed.
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        group: str,
        *,
        retry_times: int = 2,
        compress_over: int = COMPRESS_OVER,
        compression: CompressionType = CompressionType.ZLIB,
        max_message_size: int = MAX_MESSAGE_SIZE,
        default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS,
        ssl_context: ssl.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
    ) -> None:
        if problem := group_problem(group):
            raise IllegalMessage(problem)
        self.group = group
        self._retry_times = retry_times
        self._compress_over = compress_over
        self._compression = compression
        self._max_message_size = max_message_size
        self._default_topic_queue_nums = default_topic_queue_nums
        self._name_servers = name_servers
        self._ssl_context = ssl_context
        self._hooks = hooks
        self._client: ClientInstance | None = None
        self._unique_keys = UniqueKeys()
        self._publish_infos: dict[str, tuple[TopicRouteData, TopicPublishInfo]] = {}

    async def start(self) -> None:
        """Makes the producer ready; connections are made when they are needed."""
        client = ClientInstance(
            self._name_servers,
            producer_data=ProducerData(self.group),
            ssl_context=self._ssl_context,
            hooks=self._hooks,
        )
        client.start()
        self._unique_keys = UniqueKeys(socket.inet_aton(client.ip))
        self._client = client

    async def close(self) -> None:
        """Closes the connections; sends that are under way fail."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def client(self) -> ClientInstance:
        """Connections and routes. Raises ClientClosed before the start and after the close."""
        if self._client is None:
            raise ClientClosed("this producer is not started, or closed: use it inside `async with`")
        return self._client

    # -- sending ------------------------------------------------------------------------------------------------

    async def send(
        self, message: Message, timeout_ms: int = TIMEOUT_MS, queue: MessageQueue | None = None
    ) -> SendResult:
        """Stores `message`; to `queue` alone if one is given. `timeout_ms` is for all tries together.

        Raises IllegalMessage, NoRouteInfo, BrokerError (refused) or a RemotingError (it may be stored nevertheless).
        """
        outgoing = self._encode(message)
        if len(outgoing.body) >= self._compress_over:
            outgoing = await self._compress(outgoing)
        if queue is not None:
            return await self._send_to(queue, outgoing, timeout_ms)
        return await self._send_with_retries(outgoing, timeout_ms)

    async def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Sends without an answer: it is not known whether the message is stored, and there is no second try."""
        outgoing = self._encode(message)
        if len(outgoing.body) >= self._compress_over:
            outgoing = await self._compress(outgoing)
        if queue is None:
            queue = (await self._publish_info(message.topic)).select()
        await self.client.api.send_oneway(await self._address(queue), self._command(queue, outgoing))

    async def send_batch(
        self, messages: Sequence[Message], timeout_ms: int = TIMEOUT_MS, queue: MessageQueue | None = None
    ) -> SendResult:
        """Stores messages of one topic in one request, all in one queue; all or none. Raises as `send` does."""
        outgoing = self._encode_batch(messages)
        if queue is not None:
            return await self._send_to(queue, outgoing, timeout_ms)
        return await self._send_with_retries(outgoing, timeout_ms)

    async def send_with(
        self, message: Message, selector: QueueSelector, arg: Any = None, timeout_ms: int = TIMEOUT_MS
    ) -> SendResult:
        """Stores `message` in the queue that `selector` picks. There is no second try: it would pick the same."""
        info = await self._publish_info(message.topic)
        return await self.send(message, timeout_ms, selector(info.queues, message, arg))

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues that a message of `topic` can go to. Raises NoRouteInfo."""
        return (await self._publish_info(topic)).queues

    async def _send_with_retries(self, outgoing: _Outgoing, timeout_ms: int) -> SendResult:
        now = time.monotonic
        deadline = now() + timeout_ms / 1000
        info = self._known_publish_info(outgoing.topic)
        if info is None:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    info = await self._find_publish_info(outgoing.topic)
            except TimeoutError:
                name_servers = ";".join(self.client.routes.name_servers)
                message = f"no route of topic {outgoing.topic} from {name_servers} in {timeout_ms} ms"
                raise RequestTimeout(message, name_servers) from None
        tried: list[str] = []
        error: BrokerError | RemotingError | None = None
        for _ in range(1 + self._retry_times):
            left_ms = int((deadline - now()) * 1000)
            if left_ms <= 0:
                break
            queue = info.select(tried[-1] if tried else None)
            tried.append(queue.broker_name)
            try:
                return await self._send_to(queue, outgoing, left_ms)
            except RemotingError as e:
                error = e
            except BrokerError as e:
                if e.code not in RETRY_RESPONSE_CODES:
                    raise
                error = e
            log.info("send of %s to %s failed: %s", outgoing.msg_id, queue, error)
        if error is None:
            error = RequestTimeout(f"{timeout_ms} ms were over before the first try", info.queues[0].broker_name)
        error.add_note(f"tried {len(tried)} times in {timeout_ms} ms, on brokers {', '.join(tried)}")
        raise error

    async def _send_to(self, queue: MessageQueue, outgoing: _Outgoing, timeout_ms: int) -> SendResult:
        address = self.client.routes.master_address(queue.broker_name) or await self._address(queue)
        command = self._command(queue, outgoing)
        return await self.client.api.send(address, command, queue, msg_id=outgoing.msg_id, timeout_ms=timeout_ms)

    def _command(self, queue: MessageQueue, outgoing: _Outgoing) -> RemotingCommand:
        return send_command(
            self.group,
            queue,
            outgoing.body,
            outgoing.properties,
            time.time_ns() // 1_000_000,
            flag=outgoing.flag,
            sys_flag=outgoing.sys_flag,
            batch=outgoing.batch,
            default_topic_queue_nums=self._default_topic_queue_nums,
        )

    # -- where to -----------------------------------------------------------------------------------------------

    async def _publish_info(self, topic: str) -> TopicPublishInfo:
        return self._known_publish_info(topic) or await self._find_publish_info(topic)

    def _known_publish_info(self, topic: str) -> TopicPublishInfo | None:
        known = self._publish_infos.get(topic)
        # A changed route is another object.
        if known is not None and known[0] is self.client.routes.cached(topic):
            return known[1]
        return None

    async def _find_publish_info(self, topic: str) -> TopicPublishInfo:
        if problem := topic_problem(topic):
            raise IllegalMessage(problem)
        if topic in SEND_FORBIDDEN_TOPICS:
            raise IllegalMessage(f"clients may not send to the system topic {topic}")
        routes = self.client.routes
        route = await routes.get_or_default(topic, self._default_topic_queue_nums)
        queues = write_queues(topic, route)
        if not queues:
            route = await routes.refresh(topic)
            queues = write_queues(topic, route)
            if not queues:
                raise ClientError(f"topic {topic} has no writable queue on a broker with a master")
        info = TopicPublishInfo(queues)
        self._publish_infos[topic] = route, info
        return info

    async def _address(self, queue: MessageQueue) -> str:
        routes = self.client.routes
        address = routes.master_address(queue.broker_name)
        if address is None:
            await routes.refresh(queue.topic)
            address = routes.master_address(queue.broker_name)
            if address is None:
                raise ConnectFailed(f"no route names a master of broker {queue.broker_name}", queue.broker_name)
        return address

    # -- encoding -----------------------------------------------------------------------------------------------

    def _encode(self, message: Message) -> _Outgoing:
        body = message.body
        if not body:
            raise IllegalMessage("the message body is empty")
        if len(body) > self._max_message_size:
            raise IllegalMessage(f"message body of {len(body)} bytes: at most {self._max_message_size} are allowed")
        properties = message.properties
        msg_id = properties.get(UNIQUE_KEY)
        if msg_id is None:
            # The user's message is not changed: it may be on its way twice.
            msg_id = self._unique_keys.next()
            properties = {**properties, UNIQUE_KEY: msg_id}
        encoded = encode_properties(properties)
        if len(encoded) > MAX_PROPERTIES_LENGTH:
            raise IllegalMessage(f"properties of {len(encoded)} bytes: at most {MAX_PROPERTIES_LENGTH} are allowed")
        if encoded.count(b"\x01") != len(properties) or encoded.count(b"\x02") != len(properties):
            raise IllegalMessage("a property's name or value holds \\x01 or \\x02, which separate properties")
        return _Outgoing(message.topic, body, encoded, message.flag, 0, False, msg_id)

    def _encode_batch(self, messages: Sequence[Message]) -> _Outgoing:
        if not messages:
            raise IllegalMessage("a batch needs at least one message")
        topic = messages[0].topic
        if topic.startswith(RETRY_TOPIC_PREFIX):
            raise IllegalMessage("messages to a retry topic can't go in a batch")
        parts: list[_Outgoing] = []
        for message in messages:
            if message.topic != topic:
                raise IllegalMessage(f"a batch has one topic, not both {topic} and {message.topic}")
            if message.properties.get(DELAY_TIME_LEVEL, "0") != "0":
                raise IllegalMessage("delayed messages can't go in a batch")
            parts.append(self._encode(message))
        body = encode_batch((part.flag, part.body, part.properties) for part in parts)
        if len(body) > self._max_message_size:
            raise IllegalMessage(f"batch of {len(body)} bytes: at most {self._max_message_size} are allowed")
        return _Outgoing(topic, body, b"", 0, 0, True, ",".join(part.msg_id for part in parts))

    async def _compress(self, outgoing: _Outgoing) -> _Outgoing:
        body = outgoing.body
        if len(body) > COMPRESS_IN_THREAD_OVER:
            compressed = await asyncio.to_thread(compress, body, self._compression)
        else:
            compressed = compress(body, self._compression)
        if len(compressed) >= len(body):
            return outgoing
        return outgoing._replace(body=compressed, sys_flag=compression_flag(self._compression))
