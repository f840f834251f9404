"""What is to be done about a half message that hasn't ended: a matter of its age, and of who can be asked."""

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
#: Half messages of batches keep those behind them waiting for so long, where others that wait are stored again.
PATIENCE_MS = 60_000

#: Whether somebody can be asked: (producer group, topic).
CanAsk = Callable[[str, str], bool]


class NextStep(Enum):
    """What is to be done about a half message that hasn't ended, as far as its own place in the queue says."""

    #: Nothing, nor about those behind it.
    YOUNG = auto()
    #: Nothing now; it must not keep those behind it waiting.
    WAITS = auto()
    ASK = auto()
    #: It has waited too long, or its producers were asked too often.
    GIVE_UP = auto()
    #: The message that it is a copy of has ended.
    ENDED = auto()
    #: It came in a batch, and wasn't ended in time: it is rolled back.
    DROP = auto()


def is_given_up(record: Record, fields: dict[str, str], now_ms: int, config: BrokerConfig) -> bool:
    """Whether it has waited too long, or its producers were asked too often."""
    longest_ms = min(config.transaction_timeout_max, config.store.file_reserved_time * _HOUR_MS)
    times = number_of(fields.get(names.TRANSACTION_CHECK_TIMES), 0)
    return times >= config.transaction_check_max or now_ms - born_ms(record) > longest_ms


def next_step(record: Record, fields: dict[str, str], now_ms: int, can_ask: CanAsk, config: BrokerConfig) -> NextStep:
    """For one that isn't given up, and isn't a copy of one that has ended."""
    age_ms = now_ms - born_ms(record)
    if GANTRY_HALF in fields:
        return _next_of_batch(record, fields, now_ms, config)
    if names.CHECK_IMMUNITY_TIME_IN_SECONDS in fields:
        if age_ms <= _time_ms(fields, config):
            return NextStep.WAITS
    elif age_ms <= config.transaction_time_out:
        return NextStep.YOUNG
    target = destination(fields)
    # Of one that goes nowhere nobody is asked; that counts, so that it is given up some day.
    is_asked = target is None or can_ask(fields.get(names.PRODUCER_GROUP, ""), target[0])
    return NextStep.ASK if is_asked else NextStep.WAITS


def _next_of_batch(record: Record, fields: dict[str, str], now_ms: int, config: BrokerConfig) -> NextStep:
    """There may be millions of them: they are stored again now and then only, each time after twice as long."""
    born = born_ms(record)
    if now_ms - born > _time_ms(fields, config) + DROPPED_AFTER_MS:
        return NextStep.DROP
    is_young = now_ms - record.store_timestamp <= max(PATIENCE_MS, record.store_timestamp - born)
    return NextStep.YOUNG if is_young else NextStep.WAITS


def _time_ms(fields: dict[str, str], config: BrokerConfig) -> int:
    """So long a producer has time to end it."""
    seconds = number_of(fields.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS), -1)
    return seconds * 1000 if seconds >= 0 else config.transaction_time_out


def born_ms(record: Record) -> int:
    """When a half message was made, ms: by its producer's clock, if that isn't ahead of ours."""
    return min(record.born_timestamp, record.store_timestamp)
