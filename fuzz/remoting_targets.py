"""The fuzz targets of requests and responses: typed headers, bodies of requests, and what a client decodes."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import zlib
from functools import cache
from typing import Any

from fuzz.targets import target
from gantrymq.client.popping.pop_api import give_handles
from gantrymq.client.pulled_messages import decode_popped, decode_pulled
from gantrymq.errors import BodyError, CompressionError, FrameError, HeaderError, ProtocolError, RecordError
from gantrymq.kernels import native
from gantrymq.protocol import headers as header_modules
from gantrymq.protocol.bodies.auth import AclInfo, UserInfo
from gantrymq.protocol.bodies.connection import CheckClientRequestBody
from gantrymq.protocol.bodies.heartbeat import HeartbeatData
from gantrymq.protocol.bodies.offset import QueueLockRequest
from gantrymq.protocol.bodies.pop import BatchAckBody, QueryAssignmentRequestBody, RequestMode
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig, SubscriptionGroupList
from gantrymq.protocol.bodies.topic_config import TopicConfig, decode_register_body
from gantrymq.protocol.codes import PROTOCOL_VERSION
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, decode_request_json, encode_json
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.pop import PopMessageResponseHeader
from gantrymq.protocol.headers.pull import PullMessageResponseHeader
from gantrymq.protocol.headers.send import SendMessageResponseHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.send_response import decode_send_response, decode_trace

_REQUEST_BODIES: tuple[Any, ...] = (
    AclInfo,
    BatchAckBody,
    CheckClientRequestBody,
    HeartbeatData,
    QueryAssignmentRequestBody,
    QueueLockRequest,
    RequestMode,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    UserInfo,
    list[str],
)
_QUEUE = MessageQueue("orders", "broker-a", 1)
_MAX_BODY_SIZE = 1 << 20
_VERSIONS = (PROTOCOL_VERSION, 0)


@target
def request_bodies(data: bytes) -> None:
    """Bodies of requests in JSON, and registrations of brokers. What was decoded is encoded and decoded again."""
    for body_type in _REQUEST_BODIES:
        with contextlib.suppress(BodyError):
            value = decode_request_json(data, body_type)
            assert decode_json(encode_json(value), body_type) == value
    for version in _VERSIONS:
        for body in (data, zlib.compress(data, 0)):
            with contextlib.suppress(BodyError):
                decode_register_body(body, compressed=body is not data, version=version)


@target
def headers(data: bytes) -> None:
    """Ext fields, in the form of properties, as each typed header. Headers are encoded and decoded again."""
    command = RemotingCommand.request(0, fields=decode_properties(data))
    for header_type in _header_types():
        try:
            header = command.read_header(header_type)
        except HeaderError:
            continue
        encoded = RemotingCommand.request(0, header).encode()
        (again,) = FrameReader().feed(encoded)
        assert again.read_header(header_type) == header, header


@cache
def _header_types() -> list[type[Header]]:
    found: list[type[Header]] = []
    for module in pkgutil.iter_modules(header_modules.__path__, f"{header_modules.__name__}."):
        importlib.import_module(module.name)
    parents: list[type[Header]] = [Header]
    while parents:
        children = parents.pop().__subclasses__()
        found += children
        parents += children
    return sorted(found, key=lambda each: each.__name__)


@target
def responses(data: bytes) -> None:
    """Responses to sends, pulls and pops, as a client decodes them: sends by native code and by Python."""
    commands: list[RemotingCommand] = []
    with contextlib.suppress(FrameError, HeaderError):
        commands.extend(FrameReader().feed(data))
    if native is not None:
        end = 0
        for number, (opaque, queue_id, offset, msg_id, transaction_id, tail, next_end) in enumerate(
            native.send_responses(data)
        ):
            assert end < next_end <= len(data)
            end = next_end
            command, trace = commands[number], decode_trace(tail)
            answer = decode_send_response(command, queue_id)
            expected = None if trace is None else (msg_id, offset, transaction_id, *trace)
            assert (command.opaque, answer) == (opaque, expected), "native code and Python disagree"
    for command in commands:
        for queue_id in (0, 1):
            decode_send_response(command, queue_id)
        for header_type in (SendMessageResponseHeader, PullMessageResponseHeader):
            with contextlib.suppress(HeaderError):
                command.read_header(header_type)
        pulled, _ = decode_pulled(command.body, _QUEUE, 0, _MAX_BODY_SIZE, lambda found: found.stand_in(_QUEUE))
        popped = decode_popped(command.body, _QUEUE.broker_name, _MAX_BODY_SIZE)
        for message in pulled + popped:
            with contextlib.suppress(CompressionError, RecordError):
                assert len(message.body) <= _MAX_BODY_SIZE
        for order in (False, True):
            with contextlib.suppress(ProtocolError):
                give_handles(popped, command.read_header(PopMessageResponseHeader), _QUEUE.broker_name, order)
