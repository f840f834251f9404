"""Request-reply: a producer sends a message and waits for the reply of its consumer.

A request carries the client id of its producer. The reply goes to a broker, which pushes it to that client.
Source: client/producer/RequestResponseFuture, client/utils/MessageUtil, client/impl/ClientRemotingProcessor.
"""

from __future__ import annotations

import asyncio

from gantrymq.client.producing.message_encoder import REPLY_TYPE
from gantrymq.errors import ClientClosed, IllegalMessage
from gantrymq.logs import peer_log
from gantrymq.protocol import properties as names
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import ReplyMessageRequestHeader
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import Record, encode_host
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.connection import Connection
from gantrymq.system import randomness
from gantrymq.system.clock import now_ms

log = peer_log(__name__)


def reply_topic(cluster: str) -> str:
    """Returns the topic of replies. Every broker of the cluster has it (`MixAll.getReplyTopic`)."""
    return f"{cluster}_REPLY_TOPIC"


def reply_message(request: Message, body: bytes) -> Message:
    """Returns a reply with `body` to a received `request`. Send it with any producer of the same cluster.

    Raises:
        IllegalMessage: The message is not a request.
    """
    properties = request.properties
    cluster = properties.get(names.CLUSTER)
    correlation_id = properties.get(names.CORRELATION_ID)
    if not cluster or not correlation_id:
        raise IllegalMessage(f"{request!r} is no request: only a message that `request` sent can be replied to")
    reply = {names.MESSAGE_TYPE: REPLY_TYPE, names.CORRELATION_ID: correlation_id}
    for name in (names.MESSAGE_REPLY_TO_CLIENT, names.MESSAGE_TTL):
        if name in properties:
            reply[name] = properties[name]
    return Message(reply_topic(cluster), body, properties=reply)


class Requests:
    """The pending requests of one client."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def begin(
        self, message: Message, client_id: str, timeout_ms: int
    ) -> tuple[Message, str, asyncio.Future[MessageExt]]:
        """Returns `message` as a request of `client_id`, its correlation id, and a future for the reply."""
        correlation_id = str(randomness.uuid4())
        properties = message.properties | {
            names.CORRELATION_ID: correlation_id,
            names.MESSAGE_REPLY_TO_CLIENT: client_id,
            names.MESSAGE_TTL: str(timeout_ms),
        }
        future: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return Message(message.topic, message.body, flag=message.flag, properties=properties), correlation_id, future

    def end(self, correlation_id: str) -> None:
        """Removes a request. A later reply to it is logged and dropped."""
        self._waiting.pop(correlation_id, None)

    def close(self) -> None:
        """Fails all pending requests with ClientClosed."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ClientClosed("this producer was closed before a reply came"))
                future.exception()

    def push(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Handles PUSH_REPLY_MESSAGE_TO_CLIENT."""
        reply = decode_reply(command)
        future = self._waiting.pop(reply.properties.get(names.CORRELATION_ID, ""), None)
        if future is None or future.done():
            log.warning("a reply by way of %s answers nothing, or came too late: %r", connection.address, reply)
        else:
            future.set_result(reply)
        return RemotingCommand.response()


def decode_reply(command: RemotingCommand) -> MessageExt:
    """Returns the message of a pushed reply. Raises HeaderError or CompressionError."""
    header = command.read_header(ReplyMessageRequestHeader)
    properties = names.decode_properties((header.properties or "").encode())
    properties[names.REPLY_ARRIVE_TIME] = str(now_ms())
    record = Record(
        size=0,
        queue_id=header.queue_id,
        flag=header.flag,
        queue_offset=0,
        physical_offset=0,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=_host(header.born_host),
        store_timestamp=header.store_timestamp,
        store_host=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        body_crc=0,
        body=command.body,
        topic=header.topic.encode(),
        properties=encode_properties(properties),
    )
    return MessageExt(record)


def _host(address: str) -> bytes:
    try:
        ip, port = parse_address(address.rpartition("/")[2])
        return encode_host(ip, port)
    except (ValueError, OSError):
        # Hosts are only for display. An invalid host, such as a name, must not make the client lose the reply.
        return encode_host("0.0.0.0", 0)
