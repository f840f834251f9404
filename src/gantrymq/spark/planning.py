"""What the driver asks of the brokers before anything is read: which queues there are, which offsets to read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gantrymq.errors import ConfigError, RemotingError
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.cluster import Cluster
from gantrymq.spark.filters import PushedFilters
from gantrymq.spark.offsets import (
    EARLIEST_NUMBER,
    LATEST,
    LATEST_NUMBER,
    Boundary,
    OffsetRange,
    Offsets,
    plan_ranges,
    queue_key,
)
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.pull import data_lost

log = logging.getLogger(__name__)


class Bounds(NamedTuple):
    """What a queue has: offsets from `first` to `last` (excluded)."""

    first: int
    last: int


async def plan_batch(options: ReadOptions, filters: PushedFilters) -> list[OffsetRange]:
    """The partitions of a batch read; their ends are what there is now.

    Raises NoRouteInfo, ConfigError for offsets of queues that don't exist, and DataLost for offsets whose messages are
    not there.
    """
    async with Cluster(options.name_servers, options.retry_timeout_ms) as cluster:
        all_queues = await cluster.read_queues(options.topics)
        queues = [queue for queue in all_queues if filters.keep(queue)]
        bounds = await _bounds(cluster, queues)
        starting, ending = options.starting_or_default(streaming=False), options.ending or LATEST
        for name, boundary in (("startingOffsets", starting), ("endingOffsets", ending)):
            _check_names(name, boundary, all_queues)
        start = await _resolve(cluster, starting, bounds, options)
        end = await _resolve(cluster, ending, bounds, options)
        await _apply_times(cluster, filters, start, end)
        for queue in queues:
            start[queue], end[queue] = filters.clip(start[queue], end[queue])
    return plan_ranges(start, end, options.min_partitions)


async def initial_offsets(options: ReadOptions) -> Offsets:
    """Where a new stream starts. Raises as `plan_batch` does."""
    async with Cluster(options.name_servers, options.retry_timeout_ms) as cluster:
        queues = await cluster.read_queues(options.topics)
        starting = options.starting_or_default(streaming=True)
        _check_names("startingOffsets", starting, queues)
        bounds = await _bounds(cluster, queues)
        return await _resolve(cluster, starting, bounds, options)


async def latest_offsets(options: ReadOptions) -> Offsets:
    """The ends of all queues, every one of them; tries again while a broker is away."""
    async with Cluster(options.name_servers, options.retry_timeout_ms) as cluster:
        queues = await cluster.read_queues(options.topics)
        return dict(zip(queues, await asyncio.gather(*map(cluster.max_offset, queues)), strict=True))


async def advance(options: ReadOptions, known: Mapping[MessageQueue, int]) -> tuple[Offsets, Offsets]:
    """How far a running stream can go: (starts of the queues that are not in `known`, ends of all).

    A new queue is read from its first offset. A queue whose broker doesn't answer stays where it is, so that the
    others go on.
    """
    async with Cluster(options.name_servers, options.retry_timeout_ms) as cluster:
        queues = await cluster.read_queues(options.topics)

        async def look(queue: MessageQueue) -> tuple[int, int] | None:
            try:
                last = await cluster.max_offset_once(queue)
                first = known.get(queue)
                if first is None:
                    first = await cluster.min_offset(queue)
                    log.info("new queue %s: reading from offset %d", _name(queue), first)
                return first, max(first, last)
            except RemotingError as e:
                log.warning("%s stays where it is for now: %s", _name(queue), e)
                return None

        found = dict(zip(queues, await asyncio.gather(*map(look, queues)), strict=True))
    new = {queue: bounds[0] for queue, bounds in found.items() if bounds and queue not in known}
    ends = {queue: offset for queue, offset in known.items() if queue.topic in options.topics}
    ends |= {queue: bounds[1] for queue, bounds in found.items() if bounds}
    return new, ends


async def commit_offsets(options: ReadOptions, offsets: Mapping[MessageQueue, int]) -> None:
    """Commits for the consumer group. Failures are logged: the stream's own place is in its checkpoint."""
    group = options.consumer_group
    if group is None or not offsets:
        return
    async with Cluster(options.name_servers, options.retry_timeout_ms) as cluster:
        await cluster.read_queues(sorted({queue.topic for queue in offsets}))
        results = await asyncio.gather(
            *(cluster.commit(group, queue, offset) for queue, offset in offsets.items()), return_exceptions=True
        )
    for queue, result in zip(offsets, results, strict=True):
        if isinstance(result, BaseException):
            log.warning("can't commit the offset of %s for group %s: %s", _name(queue), group, result)


async def _bounds(cluster: Cluster, queues: list[MessageQueue]) -> dict[MessageQueue, Bounds]:
    firsts = await asyncio.gather(*map(cluster.min_offset, queues))
    lasts = await asyncio.gather(*map(cluster.max_offset, queues))
    return {queue: Bounds(*bounds) for queue, *bounds in zip(queues, firsts, lasts, strict=True)}


async def _resolve(
    cluster: Cluster, boundary: Boundary, bounds: Mapping[MessageQueue, Bounds], options: ReadOptions
) -> Offsets:
    offsets: Offsets = {}
    if boundary.timestamp_ms is not None:
        for queue, found in (await _search(cluster, bounds, boundary.timestamp_ms)).items():
            # For a queue without messages brokers answer 0, whatever it had before.
            offsets[queue] = min(max(found, bounds[queue].first), bounds[queue].last)
        return offsets
    for queue, (first, last) in bounds.items():
        number = boundary.number_of(queue)
        offset = {EARLIEST_NUMBER: first, LATEST_NUMBER: last}.get(number, number)
        if not first <= offset <= last:
            data_lost(options, f"offset {offset} of {_name(queue)} was asked for, but the broker has {first} to {last}")
        offsets[queue] = min(max(offset, first), last)
    return offsets


async def _search(cluster: Cluster, queues: Iterable[MessageQueue], timestamp_ms: int) -> Offsets:
    queues = list(queues)
    found = await asyncio.gather(*(cluster.search_offset(queue, timestamp_ms) for queue in queues))
    return dict(zip(queues, found, strict=True))


async def _apply_times(cluster: Cluster, filters: PushedFilters, start: Offsets, end: Offsets) -> None:
    # One offset more on either side, as Spark looks at the times itself: clocks and brokers may be off by one message.
    if filters.from_ms is not None:
        for queue, offset in (await _search(cluster, start, filters.from_ms)).items():
            start[queue] = max(start[queue], offset - 1)
    if filters.before_ms is not None:
        for queue, offset in (await _search(cluster, end, filters.before_ms)).items():
            end[queue] = min(end[queue], offset + 1)


def _check_names(option: str, boundary: Boundary, queues: list[MessageQueue]) -> None:
    unknown = sorted((boundary.by_queue or {}).keys() - set(queues))
    if unknown:
        there = ", ".join(map(_name, queues))
        raise ConfigError(f"option {option} names {', '.join(map(_name, unknown))}; there are {there}")


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue_key(queue)}"
