"""Checks, encodes and compresses messages for a send (`Validators`, `DefaultMQProducerImpl.sendKernelImpl`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from gantrymq.client.producing.options import ProducerOptions
from gantrymq.errors import IllegalMessage
from gantrymq.kernels import native
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.compression import compress, compression_flag
from gantrymq.protocol.message import Message, Tombstone
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.properties import (
    DELAY_TIME_LEVEL,
    INSTANCE_ID,
    LITE_TOPIC,
    MAX_PROPERTIES_LENGTH,
    MAX_RECONSUME_TIMES,
    MESSAGE_TYPE,
    NAME_VALUE_SEPARATOR,
    PRIORITY,
    PROPERTY_SEPARATOR,
    RECONSUME_TIME,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    UNIQUE_KEY_PAIR,
    encode_properties,
)
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED as PREPARED_FLAG
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX

#: Larger bodies are compressed in a thread, because compression would block the event loop for milliseconds. In bytes.
COMPRESS_IN_THREAD_OVER = 128 * 1024
#: MSG_TYPE of a reply to a request (`MixAll.REPLY_MESSAGE_FLAG`).
REPLY_TYPE = "reply"
#: Error text for messages that `may_be_batched` rejects.
NOT_IN_A_BATCH = (
    "delayed messages, those of transactions, those with a priority or a lite topic, replies and those to retry topics "
    "go alone, in no batch"
)
DELAYS = (DELAY_TIME_LEVEL, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS)
#: A message with one of these properties is in no batch.
_ALONE = frozenset({TRANSACTION_PREPARED, PRIORITY, LITE_TOPIC})
#: A message with one of these properties is encoded and checked individually, even in a batch.
_ODD = [UNIQUE_KEY, TRANSACTION_PREPARED, MESSAGE_TYPE, PRIORITY, LITE_TOPIC, *DELAYS]


#: Creates a NamedTuple in half the time of its own constructor.
_new = tuple.__new__
_join_pair = NAME_VALUE_SEPARATOR.join
_msg_id = attrgetter("msg_id")
_NO_PROPERTIES: dict[str, str] = {}
#: Size of UNIQUE_KEY_PAIR with an id, in bytes.
UNIQUE_KEY_SIZE = 42


class EncodedMessage(NamedTuple):
    """An encoded message or batch.

    `topic` includes the namespace. `msg_id` of a batch has several ids, with commas. `msg_id` is empty for a message
    that is not yet joined into its batch (`Encoder.encode_part`).
    """

    topic: str
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    batch: bool
    msg_id: str
    reply: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


class Encoder:
    """Encodes the messages of one producer. `unique_keys` generates their ids."""

    def __init__(self, unique_keys: UniqueKeys, options: ProducerOptions) -> None:
        self.unique_keys = unique_keys
        self._namespace = options.namespace
        self._compress_over = options.compress_over
        self._compression = options.compression
        self.max_message_size = options.max_message_size

    def encode(self, topic: str, message: Message, properties: dict[str, str]) -> EncodedMessage:
        """Encodes `message` for `topic`, with `properties` instead of its own. Raises IllegalMessage."""
        body = message.body
        if type(body) is not bytes:
            raise IllegalMessage(f"the message body is of type {type(body).__name__}: give bytes, text as str.encode()")
        if not body and not isinstance(message, Tombstone):
            raise IllegalMessage("the message body is empty")
        if len(body) > self.max_message_size:
            raise IllegalMessage(f"message body of {len(body)} bytes: at most {self.max_message_size} are allowed")
        if not properties and not self._namespace:
            msg_id = self.unique_keys.next()
            own = UNIQUE_KEY_PAIR % msg_id.encode()
            return _new(EncodedMessage, (topic, body, own, message.flag, 0, False, msg_id, False, 0, None))
        # A copy, because several sends of the same message can be in flight.
        properties = dict(properties)
        msg_id = properties.setdefault(UNIQUE_KEY, "") or self.unique_keys.next()
        properties[UNIQUE_KEY] = msg_id
        if self._namespace:
            properties[INSTANCE_ID] = self._namespace
        reconsume_times, max_reconsume_times = 0, None
        if topic.startswith(RETRY_TOPIC_PREFIX):
            _joined(properties)
            reconsume_times = _number(properties, RECONSUME_TIME) or 0
            max_reconsume_times = _number(properties, MAX_RECONSUME_TIMES)
        text, count = _joined(properties), len(properties)
        if not text.isascii() or text.count(NAME_VALUE_SEPARATOR) != count or text.count(PROPERTY_SEPARATOR) != count:
            # This call raises for invalid names and values, except for a value that contains \x01.
            property_bytes = encode_properties(properties)
            if text.count(NAME_VALUE_SEPARATOR) != count:
                raise IllegalMessage("a property's value holds \\x01, which separates properties: replace it")
        else:
            property_bytes = text.encode()
        if len(property_bytes) > MAX_PROPERTIES_LENGTH:
            raise IllegalMessage(
                f"properties of {len(property_bytes)} bytes: at most {MAX_PROPERTIES_LENGTH} are allowed"
            )
        sys_flag = PREPARED_FLAG if properties.get(TRANSACTION_PREPARED) == "true" else 0
        reply = properties.get(MESSAGE_TYPE) == REPLY_TYPE
        return _new(
            EncodedMessage,
            (
                topic,
                body,
                property_bytes,
                message.flag,
                sys_flag,
                False,
                msg_id,
                reply,
                reconsume_times,
                max_reconsume_times,
            ),
        )

    def encode_part(self, topic: str, message: Message) -> EncodedMessage:
        """Encodes a message for `join`. A message without properties gets its id in `join`. Raises IllegalMessage."""
        body = message.body
        if (
            message.properties
            or self._namespace
            or type(body) is not bytes
            or not 0 < len(body) <= self.max_message_size
        ):
            return self.encode(topic, message, message.properties)
        return _new(EncodedMessage, (topic, body, b"", message.flag, 0, False, "", False, 0, None))

    def encode_batch(
        self, topic: str, messages: Sequence[Message], properties: Sequence[dict[str, str]]
    ) -> EncodedMessage:
        """Encodes `messages` as one batch, with `properties` instead of their own. Raises IllegalMessage."""
        if native is not None and (batch := self._encode_plain_batch(topic, messages, properties)) is not None:
            return batch
        parts: list[EncodedMessage] = []
        for message, message_properties in zip(messages, properties, strict=True):
            if message.topic != messages[0].topic:
                raise IllegalMessage(f"a batch has one topic, not both {messages[0].topic} and {message.topic}")
            if not may_be_batched(message):
                raise IllegalMessage(NOT_IN_A_BATCH)
            parts.append(self.encode(topic, message, message_properties))
        return self.join(topic, parts)

    def _encode_plain_batch(
        self, topic: str, messages: Sequence[Message], properties: Sequence[dict[str, str]]
    ) -> EncodedMessage | None:
        """Encodes a batch in native code. Returns None if a message has properties in _ODD or needs its own checks."""
        assert native is not None
        if self._namespace or topic.startswith(RETRY_TOPIC_PREFIX) or len({message.topic for message in messages}) > 1:
            return None
        flags, bodies = [message.flag for message in messages], [message.body for message in messages]
        return self._native_batch(topic, flags, bodies, list(properties))

    def _native_batch(
        self, topic: str, flags: list[int], bodies: list[bytes], properties: list[dict[str, str]]
    ) -> EncodedMessage | None:
        """Encodes a batch and generates the message ids. Returns None if a message must be checked in Python."""
        assert native is not None
        head, first = self.unique_keys.some(len(bodies))
        found = native.plain_batch(flags, bodies, properties, _ODD, head, first)
        if found is None or len(found[0]) > self.max_message_size:
            return None
        return EncodedMessage(topic, found[0], b"", 0, 0, True, found[1])

    def join(self, topic: str, parts: Sequence[EncodedMessage]) -> EncodedMessage:
        """Joins encoded messages into one batch. Raises IllegalMessage."""
        if native is not None and not any(map(_msg_id, parts)):
            flags, bodies = [part.flag for part in parts], [part.body for part in parts]
            batch = self._native_batch(topic, flags, bodies, [_NO_PROPERTIES] * len(parts))
            if batch is not None:
                return batch
        parts = [self.with_id(part) for part in parts]
        body = encode_batch([(part.flag, part.body, part.properties) for part in parts])
        if len(body) > self.max_message_size:
            raise IllegalMessage(f"batch of {len(body)} bytes: at most {self.max_message_size} are allowed")
        return EncodedMessage(topic, body, b"", 0, 0, True, ",".join([part.msg_id for part in parts]))

    def with_id(self, part: EncodedMessage) -> EncodedMessage:
        """Returns a message from `encode_part`. If the message has no id, generates one."""
        if part.msg_id:
            return part
        msg_id = self.unique_keys.next()
        return part._replace(properties=UNIQUE_KEY_PAIR % msg_id.encode(), msg_id=msg_id)

    @property
    def largest_uncompressed(self) -> int:
        """Largest body that `wants_compression` excludes, in bytes."""
        return self._compress_over - 1

    def wants_compression(self, encoded: EncodedMessage) -> bool:
        return len(encoded.body) >= self._compress_over and not encoded.batch

    async def compress(self, encoded: EncodedMessage) -> EncodedMessage:
        """Returns `encoded` with a compressed body; unchanged if compression does not make the body smaller."""
        body = encoded.body
        if len(body) > COMPRESS_IN_THREAD_OVER:
            compressed = await asyncio.to_thread(compress, body, self._compression)
        else:
            compressed = compress(body, self._compression)
        if len(compressed) >= len(body):
            return encoded
        return encoded._replace(body=compressed, sys_flag=encoded.sys_flag | compression_flag(self._compression))


def _joined(properties: dict[str, str]) -> str:
    """Works like `encode_properties`, without checks, in half the time. Raises IllegalMessage for non-strings."""
    try:
        return PROPERTY_SEPARATOR.join(map(_join_pair, properties.items())) + PROPERTY_SEPARATOR
    except TypeError:
        raise IllegalMessage(not_strings(properties)) from None


def not_strings(properties: dict[Any, Any]) -> str:
    """Returns the error text for properties that are not strings."""
    pairs = properties.items()
    name, value = next((name, value) for name, value in pairs if not (isinstance(name, str) and isinstance(value, str)))
    return f"property {name!r} is {value!r}: names and values are strings, give str({value!r})"


def may_be_batched(message: Message) -> bool:
    """Returns whether `message` can be part of a batch (`DefaultMQProducer.canBatch`).

    Delayed messages, half messages, messages with a priority or a lite topic, replies and messages to a retry topic
    cannot be.
    """
    properties = message.properties
    if isinstance(message.topic, str) and message.topic.startswith(RETRY_TOPIC_PREFIX):
        return False
    if not properties:
        return True
    if not _ALONE.isdisjoint(properties) or properties.get(MESSAGE_TYPE) == REPLY_TYPE:
        return False
    return all(properties.get(name, "0") == "0" for name in DELAYS)


def _number(properties: dict[str, str], name: str) -> int | None:
    """Removes a property and returns it as a number, for the request header. Raises IllegalMessage."""
    value = properties.pop(name, None)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise IllegalMessage(f"property {name} is {value!r}: a number is wanted") from None
