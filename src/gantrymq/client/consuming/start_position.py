"""The option `start_from`: the start position of a group without a committed offset (`ConsumeFromWhere`).

If the first message of a queue is still in memory, a broker of version 5.5 starts a new group at offset 0. If the
request has setZeroIfNotFound=false, the broker responds that the group has no offset, and the consumer decides.
Source: `ConsumerManageProcessor.queryConsumerOffset`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from gantrymq.errors import ClientError
from gantrymq.protocol.bodies.heartbeat import (
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_TIMESTAMP,
)
from gantrymq.times import timestamp_ms

EARLIEST: Final = "earliest"
#: The consumer queries the end of the queue, and does not use the broker's default for a new group.
LATEST: Final = "latest"

StartFrom = Literal["earliest", "latest", "CONSUME_FROM_LAST_OFFSET"] | datetime


def check_start(start_from: object) -> None:
    """Raises ClientError for an invalid `start_from`."""
    if isinstance(start_from, datetime):
        timestamp_ms("start_from", start_from)
    elif start_from not in (EARLIEST, LATEST, CONSUME_FROM_LAST_OFFSET):
        raise ClientError(
            f"start_from={start_from!r}: must be 'earliest', 'latest', a datetime or CONSUME_FROM_LAST_OFFSET"
        )


def name_for_brokers(start_from: StartFrom) -> str:
    """Returns the value for heartbeats, which have Java's values only."""
    if isinstance(start_from, datetime):
        return CONSUME_FROM_TIMESTAMP
    return CONSUME_FROM_FIRST_OFFSET if start_from == EARLIEST else CONSUME_FROM_LAST_OFFSET


def decides_itself(start_from: StartFrom) -> bool:
    """Returns whether the consumer, not the broker, decides where a new group starts."""
    return start_from == LATEST or isinstance(start_from, datetime)
