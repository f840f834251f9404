"""Decides the next step for an open half message, by its age and the connected producers."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.transaction.half_batches import DROPPED_AFTER_MS
from gantrymq.broker.transaction.half_messages import destination, number_of
from gantrymq.protocol import properties as names
from gantrymq.protocol.half_ranges import GANTRY_HALF
from gantrymq.protocol.record import Record

_HOUR_MS = 3_600_000
#: Time for which a half message of a batch may block later ones before it is copied to the end of the queue, in ms.
PATIENCE_MS = 60_000

#: Called with (producer group, topic). Returns True if a producer of the group can receive a check.
CanCheck = Callable[[str, str], bool]


class NextStep(Enum):
    """The next step for the half message at the head of the queue."""

    #: Leave it in place. All half messages behind it are too young as well.
    YOUNG = auto()
    #: It cannot be checked yet, but must not block the half messages behind it.
    WAITS = auto()
    #: Send a check to a producer.
    CHECK = auto()
    #: It is too old, or was checked too often.
    GIVE_UP = auto()
    #: It is a copy of a half message that has ended.
    ENDED = auto()
    #: It belongs to a batch that was not ended in time: roll it back.
    DROP = auto()


def is_given_up(record: Record, fields: dict[str, str], now_ms: int, config: BrokerConfig) -> bool:
    """Returns True if a half message is too old, or was checked `transactionCheckMax` times."""
    longest_ms = min(config.transaction_timeout_max, config.store.file_reserved_time * _HOUR_MS)
    times = number_of(fields.get(names.TRANSACTION_CHECK_TIMES), 0)
    return times >= config.transaction_check_max or now_ms - born_ms(record) > longest_ms


def next_step(
    record: Record, fields: dict[str, str], now_ms: int, can_check: CanCheck, config: BrokerConfig
) -> NextStep:
    """Returns YOUNG, WAITS, CHECK or DROP. The caller has excluded GIVE_UP and ENDED."""
    age_ms = now_ms - born_ms(record)
    if GANTRY_HALF in fields:
        return _next_of_batch(record, fields, now_ms, config)
    if names.CHECK_IMMUNITY_TIME_IN_SECONDS in fields:
        if age_ms <= _time_ms(fields, config):
            return NextStep.WAITS
    elif age_ms <= config.transaction_time_out:
        return NextStep.YOUNG
    target = destination(fields)
    # Without a valid target, no check can be sent. The attempt still counts, so that the broker gives up the message in
    # the end.
    is_checked = target is None or can_check(fields.get(names.PRODUCER_GROUP, ""), target[0])
    return NextStep.CHECK if is_checked else NextStep.WAITS


def _next_of_batch(record: Record, fields: dict[str, str], now_ms: int, config: BrokerConfig) -> NextStep:
    """Returns the next step for a half message of a batch.

    A batch may have millions of half messages. The time until the next copy therefore doubles with each copy.
    """
    born = born_ms(record)
    if now_ms - born > _time_ms(fields, config) + DROPPED_AFTER_MS:
        return NextStep.DROP
    is_young = now_ms - record.store_timestamp <= max(PATIENCE_MS, record.store_timestamp - born)
    return NextStep.YOUNG if is_young else NextStep.WAITS


def _time_ms(fields: dict[str, str], config: BrokerConfig) -> int:
    """Returns the time within which the producer must end a half message, in ms."""
    seconds = number_of(fields.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS), -1)
    return seconds * 1000 if seconds >= 0 else config.transaction_time_out


def born_ms(record: Record) -> int:
    """Returns a half message's creation time, in ms; the store time if the producer's clock is ahead."""
    return min(record.born_timestamp, record.store_timestamp)
