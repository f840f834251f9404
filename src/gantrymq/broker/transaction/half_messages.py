"""Half messages: what a transactional send is stored as until its producer says how the transaction ended.

They stand in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC; their properties say where they are to go
(`TransactionalMessageBridge`, `TransactionalMessageUtil`).
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

#: The consumer group under which it is kept how far half messages and op messages are dealt with
#: (`MixAll.CID_SYS_RMQ_TRANS`).
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
#: Left free in a half message's properties for those that questions about it add.
HALF_ROOM = 128

_HALF_TOPIC = TRANSACTION_HALF_TOPIC.encode()


def half_queue(store: MessageStore) -> ConsumeQueue:
    """Where half messages wait."""
    return store.queue(TRANSACTION_HALF_TOPIC, 0)


def half_properties(properties: bytes, queue: ConsumeQueue) -> bytes:
    """The properties of a half message for `queue`. Raises RequestRefused when they become too long."""
    fields = decode_properties(properties)
    # A message of another transaction that is sent again with its properties has these.
    fields.pop(names.TRANSACTION_PREPARED_QUEUE_OFFSET, None)
    fields.pop(names.TRANSACTION_CHECK_TIMES, None)
    if names.UNIQUE_KEY in fields:
        fields[names.TRANSACTION_ID] = fields[names.UNIQUE_KEY]
    fields[names.REAL_TOPIC] = queue.topic
    fields[names.REAL_QUEUE_ID] = str(queue.queue_id)
    encoded = encode_properties(fields)
    if len(encoded) > MAX_PROPERTIES_LENGTH - HALF_ROOM:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal: a transactional message's properties may have "
            f"{MAX_PROPERTIES_LENGTH - HALF_ROOM} bytes together with the broker's own, they have {len(encoded)}",
        )
    return encoded


def destination(fields: dict[str, str]) -> tuple[str, int] | None:
    """(topic, queue id) that a half message is meant for; None: its properties don't say, or it mustn't go there."""
    topic, queue_id = fields.get(names.REAL_TOPIC), fields.get(names.REAL_QUEUE_ID, "")
    is_queue_id = queue_id.isdecimal() and len(queue_id) < 10
    return (topic, int(queue_id)) if topic and is_queue_id and may_be_sent_to(topic) else None


def first_half_offset(fields: dict[str, str]) -> int:
    """The first queue offset of a half message that was stored again; -1 if it is no copy."""
    return number_of(fields.get(names.TRANSACTION_PREPARED_QUEUE_OFFSET), -1)


def first_half_offset_of(properties: bytes) -> int:
    """As `first_half_offset`, without decoding all properties."""
    return number_of((find_property(properties, b"TRAN_PREPARED_QUEUE_OFFSET") or b"").decode(errors="replace"), -1)


def number_of(text: str | None, default: int) -> int:
    """The number in a property; `default` if it is missing or no number."""
    return int(text) if text and text.isdecimal() and len(text) < 20 else default


def half_of(store: MessageStore, record: Record) -> Record | None:
    """The half message of a committed message; None for any other record.

    The field for the prepared transaction is not enough: it is 0 in most records, and the log's first half message may
    be there. The commit flag is not enough either: a committed message that a consumer returns keeps it, with 0 in the
    field.
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
