"""Queue offsets as plain values: their JSON, limits for micro-batches, and ranges for partitions.

A range excludes its end: [start, end). Each queue has its own offsets, even if queues of two brokers have the same id.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from gantrymq.errors import ConfigError
from gantrymq.protocol.message import MessageQueue

#: {queue: offset}.
Offsets = dict[MessageQueue, int]

#: The numbers that mean "latest" and "earliest" in JSON offsets, as in Spark's Kafka connector.
LATEST_NUMBER = -1
EARLIEST_NUMBER = -2
_NUMBERS = {"latest": LATEST_NUMBER, "earliest": EARLIEST_NUMBER}
#: Brokers store offsets and times in 64 bits.
LARGEST_NUMBER = 2**63 - 1


@dataclass(slots=True, frozen=True)
class Boundary:
    """The start or the end of a read, by offsets or by times in ms.

    Queues without an entry in `by_queue`, `by_topic` or `times` get `number`, which is an offset, LATEST_NUMBER or
    EARLIEST_NUMBER. A key of `times` is a queue or a topic.
    """

    number: int = EARLIEST_NUMBER
    by_queue: Offsets = field(default_factory=dict)
    #: {topic: LATEST_NUMBER or EARLIEST_NUMBER}.
    by_topic: dict[str, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    times: dict[MessageQueue | str, int] = field(default_factory=dict)

    def number_of(self, queue: MessageQueue) -> int:
        """The offset of the queue, or LATEST_NUMBER or EARLIEST_NUMBER."""
        named = self.named_number_of(queue)
        return self.number if named is None else named

    def named_number_of(self, queue: MessageQueue) -> int | None:
        """`number_of` for a queue with an entry of its own or of its topic; None for other queues."""
        return self.by_queue.get(queue, self.by_topic.get(queue.topic))

    def time_of(self, queue: MessageQueue) -> int | None:
        """The time in ms that determines the offset of the queue; None if there is none."""
        return self.times.get(queue, self.times.get(queue.topic, self.timestamp_ms))

    @property
    def naming_option(self) -> str:
        """The name of the option for queues and topics, without the prefix `starting` or `ending`."""
        return "OffsetsByTimestamp" if self.times else "Offsets"

    def named(self) -> set[MessageQueue]:
        """The queues that have an entry."""
        return {*self.by_queue, *(name for name in self.times if not isinstance(name, str))}

    def named_topics(self) -> set[str]:
        """The topics that have one entry for all queues."""
        return {*self.by_topic, *(name for name in self.times if isinstance(name, str))}


class FirstMessage(NamedTuple):
    """The oldest message of a queue. Distinguishes the queue from a later queue of the same name."""

    offset: int
    store_time_ms: int

    def is_of_another_queue(self, later: FirstMessage) -> bool:
        """Whether the message `later` is from another queue than this message.

        Within one queue, a message with a later store time has a higher offset, even if retention has removed more
        messages on one replica than on another.
        """
        return later.offset <= self.offset and later.store_time_ms > self.store_time_ms


EARLIEST = Boundary(EARLIEST_NUMBER)
LATEST = Boundary(LATEST_NUMBER)


class OffsetRange(NamedTuple):
    """The offsets of a queue from `start` to `end` (excluded)."""

    queue: MessageQueue
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.queue.topic} {queue_key(self.queue)} offsets {self.start} to {self.end}"


def queue_key(queue: MessageQueue) -> str:
    """The name of a queue within its topic, such as `broker-a:0`."""
    return f"{queue.broker_name}:{queue.queue_id}"


def to_json(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, int]]:
    """Returns {topic: {"broker:queueId": offset}}, sorted, the form in a checkpoint."""
    by_topic: dict[str, dict[str, int]] = {}
    for queue in sorted(offsets):
        by_topic.setdefault(queue.topic, {})[queue_key(queue)] = offsets[queue]
    return by_topic


def from_json(value: Any, least: int = EARLIEST_NUMBER) -> Offsets:
    """The inverse of `to_json`. Raises ConfigError for a wrong structure, and for offsets below `least`."""
    offsets: Offsets = {}
    if not isinstance(value, dict):
        raise ConfigError(f'offsets must be {{"topic": {{"broker:queueId": offset}}}}, not {value!r}')
    for topic, queues in value.items():
        if not isinstance(queues, dict):
            raise ConfigError(f'offsets of topic {topic}: {{"broker:queueId": offset}} was expected, not {queues!r}')
        for key, offset in queues.items():
            offsets[parse_queue(topic, key)] = _number(f"offsets of topic {topic}: {key}", offset, least)
    return offsets


def parse_queue(topic: str, key: Any) -> MessageQueue:
    """The inverse of `queue_key`. Raises ConfigError for text that is not BROKER:QUEUEID."""
    broker_name, _, queue_id = key.rpartition(":") if isinstance(key, str) else ("", "", "")
    # Only one form is valid, because `broker-a:00` would be the same queue as `broker-a:0`.
    if not broker_name or not queue_id.isdecimal() or queue_id != str(int(queue_id)):
        raise ConfigError(f"topic {topic}: {key!r} is not BROKER:QUEUEID")
    return MessageQueue(topic, broker_name, int(queue_id))


def _number(what: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{what} has {value!r}, not a whole number of at least {least}")
    if value > LARGEST_NUMBER:
        raise ConfigError(f"{what} has {value}, more than {LARGEST_NUMBER}")
    return value


def load_json(text: str) -> Any:
    """Parses JSON. Raises ValueError for invalid JSON, and ConfigError for a duplicate name or for deep nesting.

    Without this check, all but one value of a duplicate name would silently be ignored.
    """
    try:
        return json.loads(text, object_pairs_hook=_once_each)
    except RecursionError:
        raise ConfigError("the brackets are nested too deeply") from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ConfigError(f"{twice!r} is there twice")
    return found


def parse_boundary(option: str, text: str) -> Boundary:
    """Parses the value of startingOffsets or endingOffsets. Raises ConfigError, which names the option."""
    match text.lower():
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
    try:
        value = load_json(text)
        by_topic = {}
        if isinstance(value, dict):
            words = {topic: word.lower() for topic, word in value.items() if isinstance(word, str)}
            by_topic = {topic: _NUMBERS[word] for topic, word in words.items() if word in _NUMBERS}
            value = {topic: queues for topic, queues in value.items() if topic not in by_topic}
        by_queue = from_json(value)
        if not (by_topic or by_queue):
            raise ConfigError("it names no queue and no topic")
    except (ValueError, ConfigError) as e:
        raise ConfigError(f"option {option} is neither earliest nor latest nor JSON of offsets: {e}") from e
    return Boundary(_whole(option), by_queue, by_topic)


def parse_times(option: str, text: str) -> Boundary:
    """Parses startingOffsetsByTimestamp or endingOffsetsByTimestamp: {topic: ms} or {topic: {queue: ms}}.

    Raises ConfigError, which names the option.
    """
    times: dict[MessageQueue | str, int] = {}
    try:
        by_topic = load_json(text)
        if not isinstance(by_topic, dict):
            raise ConfigError(
                f'{{"topic": ms}} or {{"topic": {{"broker:queueId": ms}}}} was expected, not {by_topic!r}'
            )
        for topic, of_topic in by_topic.items():
            if isinstance(of_topic, dict):
                for key, time in of_topic.items():
                    times[parse_queue(topic, key)] = _number(f"topic {topic}: {key}", time, 0)
            else:
                times[topic] = _number(f"topic {topic}", of_topic, 0)
    except (ValueError, ConfigError) as e:
        raise ConfigError(f"option {option} is no JSON of times: {e}") from e
    return Boundary(_whole(option), times=times)


def _whole(option: str) -> int:
    """The number that stands for queues without an entry. These are then read completely."""
    return EARLIEST_NUMBER if option.startswith("starting") else LATEST_NUMBER


def parse_queues(option: str, text: str) -> list[MessageQueue]:
    """Parses the value of assign, {topic: ["broker:queueId", ...]}. Raises ConfigError, which names the option."""
    try:
        by_topic = load_json(text)
        if not isinstance(by_topic, dict) or not all(isinstance(keys, list) for keys in by_topic.values()):
            raise ConfigError(f'{{"topic": ["broker:queueId", ...]}} was expected, not {by_topic!r}')
        return [parse_queue(topic, key) for topic, keys in by_topic.items() for key in keys]
    except (ValueError, ConfigError) as e:
        raise ConfigError(f"option {option}: {e}") from e


def in_turn(queues: Iterable[MessageQueue], after: MessageQueue | None) -> list[MessageQueue]:
    """The queues in cyclic order, beginning after the queue `after` and ending with it."""
    return sorted(queues, key=lambda queue: (after is not None and queue <= after, queue))


def limit_rows(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    max_rows: int,
    after: MessageQueue | None = None,
) -> Offsets:
    """Returns ends that are reduced so that the ranges from `start` have at most `max_rows` offsets in total.

    Each queue with offsets gets one row, and a share of the rest in proportion to its offsets. If there are more queues
    than rows, the next queues in cyclic order after `after` get one row each. The caller passes the last of these
    queues to the next call (`last_in_turn`), so that every queue is served. Every queue of `end` must be in `start`.
    """
    waiting = {queue: end[queue] - start[queue] for queue in end if end[queue] > start[queue]}
    total = sum(waiting.values())
    if total <= max_rows:
        return dict(end)
    if max_rows <= len(waiting):
        shares = dict.fromkeys(in_turn(waiting, after)[:max_rows], 1)
    else:
        rest, of_all = max_rows - len(waiting), total - len(waiting)
        shares = {queue: 1 + (count - 1) * rest // of_all for queue, count in waiting.items()}
        # The rows that are left go to the queues with the largest rounding losses.
        rounded = sorted(waiting, key=lambda queue: (-((waiting[queue] - 1) * rest % of_all), queue))
        for queue in rounded[: max_rows - sum(shares.values())]:
            shares[queue] += 1
    return {queue: start[queue] + shares.get(queue, 0) for queue in end}


def last_in_turn(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    limited: Mapping[MessageQueue, int],
    after: MessageQueue | None,
) -> MessageQueue | None:
    """Returns the argument `after` for the next `limit_rows`; None if every queue with offsets got rows."""
    served = [queue for queue, offset in limited.items() if offset > start[queue]]
    if len(served) == sum(offset > start[queue] for queue, offset in end.items()):
        return None
    return in_turn(served, after)[-1]


def plan_ranges(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], min_partitions: int = 1
) -> list[OffsetRange]:
    """Returns a range for each queue with offsets. Splits large ranges if there are fewer than `min_partitions`.

    The result can have a few more ranges than `min_partitions`. Every queue of `end` must be in `start`.
    """
    ranges = [OffsetRange(queue, start[queue], end[queue]) for queue in sorted(end) if end[queue] > start[queue]]
    if len(ranges) >= min_partitions:
        return ranges
    total = sum(r.end - r.start for r in ranges)
    return [part for r in ranges for part in split(r, -(-min_partitions * (r.end - r.start) // total))]


def bundle(ranges: Iterable[OffsetRange], max_rows: int) -> list[list[OffsetRange]]:
    """Groups successive ranges into bundles of at most `max_rows` offsets. A larger range is a bundle of its own.

    Each task has a fixed cost of some milliseconds, and the queues of a stream often have a few messages each.
    """
    bundles: list[list[OffsetRange]] = []
    left = 0
    for part in ranges:
        size = part.end - part.start
        if size > left:
            bundles.append([])
            left = max_rows
        bundles[-1].append(part)
        left -= size
    return bundles


def split(whole: OffsetRange, parts: int) -> Iterable[OffsetRange]:
    """Splits a range into `parts` parts, or into fewer if it has fewer offsets."""
    size = whole.end - whole.start
    parts = min(parts, size)
    bounds = [whole.start + size * i // parts for i in range(parts + 1)]
    return [OffsetRange(whole.queue, a, b) for a, b in pairwise(bounds)]
