"""What the driver asks of the brokers before a batch is read: which offsets of which queues each task reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby
from typing import NamedTuple

from gantrymq.errors import ConfigError
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.cluster import Cluster
from gantrymq.spark.filters import PushedFilters
from gantrymq.spark.of_each import of_each
from gantrymq.spark.offsets import (
    EARLIEST_NUMBER,
    LATEST,
    LATEST_NUMBER,
    Boundary,
    OffsetRange,
    Offsets,
)
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.partitions import message_sizes, plan_partitions
from gantrymq.spark.pull import data_lost
from gantrymq.spark.queues import check_topics, complete_queues, name_of
from gantrymq.system.clock import now_ms

#: Clocks of brokers and of the driver may differ by so much: of a broker that was away when a stream began at `latest`
#: rather a few messages too many than one too few.
CLOCK_MARGIN_MS = 1000


class Bounds(NamedTuple):
    """What a queue has: offsets from `first` to `last` (excluded)."""

    first: int
    last: int


async def plan_batch(cluster: Cluster, options: ReadOptions, filters: PushedFilters) -> list[list[OffsetRange]]:
    """What each task of a batch read reads; its ends are what there is now.

    Raises NoRouteInfo, BrokersAway, ConfigError for offsets of queues that don't exist and for a time that nothing was
    stored since, and DataLost for offsets whose messages are not there.
    """
    starting, ending = options.starting_or_default(streaming=False), options.ending or LATEST
    check_topics(options, {f"starting{starting.naming_option}": starting.named_topics()})
    check_topics(options, {f"ending{ending.naming_option}": ending.named_topics()})
    all_queues = await complete_queues(
        cluster, options, {"startingOffsets": starting.named(), "endingOffsets": ending.named()}
    )
    _check_order(starting, ending, all_queues)
    check_future(options, starting, all_queues)
    queues = [queue for queue in all_queues if filters.keep(queue)]
    bounds = await bounds_of(cluster, queues)
    start = await resolve(cluster, starting, bounds, options)
    _check_nothing_since(options, starting, bounds, start, set(all_queues).difference(queues))
    end = await resolve(cluster, ending, bounds, options)
    for queue in queues:
        _check_ascends(queue, "offset", start[queue], end[queue])
    await _apply_times(cluster, filters, start, end)
    for queue in queues:
        start[queue], end[queue] = filters.clip(start[queue], end[queue])
    return plan_partitions(start, end, options, await message_sizes(cluster, options, start, end))


def _check_order(starting: Boundary, ending: Boundary, queues: list[MessageQueue]) -> None:
    """Raises ConfigError for a queue that would be left out without a word, as its end is before its start."""
    for queue in queues:
        offsets = starting.by_queue.get(queue, EARLIEST_NUMBER), ending.by_queue.get(queue, LATEST_NUMBER)
        times = starting.time_of(queue), ending.time_of(queue)
        if offsets[1] >= 0:
            _check_ascends(queue, "offset", *offsets)
        if times[0] is not None and times[1] is not None:
            _check_ascends(queue, "the time", times[0], times[1])


def _check_ascends(queue: MessageQueue, of_what: str, start: int, end: int) -> None:
    if start > end:
        raise ConfigError(f"{name_of(queue)} starts at {of_what} {start} and ends before, at {end}")


def check_future(options: ReadOptions, starting: Boundary, queues: list[MessageQueue]) -> None:
    """Raises ConfigError for a start in the future: a batch would be empty, and a stream begin with messages stored
    before it."""
    if options.starts_at_end_if_later:
        return
    now = now_ms()
    for queue in queues:
        time = starting.time_of(queue)
        if time is not None and time > now + CLOCK_MARGIN_MS:
            raise ConfigError(
                f"{name_of(queue)} is to start at the time {time}, which is in the future: it is {now} now, in ms "
                f"since 1970. {_AT_END}"
            )


def _check_nothing_since(
    options: ReadOptions,
    starting: Boundary,
    bounds: Mapping[MessageQueue, Bounds],
    start: Offsets,
    left_out: Collection[MessageQueue],
) -> None:
    """Raises ConfigError where nothing is there since the time that was asked for, as Spark's Kafka source does.

    There each queue must have a message. Here a topic must, as RocketMQ's have queues that nothing came to for a while,
    and a queue with a time of its own. `left_out`: queues of which the query's conditions say that they aren't wanted.
    """
    if options.starts_at_end_if_later:
        return
    ended = {
        queue for queue, found in bounds.items() if starting.time_of(queue) is not None and start[queue] >= found.last
    }
    for queue in sorted(ended):
        if queue in starting.times:
            raise ConfigError(f"{name_of(queue)} has no message stored at {starting.times[queue]} or later. {_AT_END}")
    unasked = {queue.topic for queue in left_out}
    for topic, queues in groupby(sorted(bounds), key=lambda queue: queue.topic):
        of_topic = set(queues)
        if topic not in unasked and of_topic <= ended:
            time = starting.time_of(of_topic.pop())
            raise ConfigError(
                f"topic {topic} has no message stored at {time} or later: nothing would be read. {_AT_END}"
            )


_AT_END = 'option("startingOffsetsByTimestampStrategy", "latest") starts at the end instead'


# -- offsets ----------------------------------------------------------------------------------------------------


async def bounds_of(cluster: Cluster, queues: list[MessageQueue]) -> dict[MessageQueue, Bounds]:
    """What each queue has."""
    firsts = await of_each(queues, cluster.min_offset)
    lasts = await of_each(queues, cluster.max_offset)
    return {queue: Bounds(*bounds) for queue, *bounds in zip(queues, firsts, lasts, strict=True)}


async def resolve(
    cluster: Cluster, boundary: Boundary, bounds: Mapping[MessageQueue, Bounds], options: ReadOptions
) -> Offsets:
    """The boundary's offset in each queue. Raises DataLost for one whose messages are not there."""
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
            data_lost(
                options, f"offset {offset} of {name_of(queue)} was asked for, but the broker has {first} to {last}"
            )
        offsets[queue] = min(max(offset, first), last)
    return offsets


async def _search(cluster: Cluster, times: Mapping[MessageQueue, int]) -> Offsets:
    """The first offset that was stored at its queue's time (ms) or later."""
    found = await of_each(times, lambda queue: cluster.search_offset(queue, times[queue]))
    return dict(zip(times, found, strict=True))


async def _apply_times(cluster: Cluster, filters: PushedFilters, start: Offsets, end: Offsets) -> None:
    # Spark looks at the times itself. Those of a queue ascend, but for a clock that was set back, or another master's,
    # by no more than the margin.
    if filters.from_ms is not None:
        for queue, offset in (await _search(cluster, dict.fromkeys(start, filters.from_ms - CLOCK_MARGIN_MS))).items():
            start[queue] = max(start[queue], offset)
    if filters.before_ms is not None:
        for queue, offset in (await _search(cluster, dict.fromkeys(end, filters.before_ms + CLOCK_MARGIN_MS))).items():
            end[queue] = min(end[queue], offset)
