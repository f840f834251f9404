"""The start position of a group that has no offset of a queue (`ConsumeFromWhere`, and CONSUME_FROM_END).

If the first message of a queue is still in memory, a broker of version 5.5 starts a new group at offset 0. If the
request has setZeroIfNotFound=false, the broker responds that the group has no offset, and the consumer decides.
Source: `ConsumerManageProcessor.queryConsumerOffset`.
"""

from __future__ import annotations

from typing import Final, Literal

from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_LAST_OFFSET, CONSUME_FROM_TIMESTAMP

#: The end of the queue, which the consumer queries. The broker's default for a new group is not used.
CONSUME_FROM_END: Final = "CONSUME_FROM_END"

ConsumeFromWhere = Literal[
    "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP", "CONSUME_FROM_END"
]


def name_for_brokers(consume_from_where: ConsumeFromWhere) -> str:
    """Returns the value for heartbeats, which have Java's values only."""
    return CONSUME_FROM_LAST_OFFSET if consume_from_where == CONSUME_FROM_END else consume_from_where


def decides_itself(consume_from_where: ConsumeFromWhere) -> bool:
    """Returns whether the consumer, not the broker, decides where a new group starts."""
    return consume_from_where in (CONSUME_FROM_END, CONSUME_FROM_TIMESTAMP)
