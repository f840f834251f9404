"""Validates a client's message and converts it to a broker's format.

Error codes and texts are the same as in Java's proxy.

Source: `SendMessageActivity` (buildMessage, buildMessageProperty, fillDelayMessageProperty).
"""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.errors import CompressionError, IllegalMessage
from gantrymq.protocol import properties as names
from gantrymq.protocol import sys_flag
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE
from gantrymq.protocol.properties import encode_properties
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.messages import RESERVED, message_type, to_body, to_properties
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.times import timestamp_ms
from gantrymq.proxy.v2.definition_pb2 import Code, Message, MessageType, SystemProperties
from gantrymq.proxy.validation import check_lite_topic, check_tag, has_control_character, is_blank
from gantrymq.system.clock import now_ms

#: Last second of the year 9999, as Unix time.
_LAST_S = 253_402_300_799
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class EncodedMessage(NamedTuple):
    """A message to send, in the format of brokers. `kind` is the type that its topic must have (`metadata.NORMAL` ...).

    `born_ms` is the time at which the client created the message, in ms.
    """

    body: bytes
    properties: bytes
    message_id: str
    sys_flag: int
    kind: str
    born_ms: int
    #: The message group or the lite topic, which selects the queue.
    message_group: str
    deduplicate_id: str


class MessageEncoder:
    """Encodes messages and enforces the proxy's limits."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self._delays_ms = _delay_levels(config.message_delay_level) if config.use_delay_level else []

    def encode(self, message: Message, peer: str) -> EncodedMessage:
        """Converts a message. `peer` is the client's host:port. Raises ProxyError for an invalid message."""
        config, system = self._config, message.system_properties
        body = message.body
        if not body and config.enable_message_body_empty_check:
            raise ProxyError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
        if 0 < config.max_message_size < len(body):
            raise ProxyError(
                Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {config.max_message_size}"
            )
        if system.HasField("priority") and system.priority < 0:
            raise ProxyError(Code.BAD_REQUEST, "the priority must be greater than or equal to 0")
        self._check_own_properties(message)
        if is_blank(system.message_id):
            raise ProxyError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
        if system.message_group:
            self._check_group(system.message_group)
        if system.lite_topic:
            check_lite_topic(system.lite_topic, self._config.max_lite_topic_size)
        is_half = system.message_type == MessageType.TRANSACTION
        if is_half:
            self._check_recovery(system)
        if system.HasField("delivery_timestamp"):
            self._check_delivery(system)
        if system.HasField("born_timestamp") and not 0 <= system.born_timestamp.seconds <= _LAST_S:
            raise ProxyError(Code.MESSAGE_CORRUPTED, "the born timestamp of message is no time")
        # The topic is also the producer group. A broker sends transaction checks to the members of this group.
        properties = to_properties(message, message.topic.name, peer)
        if self._delays_ms and names.TIMER_DELIVER_MS in properties:
            properties[names.DELAY_TIME_LEVEL] = str(self._delay_level(int(properties[names.TIMER_DELIVER_MS])))
        try:
            encoded = encode_properties(properties)
            body, flag = to_body(message, self._config.max_message_size or MAX_DECOMPRESSED_SIZE)
        except (IllegalMessage, CompressionError) as e:
            raise ProxyError(Code.MESSAGE_CORRUPTED, str(e)) from e
        return EncodedMessage(
            body,
            encoded,
            system.message_id,
            flag | sys_flag.TRANSACTION_PREPARED if is_half else flag,
            MessageType.Name(message_type(properties)),
            int(properties.get(names.BORN_TIMESTAMP) or now_ms()),
            system.message_group or system.lite_topic,
            properties.get(names.DEDUPLICATE_ID, ""),
        )

    def _check_own_properties(self, message: Message) -> None:
        """Raises ProxyError for invalid or too large user properties, tag and keys."""
        config, system = self._config, message.system_properties
        if len(message.user_properties) > config.user_property_max_num:
            raise ProxyError(
                Code.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {config.user_property_max_num}"
            )
        code, size = Code.ILLEGAL_MESSAGE_PROPERTY_KEY, 0
        for name, value in message.user_properties.items():
            if name in RESERVED:
                raise ProxyError(code, f"property is used by system: {name}")
            if has_control_character(name):
                raise ProxyError(code, "the key of property cannot contain control character")
            if has_control_character(value):
                raise ProxyError(code, "the value of property cannot contain control character")
            size += len(name.encode()) + len(value.encode())
        if system.tag:
            check_tag(system.tag)
            size += len(system.tag.encode())
        for key in system.keys:
            self._check_key(key)
            size += len(key.encode())
        if size > config.max_user_property_size:
            raise ProxyError(
                Code.MESSAGE_PROPERTIES_TOO_LARGE,
                f"the total size of user property is too large, max is {config.max_user_property_size}",
            )

    @staticmethod
    def _check_key(key: str) -> None:
        if key and is_blank(key):
            raise ProxyError(Code.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace")
        if has_control_character(key):
            raise ProxyError(Code.ILLEGAL_MESSAGE_KEY, "key cannot contain control character")

    def _check_group(self, group: str) -> None:
        code, longest = Code.ILLEGAL_MESSAGE_GROUP, self._config.max_message_group_size
        if is_blank(group):
            raise ProxyError(code, "message group cannot be the char sequence of whitespace")
        # As in Java, a message group of exactly the maximum length is too long. Without a maximum, any length is valid.
        if longest <= 0:
            return
        if len(group.encode()) >= longest:
            raise ProxyError(code, f"message group exceed the max size {longest}")
        if has_control_character(group):
            raise ProxyError(code, "message group cannot contain control character")

    def _check_recovery(self, system: SystemProperties) -> None:
        seconds = system.orphaned_transaction_recovery_duration.seconds
        longest = self._config.max_transaction_recovery_second
        if 0 < longest < seconds:
            raise ProxyError(
                Code.BAD_REQUEST, f"the max transaction recovery time of message is too large, max is {longest}"
            )

    def _check_delivery(self, system: SystemProperties) -> None:
        deliver_ms, longest = timestamp_ms(system.delivery_timestamp), self._config.max_delay_time_mills
        if 0 < longest < deliver_ms - now_ms():
            raise ProxyError(
                Code.ILLEGAL_DELIVERY_TIME, f"the max delay time of message is too large, max is {longest}"
            )
        if not 0 <= deliver_ms // 1000 <= _LAST_S:
            raise ProxyError(Code.ILLEGAL_DELIVERY_TIME, "the delivery timestamp of message is no time")

    def _delay_level(self, deliver_ms: int) -> int:
        """Returns the first level with a longer delay than the message's, otherwise the last level."""
        delay_ms = deliver_ms - now_ms()
        longer = (n for n, level_ms in enumerate(self._delays_ms, 1) if level_ms > delay_ms)
        return next(longer, len(self._delays_ms))


def _delay_levels(text: str) -> list[int]:
    """Parses delay levels such as "1s 5s 2h" into ms. Returns an empty list for invalid text, as Java does."""
    try:
        return [int(level[:-1]) * _UNITS_MS[level[-1]] for level in text.split()]
    except (ValueError, KeyError):
        return []
