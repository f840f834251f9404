"""Delay levels, and what a queue unit's tags code is (`CommitLog.checkMessageAndReturnSize`)."""

from __future__ import annotations

from collections.abc import Sequence

from gantrymq.errors import ConfigError
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.properties import DELAY_TIME_LEVEL, TAGS, find_property
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_DELAY = DELAY_TIME_LEVEL.encode()
_TAGS = TAGS.encode()
#: Less is an address in consumequeue_ext: the least long and a place in it (`ConsumeQueueExt.decorate`).
_LEAST_CODE = -(1 << 62)
_ANOTHER_LOOK_MS = 10_000
#: An int has no more digits in Java; a level is far below.
_MOST_DIGITS = 10


def parse_delay_levels(levels: str) -> list[int]:
    """Milliseconds of the levels 1, 2, ... from messageDelayLevel's text `1s 5s 1m`. Raises ConfigError."""
    delays_ms = []
    for level in levels.split():
        number, unit = level[:-1], level[-1]
        if unit not in _UNIT_MS or not number.isascii() or not number.isdigit():
            raise ConfigError(f"messageDelayLevel={levels[:200]}: {level!r} is no number followed by s, m, h or d")
        delays_ms.append(int(number) * _UNIT_MS[unit])
    return delays_ms


def tags_code_of(record: Record, delays_ms: Sequence[int]) -> int:
    """The tags code that a record's queue unit has: the hash of TAGS, or the delivery time of a delayed message."""
    if record.topic == _SCHEDULE_TOPIC:
        level = find_property(record.properties, _DELAY)
        if level is not None and level.isdigit() and int(level) > 0 and delays_ms:
            return record.store_timestamp + delays_ms[min(int(level), len(delays_ms)) - 1]
    return tags_code(find_property(record.properties, _TAGS) or b"")


def may_have_code(record: Record, code: int, expected: int) -> bool:
    """Whether a record's queue unit may have this tags code where `tags_code_of` gives the expected one.

    Java's may be the address of an entry in its consumequeue_ext; when a delayed message is due is reckoned from
    another look at the clock than when it is stored.
    """
    if record.topic == _SCHEDULE_TOPIC:
        return abs(code - expected) < _ANOTHER_LOOK_MS
    return code == expected or code < _LEAST_CODE


def delay_level(properties: bytes) -> int:
    """The level that a message asks for, 0 for none. Java refuses what is no number; here it is no delay.

    A level above the last one is the last one.
    """
    level = find_property(properties, _DELAY) or b""
    return int(level[:_MOST_DIGITS]) if level.isdigit() else 0
