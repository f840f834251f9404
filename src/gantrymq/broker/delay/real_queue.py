"""The real queue of a delayed message, from its properties REAL_TOPIC and REAL_QID."""

from __future__ import annotations

from gantrymq.errors import IllegalMessage, StoreError
from gantrymq.protocol.properties import REAL_QUEUE_ID, REAL_TOPIC
from gantrymq.protocol.topic_name import may_be_delivered_to
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore

_MOST_DIGITS = 10


def real_queue(store: MessageStore, fields: dict[str, str]) -> ConsumeQueue:
    """Returns the queue in which a delayed message is delivered.

    Raises IllegalMessage if the properties name no queue, or a queue in which clients must not store messages.
    """
    topic, queue_id = fields.get(REAL_TOPIC, ""), fields.get(REAL_QUEUE_ID, "")
    is_number = queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= _MOST_DIGITS
    if is_number and may_be_delivered_to(topic):
        try:
            return store.queue(topic, int(queue_id))
        except StoreError as e:
            raise IllegalMessage(str(e)) from e
    raise IllegalMessage(f"REAL_TOPIC is {topic[:300]!r}, REAL_QID {queue_id[:30]!r}")
