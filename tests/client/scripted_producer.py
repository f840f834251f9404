"""A broker for one producer.

It records sends, gives scripted responses, and can send the requests of a broker to the producer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from scripted import ScriptedNameServer, route_over, serving

from gantrymq.client.producing.producer import Producer
from gantrymq.errors import RefusalReason
from gantrymq.protocol.batch import decode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from gantrymq.protocol.headers.transaction import EndTransactionRequestHeader
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.private_fields import REASON_FIELD
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.record import encode_host
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer

HOST = encode_host("127.0.0.1", 10911)


class Sent:
    """One send request."""

    def __init__(self, request: RemotingCommand) -> None:
        self.code = request.code
        self.header = request.read_header(SendMessageRequestHeaderV2)
        self.body = request.body
        self.properties = decode_properties((self.header.properties or "").encode())

    @property
    def bodies(self) -> list[bytes]:
        """Returns the bodies of a batch."""
        return [body for _, body, _ in decode_batch(self.body)]


class ProducerBroker:
    """Responds to sends with `answer` and the ext fields in `more`.

    Records sends in `sent`, and END_TRANSACTION in `ends`.

    `connection` is the producer's. Heartbeats get a response unless the broker `hangs`; `heartbeats` counts them.
    `unregistered` counts UNREGISTER_CLIENT.
    """

    def __init__(self, name: str = "broker", answer: ResponseCode | None = ResponseCode.SUCCESS, port: int = 0) -> None:
        self.name = name
        self.answer = answer
        self.more: dict[str, str] = {}
        self.sent: list[Sent] = []
        self.ends: list[tuple[EndTransactionRequestHeader, str | None]] = []
        self.heartbeats = 0
        self.unregistered = 0
        self.hangs = False
        self.connection: Connection | None = None
        sends = (
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
        )
        self.server = RemotingServer(
            {
                **dict.fromkeys(sends, self._send),
                RequestCode.END_TRANSACTION: self._end,
                RequestCode.HEART_BEAT: self._heartbeat,
                RequestCode.UNREGISTER_CLIENT: self._unregister,
                RequestCode.GET_MAX_OFFSET: self._max_offset,
            },
            ListenOptions("127.0.0.1", port),
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def refuse(self, code: ResponseCode, reason: RefusalReason) -> None:
        """Rejects sends from now on."""
        self.answer = code
        self.more = {REASON_FIELD: reason}

    def accept(self) -> None:
        """Stores messages from now on."""
        self.answer, self.more = ResponseCode.SUCCESS, {}

    def _send(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        sent = Sent(request)
        self.sent.append(sent)
        if self.answer is None:
            return None
        count = len(sent.bodies) if request.code == RequestCode.SEND_BATCH_MESSAGE else 1
        ids = ",".join(encode_offset_message_id(HOST, 1000 * len(self.sent) + n) for n in range(count))
        header = SendMessageResponseHeader(msg_id=ids, queue_id=sent.header.queue_id, queue_offset=len(self.sent))
        return RemotingCommand.response(self.answer, "as scripted", header, fields=self.more)

    def _end(self, connection: Connection, request: RemotingCommand) -> None:
        self.ends.append((request.read_header(EndTransactionRequestHeader), request.remark))

    def _heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.connection = connection
        self.heartbeats += 1
        return None if self.hangs else RemotingCommand.response()

    def _unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.unregistered += 1
        return RemotingCommand.response()

    def _max_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        if self.answer is ResponseCode.SUCCESS:
            return RemotingCommand.response(fields={"offset": "0"})
        return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "as scripted")


class AnsweringBroker(ProducerBroker):
    """Responds to sends with the `answers` in turn, then with success."""

    def __init__(self, name: str = "broker") -> None:
        super().__init__(name)
        self.answers: list[Callable[[Connection], RemotingCommand | None]] = []

    def _send(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        answer = super()._send(connection, request)
        return self.answers.pop(0)(connection) if self.answers else answer


def keep_silent(connection: Connection) -> None:
    """Sends no response."""


@asynccontextmanager
async def scripted_cluster(*brokers: ProducerBroker, topics: tuple[str, ...] = ("topic",)) -> AsyncIterator[str]:
    """Yields host:port of a NameServer with routes of `topics` to all the brokers."""
    name_server = ScriptedNameServer({})
    async with serving([name_server, *brokers]):
        for topic in topics:
            name_server.routes[topic] = route_over({broker.name: broker.address for broker in brokers})
        yield name_server.address


@asynccontextmanager
async def producer_over(
    *brokers: ProducerBroker, topics: tuple[str, ...] = ("topic",), **options: Any
) -> AsyncIterator[Producer]:
    async with (
        scripted_cluster(*brokers, topics=topics) as address,
        Producer(address, "producers", **options) as producer,
    ):
        yield producer
