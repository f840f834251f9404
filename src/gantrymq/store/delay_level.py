"""Delay levels, and the tags codes of queue units (`CommitLog.checkMessageAndReturnSize`)."""

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
#: A smaller tags code is an address in consumequeue_ext: the smallest long plus a position
#: (`ConsumeQueueExt.decorate`).
_LEAST_CODE = -(1 << 62)
_ANOTHER_LOOK_MS = 10_000
#: A Java int has at most this many digits. Valid levels are much smaller.
_MOST_DIGITS = 10


def parse_delay_levels(levels: str) -> list[int]:
    """Parses `messageDelayLevel`, such as `1s 5s 1m`: the delays of levels 1, 2, ... in ms. Raises ConfigError."""
    delays_ms = []
    for level in levels.split():
        number, unit = level[:-1], level[-1]
        if unit not in _UNIT_MS or not number.isascii() or not number.isdigit():
            raise ConfigError(f"messageDelayLevel={levels[:200]}: {level!r} is no number followed by s, m, h or d")
        delays_ms.append(int(number) * _UNIT_MS[unit])
    return delays_ms


def tags_code_of(record: Record, delays_ms: Sequence[int]) -> int:
    """Returns the tags code of a record's unit: the hash of TAGS or, for a delayed message, the delivery time."""
    if record.topic == _SCHEDULE_TOPIC:
        level = find_property(record.properties, _DELAY)
        if level is not None and level.isdigit() and int(level) > 0 and delays_ms:
            return record.store_timestamp + delays_ms[min(int(level), len(delays_ms)) - 1]
    return tags_code(find_property(record.properties, _TAGS) or b"")


def may_have_code(record: Record, code: int, expected: int) -> bool:
    """Returns whether a unit may have this tags code although `tags_code_of` returns `expected`.

    A Java unit may contain the address of an entry in consumequeue_ext. For a delayed message, Java computes the
    delivery time from a second clock reading, not from the store timestamp.
    """
    if record.topic == _SCHEDULE_TOPIC:
        return abs(code - expected) < _ANOTHER_LOOK_MS
    return code == expected or code < _LEAST_CODE


def delay_level(properties: bytes) -> int:
    """Returns the delay level that a message requests; 0 for none.

    A level above the last one means the last one. Java rejects a level that is not a number; here it means no delay.
    """
    level = find_property(properties, _DELAY) or b""
    return int(level[:_MOST_DIGITS]) if level.isdigit() else 0
