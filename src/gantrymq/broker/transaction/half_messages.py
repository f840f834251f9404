"""Half messages: the stored form of a transactional message until its producer commits it or rolls it back.

All half messages are in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC. Their properties contain the target topic and queue.
Sources: `TransactionalMessageBridge`, `TransactionalMessageUtil`.
"""

from __future__ import annotations

from gantrymq.errors import GantryError, RequestRefused
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.properties import (
    MAX_PROPERTIES_LENGTH,
    decode_properties,
    encode_properties,
    find_property,
)
from gantrymq.protocol.record import Record
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK
from gantrymq.protocol.topic_name import TRANSACTION_HALF_TOPIC, may_be_sent_to
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore

#: Maximum size of a half message's properties, in bytes. A check adds up to 128 bytes.
MAX_HALF_PROPERTIES_LENGTH = MAX_PROPERTIES_LENGTH - 128

_HALF_TOPIC = TRANSACTION_HALF_TOPIC.encode()


def half_queue(store: MessageStore) -> ConsumeQueue:
    """Returns the queue of all half messages."""
    return store.queue(TRANSACTION_HALF_TOPIC, 0)


def half_properties(properties: bytes, queue: ConsumeQueue) -> bytes:
    """Returns the properties of a half message for `queue`. Raises RequestRefused if they become too long."""
    fields = decode_properties(properties)
    # The message has these properties if a client has copied a half message with all its properties.
    fields.pop(names.TRANSACTION_PREPARED_QUEUE_OFFSET, None)
    fields.pop(names.TRANSACTION_CHECK_TIMES, None)
    if names.UNIQUE_KEY in fields:
        fields[names.TRANSACTION_ID] = fields[names.UNIQUE_KEY]
    fields[names.REAL_TOPIC] = queue.topic
    fields[names.REAL_QUEUE_ID] = str(queue.queue_id)
    encoded = encode_properties(fields)
    if len(encoded) > MAX_HALF_PROPERTIES_LENGTH:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal: a transactional message's properties may have "
            f"{MAX_HALF_PROPERTIES_LENGTH} bytes together with the broker's own, they have {len(encoded)}",
        )
    return encoded


def destination(fields: dict[str, str]) -> tuple[str, int] | None:
    """Returns the target (topic, queue id) of a half message; None if the target is missing, invalid or not allowed."""
    topic, queue_id = fields.get(names.REAL_TOPIC), fields.get(names.REAL_QUEUE_ID, "")
    is_queue_id = queue_id.isdecimal() and len(queue_id) < 10
    return (topic, int(queue_id)) if topic and is_queue_id and may_be_sent_to(topic) else None


def target_topic(record: Record) -> str:
    """Returns the target topic of a half message; empty if it is missing."""
    return (find_property(record.properties, b"REAL_TOPIC") or b"").decode(errors="replace")


def first_half_offset(fields: dict[str, str]) -> int:
    """Returns the queue offset of the original of a copied half message; -1 if the half message is not a copy."""
    return number_of(fields.get(names.TRANSACTION_PREPARED_QUEUE_OFFSET), -1)


def first_half_offset_of(properties: bytes) -> int:
    """Like `first_half_offset`, without decoding all properties."""
    return number_of((find_property(properties, b"TRAN_PREPARED_QUEUE_OFFSET") or b"").decode(errors="replace"), -1)


def number_of(text: str | None, default: int) -> int:
    """Returns the number in a property; `default` if the property is missing or not a number."""
    return int(text) if text and text.isdecimal() and len(text) < 20 else default


def half_of(store: MessageStore, record: Record) -> Record | None:
    """Returns the half message of a committed message; None for any other record.

    The field `prepared_transaction_offset` alone is not enough: it is 0 in most records, and a half message can be at
    offset 0. The commit flag alone is not enough either: if a consumer sends a committed message back for a retry, the
    flag stays set, and the field is 0.
    """
    if record.sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
        return None
    try:
        half = store.read_record(record.prepared_transaction_offset)
    except GantryError:
        return None
    is_its_own = (
        half.topic == _HALF_TOPIC
        and half.body == record.body
        and find_property(half.properties, b"UNIQ_KEY") == find_property(record.properties, b"UNIQ_KEY")
    )
    return half if is_its_own else None
