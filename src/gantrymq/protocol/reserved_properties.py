"""The message properties that RocketMQ itself sets. If rows that were read are written again, they are omitted.

These properties describe the message that was read, and brokers act on them. With TRAN_MSG, a new message would become
a half message that is never committed. With DELAY, it would be delayed. With INNER_MULTI_DISPATCH, it would also go to
other queues. The option keepProperties lists properties that a write keeps. KEYS, TAGS and the sharding key belong to
the user, and are always kept.

Source: MessageConst (STRING_HASH_SET and other properties that brokers read).
"""

from __future__ import annotations

from gantrymq.protocol import properties as names
from gantrymq.protocol.row_ids import GANTRY_SEQ

#: The names that keepProperties accepts. These properties have the same meaning on the new message.
KEEPABLE = (
    names.DELAY_TIME_LEVEL,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    names.TIMER_DELIVER_MS,
    names.PRIORITY,
    names.UNIQUE_KEY,
    names.WAIT_STORE_MSG_OK,
    names.ORIGIN_MESSAGE_ID,
    names.MAX_RECONSUME_TIMES,
    names.CORRELATION_ID,
    names.INSTANCE_ID,
    names.MESSAGE_TYPE,
    "BUYER_ID",
    "DLQ_ORIGIN_TOPIC",
    "DLQ_ORIGIN_MESSAGE_ID",
)
_RESERVED = frozenset(
    {
        *KEEPABLE,
        names.RETRY_TOPIC,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.TRANSACTION_PREPARED,
        names.TRANSACTION_ID,
        names.TRANSACTION_CHECK_TIMES,
        names.TRANSACTION_PREPARED_QUEUE_OFFSET,
        names.CHECK_IMMUNITY_TIME_IN_SECONDS,
        names.PRODUCER_GROUP,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.RECONSUME_TIME,
        names.MSG_REGION,
        names.TRACE_SWITCH,
        names.CONSUME_START_TIMESTAMP,
        names.CLUSTER,
        names.POP_CK,
        names.FIRST_POP_TIME,
        names.ORIGIN_GROUP,
        names.MESSAGE_REPLY_TO_CLIENT,
        names.MESSAGE_TTL,
        names.PUSH_REPLY_TIME,
        names.REPLY_ARRIVE_TIME,
        names.TIMER_OUT_MS,
        names.TIMER_ENQUEUE_MS,
        names.TIMER_DEQUEUE_MS,
        names.TIMER_ROLL_TIMES,
        names.TIMER_DEL_UNIQKEY,
        names.BORN_TIMESTAMP,
        names.CRC32,
        names.MIRROR_ORIGIN,
        names.MIRROR_PATH,
        GANTRY_SEQ,
        "TIMER_DELAY_LEVEL",
        "POP_CK_OFFSET",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "PROPERTY_FORWARD_QUEUE_ID",
        "REDIRECT",
        "TRACE_CONTEXT",
        "__BORNHOST",
    }
)
#: The prefix of properties that brokers send to each other.
_TRANSIENT_PREFIX = "__RMQ.TRANSIENT."


def is_reserved(name: str) -> bool:
    """Whether RocketMQ itself sets this property."""
    return name in _RESERVED or name.startswith(_TRANSIENT_PREFIX)
