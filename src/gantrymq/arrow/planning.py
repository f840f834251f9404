"""Plans a batch read: selects the offsets of each queue, and for Spark the ranges that each task reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby
from typing import NamedTuple

from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.arrow.concurrent_requests import request_each
from gantrymq.arrow.filters import PushedFilters
from gantrymq.arrow.offsets import (
    EARLIEST_NUMBER,
    LATEST,
    LATEST_NUMBER,
    Boundary,
    OffsetRange,
    Offsets,
)
from gantrymq.arrow.options import ReadOptions
from gantrymq.arrow.partitions import message_sizes, plan_partitions
from gantrymq.arrow.pull import report_data_loss
from gantrymq.arrow.queues import check_topics, complete_queues, name_of
from gantrymq.errors import ConfigError
from gantrymq.protocol.message import MessageQueue
from gantrymq.system.clock import now_ms

#: The largest expected difference between the clocks of brokers and of this machine. If a broker was down when a stream
#: began at `latest`, the stream reads a few extra messages of this broker, so that it misses none.
CLOCK_MARGIN_MS = 1000


class Bounds(NamedTuple):
    """The offsets of a queue, from `first` to `last` (excluded)."""

    first: int
    last: int


async def plan_batch(cluster: ClusterClient, options: ReadOptions, filters: PushedFilters) -> list[list[OffsetRange]]:
    """Returns the ranges of each task of a batch read. Raises the errors of `batch_offsets`."""
    start, end = await batch_offsets(cluster, options, filters)
    return plan_partitions(start, end, options, await message_sizes(cluster, options, start, end))


async def batch_offsets(
    cluster: ClusterClient, options: ReadOptions, filters: PushedFilters
) -> tuple[Offsets, Offsets]:
    """Returns the first offset and the end (excluded) of each queue of a batch read.

    By default, the read ends at the present ends of the queues.

    Raises:
        NoRouteInfo: A topic has no route.
        BrokersAway: A broker with some of the queues is down.
        ConfigError: A queue doesn't exist, or there are no messages since the starting time.
        DataLost: The messages at a starting or ending offset no longer exist.
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
    return start, end


def _check_order(starting: Boundary, ending: Boundary, queues: list[MessageQueue]) -> None:
    """Raises ConfigError if a queue's end is before its start, because the read would silently omit the queue."""
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
    """Raises ConfigError for a start in the future: a batch would be empty, a stream would read earlier messages."""
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
    """Raises ConfigError if there are no messages since the starting time, like Spark's Kafka source.

    Spark's Kafka source requires a message in each partition. Here one message in the topic is enough, because queues
    of RocketMQ can be empty for a while. A queue with a time of its own must have a message. `left_out` has the queues
    that the conditions of the query exclude.
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


_AT_END = "To start at the end instead, set the option startingOffsetsByTimestampStrategy=latest"


# -- offsets ----------------------------------------------------------------------------------------------------


async def bounds_of(cluster: ClusterClient, queues: list[MessageQueue]) -> dict[MessageQueue, Bounds]:
    """Returns the first and last offset of each queue."""
    firsts = await request_each(queues, cluster.min_offset)
    lasts = await request_each(queues, cluster.max_offset)
    return {queue: Bounds(*bounds) for queue, *bounds in zip(queues, firsts, lasts, strict=True)}


async def resolve(
    cluster: ClusterClient, boundary: Boundary, bounds: Mapping[MessageQueue, Bounds], options: ReadOptions
) -> Offsets:
    """Returns the offset of the boundary in each queue. Raises DataLost if the broker doesn't have this offset."""
    times = {queue: time for queue in bounds if (time := boundary.time_of(queue)) is not None}
    # Brokers return 0 for a queue without messages, even if it had messages before.
    offsets = {
        queue: min(max(found, bounds[queue].first), bounds[queue].last)
        for queue, found in (await _search(cluster, times)).items()
    }
    for queue, (first, last) in bounds.items():
        if queue in times:
            continue
        number = boundary.number_of(queue)
        offset = {EARLIEST_NUMBER: first, LATEST_NUMBER: last}.get(number, number)
        if not (first <= offset or options.compacted) or offset > last:
            report_data_loss(
                options, f"offset {offset} of {name_of(queue)} was requested, but the broker has {first} to {last}"
            )
        offsets[queue] = min(max(offset, first), last)
    return offsets


async def _search(cluster: ClusterClient, times: Mapping[MessageQueue, int]) -> Offsets:
    """Returns the offset of each queue's first message that was stored at the queue's time (ms) or later."""
    found = await request_each(times, lambda queue: cluster.search_offset(queue, times[queue]))
    return dict(zip(times, found, strict=True))


async def _apply_times(cluster: ClusterClient, filters: PushedFilters, start: Offsets, end: Offsets) -> None:
    # The margin is necessary, because store times of a queue can decrease if a clock was set back or the master
    # changed. The margin does no harm, because `RowFilter` or Spark checks the time of each row.
    if filters.from_ms is not None:
        for queue, offset in (await _search(cluster, dict.fromkeys(start, filters.from_ms - CLOCK_MARGIN_MS))).items():
            start[queue] = max(start[queue], offset)
    if filters.before_ms is not None:
        for queue, offset in (await _search(cluster, dict.fromkeys(end, filters.before_ms + CLOCK_MARGIN_MS))).items():
            end[queue] = min(end[queue], offset)
