"""Spark's reader interfaces: a batch read, and a stream of micro-batches.

A reader plans on the driver and is pickled to the tasks, whose `read` uses nothing but its options and columns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from gantrymq.background.loop_thread import LoopThread
from gantrymq.errors import ClientError
from gantrymq.filter.sql import MAX_LENGTH
from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.spark.cluster import Cluster, run
from gantrymq.spark.columns import with_names
from gantrymq.spark.filters import PushedFilters
from gantrymq.spark.offsets import OffsetRange, Offsets, last_in_turn, limit_rows, to_json
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.partitions import (
    SAMPLED_ROWS,
    MessageSizes,
    message_sizes,
    plan_partitions,
    record_plan,
    recorded_partitions,
)
from gantrymq.spark.planning import plan_batch
from gantrymq.spark.queues import is_wanted
from gantrymq.spark.rows import read_ranges
from gantrymq.spark.sizes import estimate_sizes, limit_bytes
from gantrymq.spark.stream_place import StreamPlace
from gantrymq.spark.stream_planning import (
    advance,
    advance_towards,
    commit_offsets,
    ends_left,
    initial_place,
    last_times,
    latest_offsets,
)
from gantrymq.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

log = logging.getLogger(__name__)

#: How often a stream looks whether queues without anything new are still the ones that it has read.
CHECK_INTERVAL_S = 10.0

T = TypeVar("T")


class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: list[OffsetRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class RocketMQBatchReader(DataSourceReader):
    """One read of what there is."""

    def __init__(self, options: ReadOptions, columns: pa.Schema, names: Sequence[str] | None = None) -> None:
        """`names` are the column names of the rows. Default: the names in `columns`."""
        self._options = options
        self._columns = columns
        self._names = names or columns.names
        self._filters = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        return [RangesPartition(ranges) for ranges in run(self._plan())]

    async def _plan(self) -> list[list[OffsetRange]]:
        options = self._options
        async with Cluster(options.name_servers, options.retry_timeout_ms, options.security) as cluster:
            return await plan_batch(cluster, options, self._filters)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns, self._names)


class RocketMQPushdownReader(RocketMQBatchReader):
    """A batch read that leaves out what the query's conditions exclude.

    A class of its own, as Spark refuses readers with this method unless spark.sql.python.filterPushdown.enabled is on.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        if self._options.deduplicate:
            # What is kept depends on all rows: which copy is the first one.
            return filters
        left = [condition for condition in filters if not self._filters.push(condition)]
        self._options = with_tags(self._options, self._filters.tags)
        return left


def with_tags(options: ReadOptions, tags: set[str] | None) -> ReadOptions:
    """`options` with the tags of the query's conditions for the broker to filter by, where that says the same."""
    if options.tags is not None and tags is not None:
        tags = tags & set(SubscriptionData.parse("", options.tags).tags_set)
    # A broker filters by one expression; no tag at all can't be asked for, and Spark looks at each row anyway. What
    # brokers compare are codes of tags, which in the topic of delayed messages are their times.
    if not tags or options.sql92 is not None or SCHEDULE_TOPIC in options.topics:
        return options
    expression = " || ".join(sorted(tags))
    # Brokers refuse a longer one.
    return replace(options, tags=expression) if len(expression) <= MAX_LENGTH else options


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: Spark keeps its place in the checkpoint, as JSON of a StreamPlace.

    The driver's connections are kept from one micro-batch to the next, until `stop`.
    """

    def __init__(self, options: ReadOptions, columns: pa.Schema, names: Sequence[str] | None = None) -> None:
        """`names` are the column names of the rows. Default: the names in `columns`."""
        self._options = options
        self._columns = columns
        self._names = names or columns.names
        self._initial: dict[str, Any] | None = None
        #: What Trigger.AvailableNow reads up to.
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        #: The end of the batch that was planned last; another one is of the checkpoint.
        self._planned: dict[str, Any] | None = None
        #: When queues are looked at that have nothing new.
        self._check_at = 0.0
        self._committed: Offsets = {}
        #: Made by the first question: Spark pickles readers that were asked nothing.
        self._connections: _Connections | None = None

    def initialOffset(self) -> dict[str, Any]:
        self._initial = self._ask(lambda cluster: initial_place(cluster, self._options)).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark takes one limit: where there are two it knows of the first, and `latestOffset` keeps both.
        if (most_rows := self._options.max_offsets_per_trigger) is not None:
            return ReadMaxRows(most_rows)
        most_bytes = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if most_bytes is None else ReadMaxBytes(most_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ask(lambda cluster: latest_offsets(cluster, self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        place = StreamPlace.from_json(start)
        if start != self._initial:
            # Spark plans a batch after the one before it is done; its call of `commit` comes one batch late.
            self._commit(place.ends)
        # Spark asks every few milliseconds while there is nothing to do.
        check_all = time.monotonic() >= self._check_at
        target = None if self._target is None else self._whole_target(self._target, place.ends)
        if target is None:
            progress = self._ask(lambda cluster: advance(cluster, self._options, place, check_all=check_all))
        else:
            progress = self._ask(lambda cluster: advance_towards(cluster, self._options, place, target))
        if check_all:
            self._check_at = time.monotonic() + CHECK_INTERVAL_S
        self._latest = ends = progress.ends
        new = progress.starts
        if target is not None:
            new = {queue: offset for queue, offset in new.items() if queue in target}
            starts = place.ends | new
            ends = {
                queue: min(end, max(target.get(queue, 0), starts[queue]))
                for queue, end in ends.items()
                if queue in starts
            }
        starts = place.ends | new
        limited = ends
        if isinstance(limit, ReadMaxRows):
            limited = limit_rows(starts, ends, limit.max_rows, place.turn)
        if not isinstance(limit, ReadAllAvailable):
            limited = self._limit_bytes(starts, limited, place.turn)
        turn, ends = last_in_turn(starts, ends, limited, place.turn), limited
        if ends == place.ends and not new:
            return start
        firsts = {queue: first for queue, first in progress.firsts.items() if queue in ends}
        moved = {queue: end for queue, end in ends.items() if queue in new or place.ends[queue] != end}
        lasts = {queue: time_ms for queue, time_ms in place.lasts.items() if queue in ends.keys() - moved.keys()}
        lasts |= self._ask(lambda cluster: last_times(cluster, self._options, moved))
        new_starts = starts if start == self._initial else new
        plan = record_plan(self._plan(starts, ends))
        self._planned = StreamPlace(ends, new_starts, firsts, place.began, lasts, turn, plan).to_json()
        return self._planned

    def _plan(self, starts: Offsets, ends: Offsets) -> list[list[OffsetRange]]:
        sizes: MessageSizes = {}
        if any(end - starts[queue] >= SAMPLED_ROWS for queue, end in ends.items()):
            sizes = self._ask(lambda cluster: message_sizes(cluster, self._options, starts, ends))
        return plan_partitions(starts, ends, self._options, sizes)

    def _whole_target(self, target: Offsets, known: Offsets) -> Offsets:
        """With the queues of the stream whose brokers were away when the target was set: a run that ends has read all
        of it. Raises BrokersAway."""
        were_there = {(queue.topic, queue.broker_name) for queue in target}
        away = {
            queue: offset
            for queue, offset in known.items()
            if (queue.topic, queue.broker_name) not in were_there and is_wanted(self._options, queue)
        }
        if away:
            # Asked once: what isn't there then isn't waited for in the next micro-batch.
            now = self._ask(lambda cluster: latest_offsets(cluster, self._options, known))
            self._target = target = target | {queue: now.get(queue, offset) for queue, offset in away.items()}
        return target

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._latest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        place = StreamPlace.from_json(end)
        starts, ends = StreamPlace.from_json(start).ends | place.starts, place.ends
        if unknown := ends.keys() - starts.keys():
            raise ClientError(f"the checkpoint doesn't say where to start in {sorted(unknown)}")
        read = {queue for queue, end in ends.items() if end > starts[queue]}
        if end != self._planned and read:
            left = self._ask(lambda cluster: ends_left(cluster, self._options, place, read))
            ends = ends | {queue: max(starts[queue], end) for queue, end in left.items()}
        if place.plan is not None:
            planned = recorded_partitions(place.plan, starts, ends)
        else:
            if read:
                log.warning(
                    "the checkpoint of an earlier version has no partitions of this micro-batch: they follow from the "
                    "options. With exactlyOnce, restart the query with the options that the micro-batch began with"
                )
            planned = self._plan(starts, ends)
        return [RangesPartition(ranges) for ranges in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns, self._names)

    def commit(self, end: dict[str, Any]) -> None:
        self._commit(StreamPlace.from_json(end).ends)

    def stop(self) -> None:
        if self._connections is not None:
            self._connections.close()
            self._connections = None

    def _limit_bytes(self, starts: Offsets, ends: Offsets, after: MessageQueue | None) -> Offsets:
        most, group = self._options.max_bytes_per_trigger, self._options.pull_group
        if most is None:
            return ends

        async def limited(cluster: Cluster) -> Offsets:
            async def size(ranges: Sequence[OffsetRange]) -> float:
                return sum(await estimate_sizes(cluster, group, ranges))

            return await limit_bytes(starts, ends, most, size, after)

        return self._ask(limited)

    def _commit(self, offsets: Offsets) -> None:
        group = self._options.consumer_group
        changed = {
            queue: offset
            for queue, offset in offsets.items()
            if self._committed.get(queue) != offset and is_wanted(self._options, queue)
        }
        if group is not None and changed:
            self._committed |= self._ask(lambda cluster: commit_offsets(cluster, group, changed))

    def _ask(self, question: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        if self._connections is None:
            self._connections = _Connections(self._options)
        return self._connections.ask(question)


class _Connections:
    """A Cluster on a loop of its own."""

    def __init__(self, options: ReadOptions) -> None:
        self._stack = ExitStack()
        self._loop = self._stack.enter_context(LoopThread("plan"))

        async def connect() -> Cluster:
            return Cluster(options.name_servers, options.retry_timeout_ms, options.security)

        self._cluster = self._loop.submit(connect()).result()
        self._stack.callback(lambda: self.ask(lambda cluster: cluster.__aexit__(None, None, None)))

    def ask(self, question: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        return self._loop.submit(question(self._cluster)).result()

    def close(self) -> None:
        self._stack.close()


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: pa.Schema, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    # Spark makes a partition of its own when there is none.
    if isinstance(partition, RangesPartition):
        for rows in read_ranges(partition.ranges, options, columns):
            yield with_names(rows, names)
