"""Converts a message in this broker's log into a send request for another broker (`EscapeBridge`)."""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.broker.transaction import destination
from gantrymq.errors import IllegalMessage
from gantrymq.protocol import properties as names
from gantrymq.protocol.properties import decode_properties, encode_properties
from gantrymq.protocol.record import Record
from gantrymq.protocol.sys_flag import COMPRESSED, COMPRESSION_MASK, MULTI_TAGS, TRANSACTION_PREPARED
from gantrymq.protocol.topic_name import TIMER_TOPIC, TRANSACTION_HALF_TOPIC

#: The flags that belong to the message. All other flags describe its record in this log.
_KEPT = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
_WAITING = (
    names.TIMER_OUT_MS,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    names.TIMER_ENQUEUE_MS,
    names.TIMER_DEQUEUE_MS,
    names.TIMER_ROLL_TIMES,
    names.REAL_QUEUE_ID,
)
#: Maximum length of a number in a property, in characters. A Java long is never longer.
_MOST_DIGITS = 20
_TIMED = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)


class EscapedMessage(NamedTuple):
    """A message to send to any queue of `topic`. `group` is the producer group, None if the message has none."""

    topic: str
    group: str | None
    sys_flag: int
    properties: bytes


def escaped_message(record: Record, topic: str, properties: bytes) -> EscapedMessage:
    """Converts a message of the log into a send to `topic`, with the given properties.

    A delayed message waits at the other broker for the rest of its delay. A half message stays a half message, so the
    other broker checks its transaction. Raises IllegalMessage if a required property is missing or invalid.
    """
    fields = decode_properties(properties)
    sys_flag = record.sys_flag & _KEPT
    # The delay has passed. In a send request this property would start a new delay.
    fields.pop(names.DELAY_TIME_LEVEL, None)
    # Its id was checked at the send. The other broker can have a message of a later or an earlier window with this id.
    fields.pop(names.DEDUPLICATE_ID, None)
    if topic == TRANSACTION_HALF_TOPIC:
        target = destination(fields)
        if target is None:
            raise IllegalMessage(f"REAL_TOPIC is {fields.get(names.REAL_TOPIC, '')[:300]!r}")
        topic = target[0]
        sys_flag |= TRANSACTION_PREPARED
        fields[names.TRANSACTION_PREPARED] = "true"
        for name in (names.TRANSACTION_PREPARED_QUEUE_OFFSET, names.REAL_QUEUE_ID):
            fields.pop(name, None)
    elif topic == TIMER_TOPIC:
        topic = fields.pop(names.REAL_TOPIC, "")
        # A time slot's messages are due when the slot has ended.
        out_ms = fields.get(names.TIMER_OUT_MS, "")
        if not (out_ms.isascii() and out_ms.isdigit() and len(out_ms) < _MOST_DIGITS):
            raise IllegalMessage(f"TIMER_OUT_MS is {out_ms[:30]!r}")
        due_ms = int(out_ms) + 1
        for name in _WAITING:
            fields.pop(name, None)
        fields[names.TIMER_DELIVER_MS] = str(due_ms)
    elif any(name in fields for name in _TIMED):
        # With this property, the other broker treats the delay as completed.
        fields.setdefault(names.TIMER_OUT_MS, "0")
    return EscapedMessage(topic, fields.get(names.PRODUCER_GROUP), sys_flag, encode_properties(fields))
