"""Queue offsets as plain values: how they are written, and which offsets which partition of a batch reads.

An end is excluded: [start, end). Offsets of different queues, also of queues with the same id on two brokers, have
nothing to do with each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from gantrymq.errors import ConfigError
from gantrymq.protocol.message import MessageQueue

#: {queue: offset}.
Offsets = dict[MessageQueue, int]

#: What stands for "latest" and "earliest" in JSON offsets, as in Spark's Kafka connector.
LATEST_NUMBER = -1
EARLIEST_NUMBER = -2


@dataclass(slots=True, frozen=True)
class Boundary:
    """Where reading starts or ends: a number for all queues, one for some of them, or a time in ms.

    With `by_queue`, queues that it doesn't name get `number`.
    """

    number: int = EARLIEST_NUMBER
    by_queue: Offsets | None = None
    timestamp_ms: int | None = None

    def number_of(self, queue: MessageQueue) -> int:
        """The queue's offset, or one of the two stand-ins."""
        return self.number if self.by_queue is None else self.by_queue.get(queue, self.number)


EARLIEST = Boundary(EARLIEST_NUMBER)
LATEST = Boundary(LATEST_NUMBER)


class OffsetRange(NamedTuple):
    """A part of a queue."""

    queue: MessageQueue
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.queue.topic} {queue_key(self.queue)} offsets {self.start} to {self.end}"


def queue_key(queue: MessageQueue) -> str:
    """`broker-a:0`: a queue within its topic."""
    return f"{queue.broker_name}:{queue.queue_id}"


def to_json(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, int]]:
    """{topic: {"broker:queueId": offset}}, sorted: what a checkpoint keeps."""
    by_topic: dict[str, dict[str, int]] = {}
    for queue in sorted(offsets):
        by_topic.setdefault(queue.topic, {})[queue_key(queue)] = offsets[queue]
    return by_topic


def from_json(value: Any) -> Offsets:
    """The other way round. Raises ConfigError for anything of another shape."""
    offsets: Offsets = {}
    if not isinstance(value, dict):
        raise ConfigError(f'offsets must be {{"topic": {{"broker:queueId": offset}}}}, not {value!r}')
    for topic, queues in value.items():
        if not isinstance(queues, dict):
            raise ConfigError(f'offsets of topic {topic}: {{"broker:queueId": offset}} was expected, not {queues!r}')
        for key, offset in queues.items():
            broker_name, separator, queue_id = key.rpartition(":")
            if not separator or not broker_name or not queue_id.isdecimal():
                raise ConfigError(f"offsets of topic {topic}: {key!r} is not BROKER:QUEUEID")
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST_NUMBER:
                raise ConfigError(f"offsets of topic {topic}: {key} has {offset!r}, which is no offset")
            offsets[MessageQueue(topic, broker_name, int(queue_id))] = offset
    return offsets


def parse_boundary(option: str, text: str) -> Boundary:
    """The value of startingOffsets or endingOffsets. Raises ConfigError, which names the option."""
    match text.lower():
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
    try:
        by_queue = from_json(json.loads(text))
    except (ValueError, ConfigError) as e:
        raise ConfigError(f"option {option} is neither earliest nor latest nor JSON of offsets: {e}") from e
    # A queue that isn't named is read as a whole.
    return Boundary(EARLIEST_NUMBER if option == "startingOffsets" else LATEST_NUMBER, by_queue)


def limit_rows(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], max_rows: int) -> Offsets:
    """`end`, brought nearer to `start` so that about `max_rows` offsets lie between and never more.

    Each queue gets a share by what it has; one that has anything gets at least one while there is room. Every queue of
    `end` must be in `start`.
    """
    waiting = {queue: max(0, end[queue] - start[queue]) for queue in end}
    total = sum(waiting.values())
    if total <= max_rows:
        return dict(end)
    shares = {queue: count * max_rows // total for queue, count in waiting.items()}
    left = max_rows - sum(shares.values())
    # Those without a share come first, so that a queue with little isn't passed over for ever; then those that the
    # rounding took most from.
    for queue in sorted(waiting, key=lambda queue: (shares[queue] > 0, -(waiting[queue] * max_rows % total), queue)):
        if not left:
            break
        if shares[queue] < waiting[queue]:
            shares[queue] += 1
            left -= 1
    return {queue: start[queue] + shares[queue] for queue in end}


def plan_ranges(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], min_partitions: int = 1
) -> list[OffsetRange]:
    """The ranges that partitions read: one for each queue that has anything, large ones split until there are
    `min_partitions` or a few more, as far as there are offsets. Every queue of `end` must be in `start`."""
    ranges = [OffsetRange(queue, start[queue], end[queue]) for queue in sorted(end) if end[queue] > start[queue]]
    if len(ranges) >= min_partitions:
        return ranges
    total = sum(r.end - r.start for r in ranges)
    return [part for r in ranges for part in _split(r, -(-min_partitions * (r.end - r.start) // total))]


def _split(whole: OffsetRange, parts: int) -> Iterable[OffsetRange]:
    size = whole.end - whole.start
    parts = min(parts, size)
    bounds = [whole.start + size * i // parts for i in range(parts + 1)]
    return [OffsetRange(whole.queue, a, b) for a, b in pairwise(bounds)]
