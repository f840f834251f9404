"""Message (to send), MessageExt (received) and MessageQueue, as users meet them.

Sources: common/message/Message, MessageExt, MessageQueue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gantrymq.errors import RecordError
from gantrymq.protocol import properties as names
from gantrymq.protocol.compression import decompress
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.record import Buffer, Record, decode_host, decode_record
from gantrymq.protocol.sys_flag import COMPRESSED


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker; queue ids count from 0 on every broker."""

    topic: str
    broker_name: str
    queue_id: int


class Message:
    """A message to send: a topic, a body of bytes and properties.

    Tags, keys and the other special properties live in `properties` under RocketMQ's names, as in Java. A message can
    be delivered later: by `delay_level` (1 to 18), after `delay_ms`, or at `deliver_at_ms` (ms since the epoch).
    """

    __slots__ = ("_properties", "body", "flag", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        flag: int = 0,
        properties: dict[str, str] | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag
        self._properties: dict[str, str] | None = dict(properties) if properties else {}
        if tags:
            self.properties[names.TAGS] = tags
        if keys:
            self.properties[names.KEYS] = keys if isinstance(keys, str) else names.KEY_SEPARATOR.join(keys)
        if sharding_key:
            self.properties[names.SHARDING_KEY] = sharding_key
        if delay_level:
            self.properties[names.DELAY_TIME_LEVEL] = str(delay_level)
        if delay_ms is not None:
            self.properties[names.TIMER_DELAY_MS] = str(delay_ms)
        if deliver_at_ms is not None:
            self.properties[names.TIMER_DELIVER_MS] = str(deliver_at_ms)

    @property
    def properties(self) -> dict[str, str]:
        assert self._properties is not None
        return self._properties

    @property
    def tags(self) -> str | None:
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(names.KEYS, "").split()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} topic={self.topic!r} tags={self.tags!r} body={len(self.body)} bytes>"


class MessageExt(Message):
    """A received message: what was sent, and where and when it was stored. Timestamps are ms since the epoch."""

    __slots__ = (
        "_raw_properties",
        "_store_host",
        "born_host_bytes",
        "born_timestamp",
        "broker_name",
        "commit_log_offset",
        "prepared_transaction_offset",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "store_size",
        "store_timestamp",
        "sys_flag",
    )

    def __init__(self, record: Record, broker_name: str = "") -> None:
        # Not super().__init__(): the properties stay raw until asked for, which halves the cost of a pull. In one
        # go: sixteen look-ups in the record by name cost a tenth of it all.
        (
            self.store_size,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.commit_log_offset,
            sys_flag,
            self.born_timestamp,
            self.born_host_bytes,
            self.store_timestamp,
            self._store_host,
            self.reconsume_times,
            self.prepared_transaction_offset,
            _,
            body,
            topic,
            self._raw_properties,
        ) = record
        try:
            self.topic = topic.decode()
        except UnicodeDecodeError as e:
            raise RecordError(f"topic of the record at {record.physical_offset} is no text: {e}") from e
        self.body = decompress(body, sys_flag) if sys_flag & COMPRESSED else body
        self._properties = None
        self.broker_name = broker_name
        self.sys_flag = sys_flag & ~COMPRESSED

    @property
    def properties(self) -> dict[str, str]:
        if self._properties is None:
            self._properties = decode_properties(self._raw_properties)
        return self._properties

    @property
    def born_host(self) -> str:
        """host:port of the producer."""
        return decode_host(self.born_host_bytes)

    @property
    def store_host(self) -> str:
        """host:port of the broker."""
        return decode_host(self._store_host)

    @property
    def offset_msg_id(self) -> str:
        """The id that says where the message is stored."""
        return encode_offset_message_id(self._store_host, self.commit_log_offset)

    @property
    def msg_id(self) -> str:
        """The producer's unique key, or the offset message id where there is none."""
        return self.properties.get(names.UNIQUE_KEY) or self.offset_msg_id

    @property
    def message_queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


def decode_messages(body: Buffer, broker_name: str = "") -> Iterator[MessageExt]:
    """The messages of a pull's body. Raises RecordError or CompressionError."""
    pos, end = 0, len(body)
    while pos < end:
        record = decode_record(body, pos)
        yield MessageExt(record, broker_name)
        pos += record.size
