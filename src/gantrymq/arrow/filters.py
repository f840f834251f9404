"""`PushedFilters`: the conditions of a query that exclude queues, offsets, times and tags from a read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from gantrymq.arrow.columns import READ_COLUMNS
from gantrymq.arrow.options import ReadOptions
from gantrymq.filter.sql import MAX_LENGTH
from gantrymq.protocol.bodies.heartbeat import SUBSCRIBE_ALL, SubscriptionData
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC

#: The type of a read's options: the options of this package, or of the Spark source.
R = TypeVar("R", bound=ReadOptions)

_QUEUE_COLUMNS: dict[str, Callable[[MessageQueue], Any]] = {
    "topic": lambda queue: queue.topic,
    "brokerName": lambda queue: queue.broker_name,
    "queueId": lambda queue: queue.queue_id,
}


class PushedFilters:
    """Collects the conditions of a query, which are combined with AND.

    A message can match if it was stored at `from_ms` or later, and before `before_ms` (both in ms since the epoch).
    """

    def __init__(self) -> None:
        self.from_ms: int | None = None
        self.before_ms: int | None = None
        #: The tags that can match, by which brokers filter; None for all.
        self.tags: set[str] | None = None
        self._wanted: dict[str, set[Any]] = {}
        self._first_offset = 0
        self._end_offset: int | None = None

    def push(self, column: str, operator: str, value: Any = None) -> bool:
        """Adds the condition `column operator value`. Returns False if the caller must also check each row.

        Operators are `=`, `in`, `>`, `>=`, `<`, `<=` and `is not null`. Other conditions have no effect.
        """
        match column, operator, value:
            case _, "is not null", _:
                return column in READ_COLUMNS and READ_COLUMNS[column].is_never_null
            case _, "=", _ if column in _QUEUE_COLUMNS and value is not None:
                self._keep_only(column, {value})
            case _, "in", _ if column in _QUEUE_COLUMNS and None not in value:
                self._keep_only(column, set(value))
            case "tags", "=", str() if is_one_tag(value):
                self._keep_tags({value})
                return False
            case "tags", "in", _ if all(isinstance(tag, str) and is_one_tag(tag) for tag in value):
                self._keep_tags(set(value))
                return False
            case "queueOffset", _, int():
                return self._push_offset(operator, value)
            case "storeTimestamp", ">" | ">=", datetime():
                self.from_ms = max(milliseconds(value), self.from_ms or 0)
                return False
            case "storeTimestamp", "<" | "<=", datetime():
                before = milliseconds(value) + 1
                self.before_ms = before if self.before_ms is None else min(before, self.before_ms)
                return False
            case _:
                return False
        return True

    def _push_offset(self, operator: str, offset: int) -> bool:
        match operator:
            case "=":
                self._offsets(offset, offset + 1)
            case ">":
                self._offsets(offset + 1, None)
            case ">=":
                self._offsets(offset, None)
            case "<":
                self._offsets(0, offset)
            case "<=":
                self._offsets(0, offset + 1)
            case _:
                return False
        return True

    def keep(self, queue: MessageQueue) -> bool:
        """Whether the queue can have messages that match."""
        return all(_QUEUE_COLUMNS[name](queue) in wanted for name, wanted in self._wanted.items())

    def clip(self, start: int, end: int) -> tuple[int, int]:
        """The part of [start, end) that can match. A result whose end is not after its start is empty."""
        return max(start, self._first_offset), end if self._end_offset is None else min(end, self._end_offset)

    def _keep_only(self, name: str, values: set[Any]) -> None:
        self._wanted[name] = self._wanted[name] & values if name in self._wanted else values

    def _keep_tags(self, tags: set[str]) -> None:
        self.tags = tags if self.tags is None else self.tags & tags

    def _offsets(self, first: int, end: int | None) -> None:
        self._first_offset = max(self._first_offset, first)
        if end is not None:
            self._end_offset = end if self._end_offset is None else min(end, self._end_offset)


def is_one_tag(tag: str) -> bool:
    """Whether `tag`, used as a subscription, selects only this tag: it is no wildcard and no list."""
    return tag == tag.strip() and tag not in ("", SUBSCRIBE_ALL) and "||" not in tag


def with_tags(options: R, tags: set[str] | None) -> R:
    """Adds the tags of the query's conditions to `options`, if the rows stay the same with the broker's filter."""
    if options.tags is not None and tags is not None:
        tags = tags & set(SubscriptionData.parse("", options.tags).tags_set)
    # A broker filters by one expression, and no expression can mean "no tag". The caller checks each row anyway. In the
    # topic of delayed messages, brokers store delivery times in place of the tag codes that a filter compares.
    if not tags or options.sql92 is not None or SCHEDULE_TOPIC in options.topics:
        return options
    expression = " || ".join(sorted(tags))
    # Brokers reject a longer expression.
    return replace(options, tags=expression) if len(expression) <= MAX_LENGTH else options


def milliseconds(time: datetime) -> int:
    """Converts a time to ms since the epoch, rounded down. Times without a zone are in UTC."""
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
