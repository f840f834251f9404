"""Half messages: what a transactional send is stored as until its producer says how the transaction ended.

They stand in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC; their properties say where they are to go
(`TransactionalMessageBridge`, `TransactionalMessageUtil`).
"""

from __future__ import annotations

from gantrymq.errors import RequestRefused
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH, decode_properties, encode_properties
from gantrymq.protocol.topic_name import TRANSACTION_HALF_TOPIC, may_be_sent_to
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore

#: The consumer group under which it is kept how far half messages and op messages are dealt with
#: (`MixAll.CID_SYS_RMQ_TRANS`).
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
#: Left free in a half message's properties for those that questions about it add.
HALF_ROOM = 128


def half_queue(store: MessageStore) -> ConsumeQueue:
    """Where half messages wait."""
    return store.queue(TRANSACTION_HALF_TOPIC, 0)


def half_properties(properties: bytes, queue: ConsumeQueue) -> bytes:
    """The properties of a half message for `queue`. Raises RequestRefused when they become too long."""
    fields = decode_properties(properties)
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
