"""The conditions of a query that say which queues and offsets need not be read at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gantrymq.protocol.bodies.heartbeat import SUBSCRIBE_ALL
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.columns import proper_name
from gantrymq.spark.versions import HAS_FILTERS

if TYPE_CHECKING or HAS_FILTERS:
    from pyspark.sql.datasource import (
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
    )

_QUEUE_COLUMNS: dict[str, Callable[[MessageQueue], Any]] = {
    "topic": lambda queue: queue.topic,
    "brokerName": lambda queue: queue.broker_name,
    "queueId": lambda queue: queue.queue_id,
}
_NEVER_NULL = frozenset({*_QUEUE_COLUMNS, "queueOffset", "storeTimestamp", "bornTimestamp", "msgId"})


class PushedFilters:
    """Conditions that all hold. Times are in ms: messages stored at `from_ms` or later and before `before_ms`."""

    def __init__(self) -> None:
        self.from_ms: int | None = None
        self.before_ms: int | None = None
        #: What the tag is one of; brokers look for it.
        self.tags: set[str] | None = None
        self._wanted: dict[str, set[Any]] = {}
        self._first_offset = 0
        self._end_offset: int | None = None

    def push(self, condition: Filter) -> bool:
        """True when the condition is taken care of here; else Spark must look at each row."""
        match _with_proper_name(condition):
            case IsNotNull((name,)):
                return name in _NEVER_NULL
            case EqualTo((name,), value) if name in _QUEUE_COLUMNS and value is not None:
                self._keep_only(name, {value})
                return True
            case In((name,), values) if name in _QUEUE_COLUMNS and None not in values:
                self._keep_only(name, set(values))
                return True
            case EqualTo(("tags",), str() as tag) if is_one_tag(tag):
                self._keep_tags({tag})
                return False
            case In(("tags",), values) if all(isinstance(tag, str) and is_one_tag(tag) for tag in values):
                self._keep_tags(set(values))
                return False
            case EqualTo(("queueOffset",), int() as offset):
                self._offsets(offset, offset + 1)
            case GreaterThan(("queueOffset",), int() as offset):
                self._offsets(offset + 1, None)
            case GreaterThanOrEqual(("queueOffset",), int() as offset):
                self._offsets(offset, None)
            case LessThan(("queueOffset",), int() as offset):
                self._offsets(0, offset)
            case LessThanOrEqual(("queueOffset",), int() as offset):
                self._offsets(0, offset + 1)
            case GreaterThan(("storeTimestamp",), datetime() as time) | GreaterThanOrEqual(
                ("storeTimestamp",), datetime() as time
            ):
                self.from_ms = max(_milliseconds(time), self.from_ms or 0)
                return False
            case LessThan(("storeTimestamp",), datetime() as time) | LessThanOrEqual(
                ("storeTimestamp",), datetime() as time
            ):
                before = _milliseconds(time) + 1
                self.before_ms = before if self.before_ms is None else min(before, self.before_ms)
                return False
            case _:
                return False
        return True

    def keep(self, queue: MessageQueue) -> bool:
        """Whether the queue can have such messages."""
        return all(_QUEUE_COLUMNS[name](queue) in wanted for name, wanted in self._wanted.items())

    def clip(self, start: int, end: int) -> tuple[int, int]:
        """The part of [start, end) that can have such messages; empty when its end isn't behind its start."""
        return max(start, self._first_offset), end if self._end_offset is None else min(end, self._end_offset)

    def _keep_only(self, name: str, values: set[Any]) -> None:
        self._wanted[name] = self._wanted[name] & values if name in self._wanted else values

    def _keep_tags(self, tags: set[str]) -> None:
        self.tags = tags if self.tags is None else self.tags & tags

    def _offsets(self, first: int, end: int | None) -> None:
        self._first_offset = max(self._first_offset, first)
        if end is not None:
            self._end_offset = end if self._end_offset is None else min(end, self._end_offset)


def _with_proper_name(condition: Filter) -> Filter:
    match getattr(condition, "attribute", None):
        case (str() as name,) if proper_name(name) != name:
            return replace(condition, attribute=(proper_name(name),))  # type: ignore[call-arg]
        case _:
            return condition


def is_one_tag(tag: str) -> bool:
    """Whether a subscription to `tag` is one to just that: it is no wildcard and no list."""
    return tag == tag.strip() and tag not in ("", SUBSCRIBE_ALL) and "||" not in tag


def _milliseconds(time: datetime) -> int:
    """Rounded down. Spark hands over times of the session's zone, or times without a zone, which are UTC."""
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
