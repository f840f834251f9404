"""Scripted servers, for failures that a real broker cannot produce on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

import msgspec

from gantrymq.protocol.bodies.heartbeat import ConsumerList, HeartbeatData
from gantrymq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.offset import OffsetResponseHeader, UpdateConsumerOffsetRequestHeader
from gantrymq.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from gantrymq.protocol.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.protocol.record import encode_host, encode_record
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer

SILENT = None
HOST = encode_host("127.0.0.1", 10911)


def record(offset: int) -> bytes:
    """Returns a message of the topic "topic"."""
    return encode_record(0, 0, offset, 5000 + offset, 0, 1, HOST, 2, HOST, 0, 0, b"body", b"topic", b"")


class Scripted(Protocol):
    """Interface of the servers that `serving` starts and stops."""

    server: RemotingServer


class ScriptedBroker:
    """Responds to every send with `answer`, a ResponseCode or SILENT. `sends` has the queue ids of all sends."""

    def __init__(self, name: str, answer: ResponseCode | None = ResponseCode.SUCCESS) -> None:
        self.name = name
        self.answer = answer
        self.sends: list[int] = []
        self.headers: list[SendMessageRequestHeaderV2] = []
        self.server = RemotingServer({RequestCode.SEND_MESSAGE_V2: self._send}, ListenOptions("127.0.0.1"))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _send(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        header = request.read_header(SendMessageRequestHeaderV2)
        self.sends.append(header.queue_id)
        self.headers.append(header)
        if self.answer is SILENT:
            return None
        answer = SendMessageResponseHeader(msg_id="0" * 32, queue_id=header.queue_id, queue_offset=len(self.sends))
        return RemotingCommand.response(self.answer, "as scripted", answer)


class ScriptedNameServer:
    """Has the routes in `routes`. `asked` has the topics of all requests."""

    def __init__(self, routes: dict[str, TopicRouteData]) -> None:
        self.routes = routes
        self.asked: list[str] = []
        self.server = RemotingServer({RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route}, ListenOptions("127.0.0.1"))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = request.read_header(TopicRequestHeader).topic
        self.asked.append(topic)
        if topic not in self.routes:
            return RemotingCommand.response(ResponseCode.TOPIC_NOT_EXIST, "as scripted")
        return RemotingCommand.response(body=msgspec.json.encode(self.routes[topic]))


def route_over(addresses: dict[str, str], queue_nums: int = 2) -> TopicRouteData:
    """Returns a route with `queue_nums` queues on each broker.

    `addresses` are the masters' addresses by broker name.
    """
    return TopicRouteData(
        [QueueData(name, queue_nums, queue_nums, 6) for name in addresses],
        [BrokerData("cluster", name, {0: address}) for name, address in addresses.items()],
    )


@asynccontextmanager
async def serving(servers: Iterable[Scripted]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for scripted in servers:
            await scripted.server.start()
            stack.push_async_callback(scripted.server.stop)
        yield


class ScriptedGroupBroker:
    """A broker for one consumer. It has no offset of the group, and its responses to pulls are scripted.

    `pulls` has the headers of all pulls. The first ones get `pull_answers`, the others no response. Each answer is
    (code, next offset, records). `heartbeats` is a counter.
    """

    remark = "as scripted"
    more: Mapping[str, str] = {}
    MAX_OFFSET = 77
    OFFSET_BY_TIME = 33

    def __init__(self, pull_answers: Iterable[tuple[ResponseCode, int, bytes]] = (), port: int = 0) -> None:
        self.pull_answers = list(pull_answers)
        self.pulls: list[PullMessageRequestHeader] = []
        self.heartbeats = 0
        self.sent_back: list[ConsumerSendMsgBackRequestHeader] = []
        self.send_back_code = ResponseCode.SUCCESS
        self.committed: dict[tuple[str, int], int] = {}
        self.asked_for_members = 0
        self._client_id = ""
        self.server = RemotingServer(self.handlers(), ListenOptions("127.0.0.1", port))

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: lambda connection, request: RemotingCommand.response(),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_ids,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: lambda connection, request: _offset(self.MAX_OFFSET),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda connection, request: _offset(self.OFFSET_BY_TIME),
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.heartbeats += 1
        self._client_id = decode_json(request.body, HeartbeatData).client_id
        return RemotingCommand.response()

    def _consumer_ids(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.asked_for_members += 1
        return RemotingCommand.response(body=encode_json(ConsumerList([self._client_id])))

    def _query_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(ResponseCode.QUERY_NOT_FOUND, "as scripted")

    def _update_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(UpdateConsumerOffsetRequestHeader)
        self.committed[header.topic, header.queue_id] = header.commit_offset
        return RemotingCommand.response()

    def _pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.pulls.append(request.read_header(PullMessageRequestHeader))
        if not self.pull_answers:
            return None
        code, next_offset, records = self.pull_answers.pop(0)
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=next_offset, min_offset=0, max_offset=self.MAX_OFFSET
        )
        return RemotingCommand.response(code, self.remark, header, records, fields=self.more)

    def _send_back(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.sent_back.append(request.read_header(ConsumerSendMsgBackRequestHeader))
        return RemotingCommand.response(self.send_back_code, "as scripted")


def _offset(offset: int) -> RemotingCommand:
    return RemotingCommand.response(header=OffsetResponseHeader(offset=offset))


@asynccontextmanager
async def serving_routes(broker: ScriptedGroupBroker) -> AsyncIterator[str]:
    """Yields the address of a NameServer with the route of the topic "topic", which has one queue."""
    name_server = ScriptedNameServer({})
    async with serving([name_server, broker]):
        name_server.routes["topic"] = route_over({"broker": broker.address}, queue_nums=1)
        yield name_server.address
