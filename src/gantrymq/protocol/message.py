"""The public classes Message (to send), MessageExt (received) and MessageQueue. Source: common/message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar, cast

from gantrymq.errors import CompressionError, IllegalMessage, ProtocolError, RecordError
from gantrymq.protocol import properties as names
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE, decompress
from gantrymq.protocol.lite_topic import lite_topic_problem
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.record import Buffer, LateFields, Record, decode_host, decode_record, late_fields
from gantrymq.protocol.sys_flag import COMPRESSED, COMPRESSION_MASK
from gantrymq.times import duration_ms, timestamp_ms

T = TypeVar("T")

#: Largest decompressed body that is cached in the message, in bytes. Hundreds of larger bodies would take gigabytes.
KEPT_SIZE = 256 * 1024
#: Number of a broker's default delay levels. If its messageDelayLevel has more, set the property DELAY.
MAX_DELAY_LEVEL = 18


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker. Queue ids start at 0 on each broker."""

    topic: str
    broker_name: str
    queue_id: int


class Message:
    """A message to send: a topic, a body of bytes and properties.

    `properties` also has RocketMQ's own properties, such as tags and keys, under their names in Java.

    Args:
        topic: Topic to send to.
        body: Content.
        tags: One word by which consumers can filter.
        keys: Keys to find the message by: a list, or one string with blanks between them.
        sharding_key: Selects the queue. Messages with the same key go to the same queue, as long as the queues of the
            topic stay the same. To keep their order, send one after the other.
        delay_level: Delay level, 1 to 18. 0 for none. Only one of the three delay arguments is allowed.
        delay: Delay, in seconds or as a timedelta.
        deliver_at: Delivery time: a datetime with a time zone, or milliseconds since the epoch.
        deduplicate_id: Id of at most 128 bytes, chosen by you. If the topic has the attribute
            `deduplication.window.ms`, its broker stores messages with equal ids only once within this time. Without a
            `sharding_key`, the id selects the queue.
        priority: Priority, 0 or more. Consumers with POP receive a higher priority first. It selects the queue. The
            topic needs `message.type=PRIORITY`, and a queue for each priority. None for none.
        lite_topic: Lite topic of the message. It selects the queue. The topic needs `message.type=LITE`.
        flag: A number for your own use.
        properties: Further properties.

    Raises:
        IllegalMessage: An argument is invalid.
    """

    __slots__ = ("body", "flag", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        delay: float | timedelta | None = None,
        deliver_at: datetime | int | None = None,
        deduplicate_id: str | None = None,
        priority: int | None = None,
        lite_topic: str | None = None,
        flag: int = 0,
        properties: dict[str, str] | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag
        # A slot, not a Python property: each send reads it three times.
        self.properties: dict[str, str] = dict(properties) if properties else {}
        if tags:
            self.properties[names.TAGS] = tags
        if keys:
            self.properties[names.KEYS] = keys if isinstance(keys, str) else _joined(keys)
        if sharding_key:
            self.properties[names.SHARDING_KEY] = sharding_key
        if delay_level or delay is not None or deliver_at is not None:
            self.properties.update([_delay(delay_level, delay, deliver_at)])
        if deduplicate_id is not None:
            self.properties[names.DEDUPLICATE_ID] = _checked_id(deduplicate_id)
        if priority is not None:
            if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= names.MAX_PRIORITY:
                raise IllegalMessage(f"priority={priority!r}: must be a whole number from 0 to {names.MAX_PRIORITY}")
            self.properties[names.PRIORITY] = str(priority)
        if lite_topic is not None:
            self.properties[names.LITE_TOPIC] = _checked_lite_topic(topic, lite_topic)
        if self.properties:
            for name, value in self.properties.items():
                if not isinstance(name, str) or not isinstance(value, str):
                    raise IllegalMessage(f"property {name!r} is {value!r}: names and values are strings")

    @property
    def tags(self) -> str | None:
        """The tag by which consumers can filter, or None."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys by which the message can be found."""
        return names.split_keys(self.properties.get(names.KEYS, ""))

    @property
    def sharding_key(self) -> str | None:
        """The key that selects the queue, or None."""
        return self.properties.get(names.SHARDING_KEY)

    @property
    def deduplicate_id(self) -> str | None:
        """The id by which a broker recognizes a repeated send, or None."""
        return self.properties.get(names.DEDUPLICATE_ID)

    @property
    def priority(self) -> int | None:
        """The priority, or None."""
        priority = names.priority_of(self.properties.get(names.PRIORITY, ""))
        return priority if priority >= 0 else None

    @property
    def lite_topic(self) -> str | None:
        """The lite topic, or None."""
        return self.properties.get(names.LITE_TOPIC)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} topic={self.topic!r} tags={self.tags!r} body={len(self.body)} bytes>"


class Tombstone(Message):
    """A message without a body, which deletes a key from a compaction topic.

    Args:
        topic: A topic with `cleanup.policy=COMPACTION`.
        key: The key to delete. It is also the sharding key, because the broker compacts each queue on its own: the
            deletion goes to the queue of the messages that were sent with `keys=key, sharding_key=key`.
    """

    __slots__ = ()

    def __init__(self, topic: str, key: str) -> None:
        super().__init__(topic, b"", keys=key, sharding_key=key)


def _joined(keys: Iterable[str]) -> str:
    if not isinstance(keys, Iterable):
        raise IllegalMessage(f"keys={keys!r}: a string is wanted, or several")
    keys = list(keys)
    for key in keys:
        if not isinstance(key, str) or not key or names.KEY_SEPARATOR in key:
            raise IllegalMessage(f"the key {key!r} of {keys!r}: a key is a string without blanks, which separate keys")
    return names.KEY_SEPARATOR.join(keys)


def _checked_id(deduplicate_id: object) -> str:
    if not isinstance(deduplicate_id, str) or not 0 < len(deduplicate_id.encode()) <= names.MAX_DEDUPLICATE_ID_LENGTH:
        raise IllegalMessage(
            f"deduplicate_id={deduplicate_id!r}: must be a string of 1 to {names.MAX_DEDUPLICATE_ID_LENGTH} bytes"
        )
    return deduplicate_id


def _checked_lite_topic(topic: str, lite_topic: object) -> str:
    if not isinstance(lite_topic, str):
        raise IllegalMessage(f"lite_topic={lite_topic!r}: must be a string")
    if problem := lite_topic_problem(topic, lite_topic):
        raise IllegalMessage(problem)
    return lite_topic


def _delay(level: object, delay: object, deliver_at: object) -> tuple[str, str]:
    """Returns name and value of the property that delays the message."""
    given = {"delay_level": level or None, "delay": delay, "deliver_at": deliver_at}
    wanted = [name for name, value in given.items() if value is not None]
    if len(wanted) > 1:
        raise IllegalMessage(f"{' and '.join(wanted)}: a message has one delay")
    if delay is not None:
        return names.TIMER_DELAY_MS, str(duration_ms("delay", delay, IllegalMessage))
    if deliver_at is not None:
        at_ms = timestamp_ms("deliver_at", deliver_at, IllegalMessage)
        if not at_ms:
            raise IllegalMessage(f"deliver_at={deliver_at!r}: must be after 1970-01-01T00:00Z")
        return names.TIMER_DELIVER_MS, str(at_ms)
    if not isinstance(level, int) or isinstance(level, bool) or not 1 <= level <= MAX_DELAY_LEVEL:
        raise IllegalMessage(f"delay_level={level!r}: must be a whole number, 1 to {MAX_DELAY_LEVEL}; or use delay")
    return names.DELAY_TIME_LEVEL, str(level)


class _Packed:
    """A compressed body. At most `max_size` bytes are decompressed. `damage` is the error of a failed decompression."""

    __slots__ = ("damage", "flags", "max_size", "stored")

    def __init__(self, stored: bytes, flags: int, max_size: int, damage: ProtocolError | None = None) -> None:
        self.stored = stored
        self.flags = flags
        self.max_size = max_size
        self.damage = damage


if TYPE_CHECKING:

    class _Late(Generic[T]):
        """The type of an attribute made by `_late_field`, for type checkers."""

        def __get__(self, message: object, kind: type | None = None, /) -> T: ...
        def __set__(self, message: object, value: T, /) -> None: ...


def _late_field(place: int, meaning: str) -> _Late[int]:
    """Returns a property for a field in LateFields, which is decoded on first access.

    This takes a third of the time of `__getattr__`, which first creates an AttributeError.
    """

    def get(message: MessageExt) -> object:
        fields = message._head
        if type(fields) is bytes:
            fields = message._head = late_fields(fields)
        return fields[place]

    def put(message: MessageExt, value: object) -> None:
        get(message)
        fields = list(cast(LateFields, message._head))
        fields[place] = value
        message._head = cast(LateFields, tuple(fields))

    return cast("_Late[int]", property(get, put, doc=meaning))


class MessageExt(Message):
    """A received message: content, position and times. Timestamps are milliseconds since the epoch.

    Args:
        record: The record from a broker.
        broker_name: Name of the broker.
        max_body_size: Largest decompressed body, in bytes.
    """

    __slots__ = (
        "_body",
        "_head",
        "_packed",
        "_properties",
        "_raw_properties",
        "broker_name",
        "queue_id",
        "queue_offset",
        "store_size",
        "sys_flag",
    )

    flag = _late_field(0, "The sender's, which RocketMQ has no use for.")
    commit_log_offset = _late_field(1, "Where it stands in the broker's log, bytes.")
    born_timestamp = _late_field(2, "When it was sent, by its sender's clock; ms since the epoch.")
    born_host_bytes = cast("_Late[bytes]", _late_field(3, "The sender's address and port as they are stored."))
    store_timestamp = _late_field(4, "When it was stored, by the broker's clock; ms since the epoch.")
    _store_host = cast("_Late[bytes]", _late_field(5, "The broker's address and port as they are stored."))
    reconsume_times = _late_field(6, "How many times consumers of this group have given it back.")
    prepared_transaction_offset = _late_field(7, "Of a transaction: where its half message stands in the log.")

    def __init__(self, record: Record, broker_name: str = "", max_body_size: int = MAX_DECOMPRESSED_SIZE) -> None:
        # `super().__init__` is not called, so that properties stay encoded until they are used, which halves the cost
        # of a pull. One assignment is used because sixteen attribute lookups would take a tenth of the time.
        (
            self.store_size,
            self.queue_id,
            flag,
            self.queue_offset,
            commit_log_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            _,
            body,
            topic,
            self._raw_properties,
        ) = record
        try:
            self.topic = topic.decode()
        except UnicodeDecodeError as e:
            raise RecordError(f"topic of the record at {record.physical_offset} is no text: {e}") from e
        #: The raw bytes before the body, or the fields decoded from them. Decoded on first access.
        self._head: bytes | LateFields = (
            flag,
            commit_log_offset,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
        )
        #: None until it is decompressed.
        self._body: bytes | None = body
        self._packed: _Packed | None = None
        #: None until they are decoded.
        self._properties: dict[str, str] | None = None
        self.broker_name = broker_name
        self.sys_flag = sys_flag
        if sys_flag & COMPRESSED:
            self._body = None
            self._packed = _Packed(body, sys_flag & (COMPRESSED | COMPRESSION_MASK), max_body_size)
            self.sys_flag = sys_flag & ~COMPRESSED

    @classmethod
    def of_parts(
        cls,
        queue: MessageQueue,
        records: Iterable[tuple[int, int, int, bytes, bytes, bytes]],
        max_body_size: int = MAX_DECOMPRESSED_SIZE,
    ) -> list[MessageExt]:
        """Creates messages from the parts of valid records: size, queue offset, sysFlag, head, body and properties.

        The head has all bytes before the body. Its fields are decoded on first access. For speed, one call creates
        all messages, without `__init__`.
        """
        topic, broker_name, queue_id = queue
        new, messages = cls.__new__, []
        for size, queue_offset, sys_flag, head, body, properties in records:
            message = new(cls)
            message.topic = topic
            message.broker_name = broker_name
            message.queue_id = queue_id
            message.store_size = size
            message.queue_offset = queue_offset
            message._head = head
            message._raw_properties = properties
            message._properties = message._packed = None
            if sys_flag & COMPRESSED:
                message._body = None
                message._packed = _Packed(body, sys_flag & (COMPRESSED | COMPRESSION_MASK), max_body_size)
                sys_flag &= ~COMPRESSED
            else:
                message._body = body
            message.sys_flag = sys_flag
            messages.append(message)
        return messages

    @classmethod
    def damaged(cls, queue: MessageQueue, queue_offset: int, record: Record | None, damage: RecordError) -> Self:
        """Creates a message for a record that is damaged or only partly readable. Its `body` raises `damage`."""
        message = cls(record or _UNREADABLE, queue.broker_name)
        message.topic, message.queue_id, message.queue_offset = queue.topic, queue.queue_id, queue_offset
        message._body, message._packed = None, _Packed(b"", 0, 0, damage)
        return message

    @property
    def body(self) -> bytes:
        """The content, decompressed on access. A body of more than 256 KiB is cached only by `unpack`.

        Raises CompressionError if the body cannot be decompressed or is too large. Raises RecordError if the record is
        damaged.
        """
        body = self._body
        if body is None:
            body = self._decompress()
            if len(body) <= KEPT_SIZE:
                self._body = body
        return body

    @body.setter
    def body(self, body: bytes) -> None:
        self._body = body
        if self._packed is not None and self._packed.damage is None:
            self._packed = None

    @property
    def is_packed(self) -> bool:
        """True if reading `body` will decompress it."""
        return self._body is None

    def _decompress(self) -> bytes:
        packed = self._packed
        assert packed is not None
        if packed.damage is None:
            try:
                return decompress(packed.stored, packed.flags, packed.max_size)
            except CompressionError as e:
                # Kept, so that further reads do not decompress it again.
                packed.damage = e
        raise type(packed.damage)(f"message {self.msg_id} at {self.place}: {packed.damage}")

    def unpack(self) -> int:
        """Decompresses `body` and caches it until `pack`, whatever its size. Returns the size. Raises like `body`."""
        self._body = body = self.body
        return len(body)

    def pack(self) -> None:
        """Discards the body that `unpack` cached. The next read of `body` decompresses it again."""
        if self._packed is not None:
            self._body = None

    def decompress_if_small(self, max_size: int) -> bool:
        """Decompresses a body of at most `max_size` bytes. Returns true if the body is available or is damaged."""
        packed = self._packed
        if self._body is None and packed is not None and packed.damage is None:
            try:
                self._body = decompress(packed.stored, packed.flags, min(max_size, packed.max_size))
            except CompressionError:
                return False
        return True

    @property
    def stored_body(self) -> bytes:
        """The body as stored, possibly compressed. Empty for a damaged record."""
        return self._packed.stored if self._packed is not None else self.body

    @property
    def compression_flags(self) -> int:
        """The sysFlag bits with the compression of `stored_body`."""
        return self._packed.flags if self._packed is not None else 0

    @property
    def is_undecodable(self) -> bool:
        """True if `body` has raised an error before. Another attempt would fail, too."""
        return self._packed is not None and self._packed.damage is not None

    @property
    def is_damaged(self) -> bool:
        """True if the record itself is not readable. The message then has no content that could be passed on."""
        return self._packed is not None and isinstance(self._packed.damage, RecordError)

    @property
    def place(self) -> str:
        """The position of the message, for logs and errors."""
        return f"offset {self.queue_offset} of queue {self.queue_id} of {self.topic} on {self.broker_name or '?'}"

    def __repr__(self) -> str:
        size = f"{len(self.stored_body)} compressed" if self._body is None else len(self._body)
        return f"<{type(self).__name__} topic={self.topic!r} tags={self.tags!r} body={size} bytes>"

    @property
    def properties(self) -> dict[str, str]:
        """The properties. They are decoded on first access."""
        if self._properties is None:
            self._properties = decode_properties(self._raw_properties)
        return self._properties

    @properties.setter
    def properties(self, properties: dict[str, str]) -> None:
        self._properties = properties

    @property
    def born_host(self) -> str:
        """HOST:PORT of the producer."""
        return decode_host(self.born_host_bytes)

    @property
    def store_host(self) -> str:
        """HOST:PORT of the broker."""
        return decode_host(self._store_host)

    @property
    def offset_msg_id(self) -> str:
        """The message id that contains the message's position."""
        return encode_offset_message_id(self._store_host, self.commit_log_offset)

    @property
    def msg_id(self) -> str:
        """The producer's unique key, or the offset message id if there is no unique key."""
        return self.properties.get(names.UNIQUE_KEY) or self.offset_msg_id

    @property
    def message_queue(self) -> MessageQueue:
        """The queue of the message."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


#: Placeholder for a record that is not readable at all.
_UNREADABLE = Record(0, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, 0, b"", b"", b"")


def decode_messages(body: Buffer, broker_name: str = "") -> Iterator[MessageExt]:
    """Yields the messages in the body of a pull response. Raises RecordError at the first invalid message."""
    pos, end = 0, len(body)
    while pos < end:
        record = decode_record(body, pos)
        yield MessageExt(record, broker_name)
        pos += record.size
