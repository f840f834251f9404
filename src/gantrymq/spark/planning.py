"""What the driver asks of the brokers before anything is read: which queues there are, which offsets to read."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gantrymq.errors import ConfigError, NoRouteInfo, RemotingError
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic
from gantrymq.spark.cluster import Cluster
from gantrymq.spark.filters import PushedFilters
from gantrymq.spark.offsets import (
    EARLIEST_NUMBER,
    LATEST,
    LATEST_NUMBER,
    Boundary,
    OffsetRange,
    Offsets,
    bundle,
    plan_ranges,
    queue_key,
)
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.pull import BATCH_ROWS, data_lost

log = logging.getLogger(__name__)


class Bounds(NamedTuple):
    """What a queue has: offsets from `first` to `last` (excluded)."""

    first: int
    last: int


def plan_partitions(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], options: ReadOptions
) -> list[list[OffsetRange]]:
    """What each task reads."""
    ranges = plan_ranges(start, end, options.min_partitions or 1)
    if options.deduplicate:
        return [ranges] if ranges else []
    if options.min_partitions is not None:
        return [[part] for part in ranges]
    return bundle(ranges, BATCH_ROWS)


async def plan_batch(cluster: Cluster, options: ReadOptions, filters: PushedFilters) -> list[list[OffsetRange]]:
    """What each task of a batch read reads; its ends are what there is now.

    Raises NoRouteInfo, ConfigError for offsets of queues that don't exist, and DataLost for offsets whose messages are
    not there.
    """
    all_queues = await find_queues(cluster, options)
    queues = [queue for queue in all_queues if filters.keep(queue)]
    bounds = await _bounds(cluster, queues)
    starting, ending = options.starting_or_default(streaming=False), options.ending or LATEST
    for name, boundary in (("startingOffsets", starting), ("endingOffsets", ending)):
        _check_names(name, boundary.named(), all_queues)
    start = await _resolve(cluster, starting, bounds, options)
    end = await _resolve(cluster, ending, bounds, options)
    await _apply_times(cluster, filters, start, end)
    for queue in queues:
        start[queue], end[queue] = filters.clip(start[queue], end[queue])
    return plan_partitions(start, end, options)


async def initial_offsets(cluster: Cluster, options: ReadOptions) -> Offsets:
    """Where a new stream starts. Raises as `plan_batch` does."""
    queues = await find_queues(cluster, options)
    starting = options.starting_or_default(streaming=True)
    _check_names("startingOffsets", starting.named(), queues)
    bounds = await _bounds(cluster, queues)
    return await _resolve(cluster, starting, bounds, options)


async def latest_offsets(cluster: Cluster, options: ReadOptions) -> Offsets:
    """The ends of all queues, every one of them; tries again while a broker is away."""
    queues = await find_queues(cluster, options)
    return dict(zip(queues, await asyncio.gather(*map(cluster.max_offset, queues)), strict=True))


async def advance(cluster: Cluster, options: ReadOptions, known: Mapping[MessageQueue, int]) -> tuple[Offsets, Offsets]:
    """How far a running stream can go: (starts of the queues that are not in `known`, ends of all).

    A new queue is read from its first offset. A queue whose broker doesn't answer, or whose topic no NameServer knows
    at the moment, stays where it is, so that the others go on. Raises DataLost when a queue ends before its offset in
    `known`, as after a crash or when a topic was deleted and made again; without failOnDataLoss it goes on from there.
    """
    queues = await find_queues(cluster, options, known)

    async def look(queue: MessageQueue) -> Bounds | None:
        try:
            last = await cluster.max_offset_once(queue)
            first = known.get(queue)
            if first is None:
                first = await cluster.min_offset(queue)
                log.info("new queue %s: reading from offset %d", _name(queue), first)
        except RemotingError as e:
            log.warning("%s stays where it is for now: %s", _name(queue), e)
            return None
        if last < first:
            if not cluster.has_master(queue):
                # A slave that is behind.
                return Bounds(first, first)
            data_lost(options, f"{_name(queue)} was read up to offset {first}, but its broker has only {last}")
        return Bounds(first, last)

    looks = await asyncio.gather(*map(look, queues))
    found = {queue: bounds for queue, bounds in zip(queues, looks, strict=True) if bounds is not None}
    new = {queue: bounds.first for queue, bounds in found.items() if queue not in known}
    ends = {queue: offset for queue, offset in known.items() if _is_wanted(options, queue)}
    ends |= {queue: bounds.last for queue, bounds in found.items()}
    return new, ends


async def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[MessageQueue, int]) -> Offsets:
    """Commits for the consumer group, and says what could be. Failures are logged: the stream's own place is in its
    checkpoint."""
    results = await asyncio.gather(
        *(cluster.commit(group, queue, offset) for queue, offset in offsets.items()), return_exceptions=True
    )
    for queue, result in zip(offsets, results, strict=True):
        if isinstance(result, BaseException):
            log.warning("can't commit the offset of %s for group %s: %s", _name(queue), group, result)
    return {queue: offset for (queue, offset), result in zip(offsets.items(), results, strict=True) if result is None}


# -- queues -----------------------------------------------------------------------------------------------------


async def find_queues(cluster: Cluster, options: ReadOptions, known: Iterable[MessageQueue] = ()) -> list[MessageQueue]:
    """The readable queues that the options name. A topic of `known` may be away, and so may any that a pattern found.

    Raises NoRouteInfo for another one, and ConfigError for a queue of assign that isn't there.
    """
    may_be_away = {queue.topic for queue in known}
    if options.pattern is None:
        topics = options.topics
    else:
        topics = [topic for topic in await cluster.topics() if matches(options.pattern, topic)]
        may_be_away.update(topics)
        if not topics:
            log.warning("no topic matches subscribePattern %r", options.pattern)
    queues: list[MessageQueue] = []
    for topic in topics:
        try:
            queues += await cluster.read_queues([topic])
        except NoRouteInfo as e:
            if topic not in may_be_away:
                raise
            log.warning("%s; going on without it for now", e)
    if options.assigned is None:
        return queues
    if not may_be_away:
        _check_names("assign", options.assigned, queues)
    return [queue for queue in queues if queue in options.assigned]


def matches(pattern: str, topic: str) -> bool:
    """Whether subscribePattern means this topic."""
    is_of_user = not is_system_topic(topic) and not topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
    return is_of_user and re.fullmatch(pattern, topic) is not None


def _is_wanted(options: ReadOptions, queue: MessageQueue) -> bool:
    """Whether a queue of a checkpoint is still among those of the options."""
    if options.pattern is not None:
        return matches(options.pattern, queue.topic)
    return queue.topic in options.topics if options.assigned is None else queue in options.assigned


def _check_names(option: str, named: Iterable[MessageQueue], queues: list[MessageQueue]) -> None:
    unknown = sorted(set(named) - set(queues))
    if unknown:
        there = ", ".join(map(_name, queues))
        raise ConfigError(f"option {option} names {', '.join(map(_name, unknown))}; there are {there}")


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue_key(queue)}"


# -- offsets ----------------------------------------------------------------------------------------------------


async def _bounds(cluster: Cluster, queues: list[MessageQueue]) -> dict[MessageQueue, Bounds]:
    firsts = await asyncio.gather(*map(cluster.min_offset, queues))
    lasts = await asyncio.gather(*map(cluster.max_offset, queues))
    return {queue: Bounds(*bounds) for queue, *bounds in zip(queues, firsts, lasts, strict=True)}


async def _resolve(
    cluster: Cluster, boundary: Boundary, bounds: Mapping[MessageQueue, Bounds], options: ReadOptions
) -> Offsets:
    times = {queue: time for queue in bounds if (time := boundary.time_of(queue)) is not None}
    # For a queue without messages brokers answer 0, whatever it had before.
    offsets = {
        queue: min(max(found, bounds[queue].first), bounds[queue].last)
        for queue, found in (await _search(cluster, times)).items()
    }
    for queue, (first, last) in bounds.items():
        if queue in times:
            continue
        number = boundary.number_of(queue)
        offset = {EARLIEST_NUMBER: first, LATEST_NUMBER: last}.get(number, number)
        if not first <= offset <= last:
            data_lost(options, f"offset {offset} of {_name(queue)} was asked for, but the broker has {first} to {last}")
        offsets[queue] = min(max(offset, first), last)
    return offsets


async def _search(cluster: Cluster, times: Mapping[MessageQueue, int]) -> Offsets:
    """The first offset that was stored at its queue's time (ms) or later."""
    found = await asyncio.gather(*(cluster.search_offset(queue, time) for queue, time in times.items()))
    return dict(zip(times, found, strict=True))


async def _apply_times(cluster: Cluster, filters: PushedFilters, start: Offsets, end: Offsets) -> None:
    # One offset more on either side, as Spark looks at the times itself: clocks and brokers may be off by one message.
    if filters.from_ms is not None:
        for queue, offset in (await _search(cluster, dict.fromkeys(start, filters.from_ms))).items():
            start[queue] = max(start[queue], offset - 1)
    if filters.before_ms is not None:
        for queue, offset in (await _search(cluster, dict.fromkeys(end, filters.before_ms))).items():
            end[queue] = min(end[queue], offset + 1)
