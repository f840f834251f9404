"""`RowEncoder` encodes the rows of a write as messages."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.arrow.batch_bodies import BatchBody, Encoded, PlainRows, batch_body, plain_rows, requests_of
from gantrymq.arrow.body_values import EncodeValue
from gantrymq.arrow.columns import BODY, VALUE, WRITE_COLUMNS, proper_name, with_names
from gantrymq.arrow.options import WriteOptions
from gantrymq.client.producing.message_encoder import DELAYS
from gantrymq.errors import IllegalMessage
from gantrymq.protocol import properties as names
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.reserved_properties import is_reserved
from gantrymq.protocol.row_ids import GANTRY_ID, SEQUENCE_LENGTH
from gantrymq.protocol.topic_name import SEND_FORBIDDEN_TOPICS, topic_problem

log = logging.getLogger(__name__)

#: The names of the columns of a write, in their documented spelling.
COLUMN_NAMES = (*WRITE_COLUMNS, VALUE)
#: Columns that delay a message, with their properties.
DELAY_COLUMNS = {name: column.source for name, column in WRITE_COLUMNS.items() if column.source in DELAYS}
#: Spark's timestamps have a wider range than Python's datetime and RFC 3339.
_NOT_OF_PYTHON = "has a value out of bounds (dates and times are of the years 1 to 9999)"
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
#: The most bytes that brokers add to the properties of a half message: topic, queue, group, a copy of the id, and 128
#: bytes that GantryMQ's brokers reserve.
_HALF_MESSAGE_BYTES = 512


def why_not_delayed(options: WriteOptions) -> str:
    """The reason why the write can't delay messages; empty if it can."""
    if options.transactional:
        return "messages of a transaction"
    return "rows of exactlyOnce" if options.exactly_once else ""


class WantedQueue(NamedTuple):
    """The queue that the columns of a row select. Without a broker, only one broker may have a queue of this id."""

    broker_name: str | None
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id}" + ("" if self.broker_name is None else f" on broker {self.broker_name!r}")


#: Selects the queue of a row: a sharding key, or the queue itself.
QueueKey = str | WantedQueue


class NumberedRow(NamedTuple):
    """A row of a write with exactlyOnce. `digest` is the checksum of the parts that are the same in each attempt."""

    number: int
    queue_key: QueueKey | None
    digest: int
    message: Encoded


@dataclass
class TopicMessages:
    """The messages of some rows for one topic.

    Attributes:
        numbered: With exactlyOnce, the rows in order, if Python encodes them.
        plain: With exactlyOnce, the rows, if native code encodes them.
        free: Batches that can go to any queue.
        by_key: {queue key: messages}. The key selects the queue.
        alone: (queue key or None, message), for messages that can't be in a batch.
    """

    numbered: list[NumberedRow] = field(default_factory=list)
    plain: PlainRows | None = None
    free: list[BatchBody] = field(default_factory=list)
    by_key: dict[QueueKey, list[Encoded]] = field(default_factory=dict)
    alone: list[tuple[QueueKey | None, Encoded]] = field(default_factory=list)


class RowEncoder:
    """Encodes the rows of one task. The property GANTRY_ID of a row is `id_prefix`, a hyphen and the row number."""

    def __init__(self, options: WriteOptions, id_prefix: str) -> None:
        self._topic = options.topic
        self._id_prefix = id_prefix
        self._row = 0
        self._unique_keys = UniqueKeys()
        self._good_topics: set[str] = set()
        self._kept = options.keep_properties
        self._body = options.body
        #: Created with the first batch: all batches have the same type.
        self._encode_value: EncodeValue | None = None
        self._is_dropped: dict[str, bool] = {}
        self._why_not_delayed = why_not_delayed(options)
        self._is_numbered = options.exactly_once
        self._may_be_plain = not options.body and not _problem_with(options.topic)
        reserved = SEQUENCE_LENGTH if options.exactly_once else _HALF_MESSAGE_BYTES if options.transactional else 0
        self._most_bytes = names.MAX_PROPERTIES_LENGTH - reserved

    def encode(self, batch: pa.RecordBatch) -> dict[str, TopicMessages]:
        """Returns {topic: messages in the order of their rows}. Raises IllegalMessage, which names the row."""
        batch = with_names(batch, [proper_name(name, COLUMN_NAMES) for name in batch.schema.names])
        if self._topic is not None and self._may_be_plain:
            plain = plain_rows(
                batch,
                self._id_prefix,
                self._row,
                self._unique_keys,
                self._is_not_its_own,
                DELAYS,
                self._most_bytes,
            )
            if plain is not None and (batches := plain.batches()) is not None:
                self._row += batch.num_rows
                return {self._topic: TopicMessages(plain=plain) if self._is_numbered else TopicMessages(free=batches)}
        return self._encode_one_by_one(batch)

    def _encode_one_by_one(self, batch: pa.RecordBatch) -> dict[str, TopicMessages]:
        given = {name: self._values(name, _in_utc(batch.column(name))) for name in batch.schema.names}
        if self._body is not None:
            given[BODY] = given[VALUE]
            if self._encode_value is None:
                self._encode_value = self._body.encoder(batch.column(VALUE).type)
        encode_value = self._encode_value
        nothing = [None] * batch.num_rows
        columns = [given.get(name, nothing) for name in WRITE_COLUMNS if name not in DELAY_COLUMNS]
        delays = [(property_, given[name]) for name, property_ in DELAY_COLUMNS.items() if name in given]
        messages: dict[str, TopicMessages] = {}
        free: dict[str, list[Encoded]] = {}
        for i, (topic, broker_name, queue_id, keys, tags, body, properties, sharding_key) in enumerate(
            zip(*columns, strict=True)
        ):
            try:
                topic = self._topic or topic
                if topic not in self._good_topics:
                    self._check_topic(topic)
                if encode_value is not None:
                    body = encode_value(body)
                of_topic = messages.setdefault(topic, TopicMessages())
                own = self._own(properties) if properties else {}
                for property_, values in delays:
                    if values[i] is not None:
                        own[property_] = str(values[i])
                is_alone = self._check_delay(own)
                # An empty sharding key counts as null, as in the other columns.
                sharding_key = sharding_key or None
                digest, message = self._message(own, body, keys, tags, sharding_key)
                queue_key = sharding_key if queue_id is None else WantedQueue(broker_name or None, queue_id)
                if queue_id is None and broker_name:
                    raise IllegalMessage(f"column brokerName is {broker_name!r} and column queueId is null")
            except IllegalMessage as e:
                self._name_row(e, self._row)
                raise
            if self._is_numbered:
                of_topic.numbered.append(NumberedRow(self._row, queue_key, digest, message))
            elif is_alone:
                of_topic.alone.append((queue_key, message))
            elif queue_key is None:
                free.setdefault(topic, []).append(message)
            else:
                of_topic.by_key.setdefault(queue_key, []).append(message)
            self._row += 1
        for topic, of_topic in messages.items():
            of_topic.free.extend(batch_body(request) for request in requests_of(free.get(topic, [])))
        return messages

    def _values(self, name: str, column: pa.Array) -> list[Any]:
        if name == "deliverAt":
            # In ms, rounded down.
            column = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        elif name == BODY and column.type in _TEXTS:
            # Not decoded, because Spark's strings and bodies can have bytes that are not UTF-8.
            column = column.cast(pa.large_binary())
        try:
            values: list[Any] = column.to_pylist()
        except (ValueError, OverflowError):
            for i, value in enumerate(column):
                try:
                    value.as_py()
                except (ValueError, OverflowError) as e:
                    what = "is no Unicode text" if isinstance(e, UnicodeDecodeError) else _NOT_OF_PYTHON
                    problem = IllegalMessage(f"column {name} {what}: {e}")
                    self._name_row(problem, self._row + i)
                    raise problem from e
            raise
        return values

    def _name_row(self, error: IllegalMessage, row: int) -> None:
        error.add_note(f"row {row} of the partition ({self._id_prefix})")

    def _own(self, properties: list[tuple[str, str | None]]) -> dict[str, str]:
        """Returns the properties of a row, without those that RocketMQ has set on the message that was read."""
        return {name: value for name, value in properties if value and not self._is_not_its_own(name)}

    def _is_not_its_own(self, name: str) -> bool:
        found = self._is_dropped.get(name)
        if found is None:
            found = self._is_dropped[name] = is_reserved(name) and name not in self._kept
            if found:
                log.warning("property %s is RocketMQ's own: rows are written without it (option keepProperties)", name)
        return found

    def _message(
        self,
        own: dict[str, str],
        body: bytes | str | None,
        keys: str | list[str | None] | None,
        tags: str | None,
        sharding_key: str | None,
    ) -> tuple[int, Encoded]:
        if not body:
            raise IllegalMessage("the body is null or empty, which no message's may be")
        text = names.KEY_SEPARATOR.join(filter(None, keys)) if isinstance(keys, list) else keys
        if text:
            own[names.KEYS] = text
        if tags:
            own[names.TAGS] = tags
        if sharding_key:
            own[names.SHARDING_KEY] = sharding_key
        own[GANTRY_ID] = f"{self._id_prefix}-{self._row}"
        encoded = names.encode_properties(own)
        body = body.encode() if isinstance(body, str) else body
        digest = crc32(body, crc32(encoded)) if self._is_numbered else 0
        if names.UNIQUE_KEY not in own:
            # Added after the digest, because it differs in each attempt.
            encoded += f"{names.UNIQUE_KEY}\x01{self._unique_keys.next()}\x02".encode()
        if len(encoded) > self._most_bytes:
            raise IllegalMessage(f"properties of {len(encoded)} bytes: at most {self._most_bytes} are allowed")
        if "" in own:
            raise IllegalMessage("a property has no name")
        return digest, (0, body, encoded)

    def _check_delay(self, own: dict[str, str]) -> bool:
        """Whether the message is delayed, and so can't be in a batch.

        Raises IllegalMessage for invalid or several delays, and if the write can't delay messages.
        """
        given = [name for name in DELAYS if own.get(name, "0") != "0"]
        if not given:
            return False
        if len(given) > 1:
            raise IllegalMessage(f"{' and '.join(given)} exclude each other")
        if not own[given[0]].isdecimal():
            raise IllegalMessage(f"property {given[0]} is {own[given[0]]!r}: a number that isn't negative is wanted")
        if self._why_not_delayed:
            raise IllegalMessage(f"property {given[0]}: {self._why_not_delayed} can't be delayed")
        return True

    def _check_topic(self, topic: str | None) -> None:
        problem = _problem_with(topic)
        if problem or topic is None:
            raise IllegalMessage(problem or "")
        self._good_topics.add(topic)


def _in_utc(column: pa.Array) -> pa.Array:
    """Converts times to UTC. In another zone, one hour of a year is ambiguous, and old UTC offsets have seconds."""
    kind = _type_in_utc(column.type)
    return column if kind == column.type else column.cast(kind)


def _type_in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_type_in_utc(kind.key_type)),
            kind.item_field.with_type(_type_in_utc(kind.item_type)),
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_utc(kind.value_type)))
    return kind


def _problem_with(topic: str | None) -> str | None:
    if topic is None:
        return "the topic is null"
    if topic in SEND_FORBIDDEN_TOPICS:
        return f"clients may not send to the system topic {topic}"
    return topic_problem(topic)
