"""Bodies with offsets and locks of queues, between clients and brokers (remoting/protocol/body/*)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import msgspec

from gantrymq.protocol.bodies.queue_map import (
    QueueObject,
    by_queue,
    decode_with_queue_maps,
    encode_queue_map,
    encode_queue_map_in_steps,
)
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.steps import finish


class _OffsetTable(msgspec.Struct, rename="camel"):
    offset_table: dict[str, int] = {}


class _OffsetTableOut(msgspec.Struct, rename="camel"):
    offset_table: msgspec.Raw


class _OffsetForC(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int
    offset: int


class _OffsetTableForC(msgspec.Struct, rename="camel"):
    offset_table: list[_OffsetForC]


@dataclass(slots=True)
class ResetOffsetBody:
    """New offsets by queue: the body of RESET_CONSUMER_CLIENT_OFFSET (220) and of the response to 222."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        return finish(self.encode_in_steps())

    def encode_in_steps(self) -> Generator[None, None, bytes]:
        """Works like `encode`, but in steps, because a topic may have 65,536 queues."""
        return encode_json(_OffsetTableOut((yield from encode_queue_map_in_steps(self.offset_table))))

    def encode_for_c(self) -> bytes:
        """Returns the body as a list, for C++ clients."""
        rows = [_OffsetForC(q.topic, q.broker_name, q.queue_id, offset) for q, offset in self.offset_table.items()]
        return encode_json(_OffsetTableForC(rows))

    @classmethod
    def decode(cls, data: bytes) -> ResetOffsetBody:
        """Parses the body. Raises BodyError."""
        return cls(by_queue(decode_with_queue_maps(data, _OffsetTable).offset_table))


class _ConsumerStatus(msgspec.Struct, rename="camel"):
    consumer_table: dict[str, dict[str, int]] = {}
    message_queue_table: dict[str, int] = {}


class _ConsumerStatusOut(msgspec.Struct, rename="camel"):
    consumer_table: dict[str, msgspec.Raw]
    message_queue_table: msgspec.Raw


@dataclass(slots=True)
class ConsumerStatusBody:
    """One client's offsets by queue (response to 221), or all clients' offsets by client id (response to 223)."""

    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        return encode_json(
            _ConsumerStatusOut(
                {client_id: encode_queue_map(table) for client_id, table in self.consumer_table.items()},
                encode_queue_map(self.message_queue_table),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> ConsumerStatusBody:
        """Parses the body. Raises BodyError."""
        body = decode_with_queue_maps(data, _ConsumerStatus)
        tables = {client_id: by_queue(table) for client_id, table in body.consumer_table.items()}
        return cls(tables, by_queue(body.message_queue_table))


class QueueLockRequest(msgspec.Struct, rename="camel"):
    """The body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    consumer_group: str
    client_id: str
    mq_set: list[QueueObject] = []
    only_this_broker: bool = False


class QueueLockAnswer(msgspec.Struct):
    """The response to LOCK_BATCH_MQ: the queues that the client has locked."""

    lock_ok_mq_set: list[QueueObject] = msgspec.field(name="lockOKMQSet", default_factory=list)


class CorrectionOffsetBody(msgspec.Struct, rename="camel"):
    """The response to QUERY_CORRECTION_OFFSET (308): offsets by queue id."""

    correction_offsets: dict[int, int] = {}


class GroupList(msgspec.Struct, rename="camel"):
    """The response to QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    group_list: list[str] = []
