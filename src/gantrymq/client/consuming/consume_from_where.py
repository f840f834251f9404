"""Where a group begins that has no offset of a queue yet.

Java's `ConsumeFromWhere`, and CONSUME_FROM_END. A broker of 5.5 has a new group begin at 0, whatever it asks for, while
the queue's first message is still there and in memory (`ConsumerManageProcessor.queryConsumerOffset`); asked with
setZeroIfNotFound=false it says that the group has no offset, and the consumer decides.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from gantrymq.errors import ClientError
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_LAST_OFFSET, CONSUME_FROM_TIMESTAMP

#: The end of the queue, as the consumer finds it, whatever the broker would say of a new group.
CONSUME_FROM_END: Final = "CONSUME_FROM_END"

ConsumeFromWhere = Literal[
    "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP", "CONSUME_FROM_END"
]


def checked_from_where(consume_from_where: str) -> None:
    """Raises ClientError for what is none."""
    if consume_from_where not in get_args(ConsumeFromWhere):
        raise ClientError(
            f"consume_from_where {consume_from_where!r}: {', '.join(get_args(ConsumeFromWhere))} are possible"
        )


def told_to_brokers(consume_from_where: ConsumeFromWhere) -> str:
    """What heartbeats say: brokers know Java's values only."""
    return CONSUME_FROM_LAST_OFFSET if consume_from_where == CONSUME_FROM_END else consume_from_where


def decides_itself(consume_from_where: ConsumeFromWhere) -> bool:
    """The consumer, and not the broker, says where a new group begins."""
    return consume_from_where in (CONSUME_FROM_END, CONSUME_FROM_TIMESTAMP)
