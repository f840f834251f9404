"""Delay levels, and what a queue unit's tags code is (`CommitLog.checkMessageAndReturnSize`)."""

from __future__ import annotations

from collections.abc import Sequence

from gantrymq.errors import ConfigError
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.properties import DELAY_TIME_LEVEL, TAGS, find_property
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_DELAY = DELAY_TIME_LEVEL.encode()
_TAGS = TAGS.encode()


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
    tags = find_property(record.properties, _TAGS)
    return string_hash_code(tags.decode(errors="replace")) if tags else 0
