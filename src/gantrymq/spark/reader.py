"""Readers: implementations of Spark's interfaces for a batch read and for a stream.

A reader plans on the driver. Spark pickles it and sends it to the tasks, which only call `read`. `read` uses only the
options and the columns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.columns import with_names
from gantrymq.arrow.filters import PushedFilters, with_tags
from gantrymq.arrow.offsets import OffsetRange, Offsets, last_in_turn, limit_rows
from gantrymq.arrow.partitions import (
    SAMPLED_ROWS,
    MessageSizes,
    message_sizes,
    plan_partitions,
    record_plan,
    recorded_partitions,
)
from gantrymq.arrow.planning import plan_batch
from gantrymq.arrow.queue_continuity import ends_left, last_times
from gantrymq.arrow.queues import is_wanted
from gantrymq.arrow.rows import read_ranges
from gantrymq.arrow.size_estimates import estimate_sizes, limit_bytes
from gantrymq.arrow.stream_planning import (
    CHECK_INTERVAL_S,
    advance,
    advance_towards,
    commit_offsets,
    initial_position,
    latest_offsets,
)
from gantrymq.arrow.stream_position import StreamPosition
from gantrymq.background.loop_thread import LoopThread
from gantrymq.errors import ClientError
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.conditions import push_condition
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.progress import progress_of
from gantrymq.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from gantrymq.spark.worker_memory import tune_worker_memory

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

log = logging.getLogger(__name__)

T = TypeVar("T")


class RangesPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: list[OffsetRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class RocketMQBatchReader(DataSourceReader):
    """Reads topics in a batch."""

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
        async with ClusterClient(options.name_servers, options.retry_timeout_ms, options.security) as cluster:
            return await plan_batch(cluster, options, self._filters)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns, self._names)


class RocketMQPushdownReader(RocketMQBatchReader):
    """Reads topics in a batch, and applies conditions of the query.

    This is a separate class, because Spark rejects readers with `pushFilters` if
    spark.sql.python.filterPushdown.enabled is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        if self._options.deduplicate:
            # Deduplication must see all rows before a condition removes some.
            return filters
        left = [condition for condition in filters if not push_condition(self._filters, condition)]
        self._options = with_tags(self._options, self._filters.tags)
        return left


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream. The checkpoint stores its position as the JSON of a StreamPosition.

    The connections of the driver stay open between micro-batches, until `stop`.
    """

    def __init__(self, options: ReadOptions, columns: pa.Schema, names: Sequence[str] | None = None) -> None:
        """`names` are the column names of the rows. Default: the names in `columns`."""
        self._options = options
        self._columns = columns
        self._names = names or columns.names
        self._initial: dict[str, Any] | None = None
        #: The offsets up to which Trigger.AvailableNow reads.
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        #: The offsets up to which the stream reads with the last planned batch.
        self._read_to: Offsets = {}
        #: The end of the last planned batch. Any other end is from the checkpoint.
        self._planned: dict[str, Any] | None = None
        #: The time of the next check of queues without new messages.
        self._check_at = 0.0
        self._committed: Offsets = {}
        #: The time of the last micro-batch that minOffsetsPerTrigger didn't delay; None before the first one.
        self._last_trigger_at: float | None = None
        #: Created with the first request, because Spark pickles readers.
        self._connections: _Connections | None = None

    def initialOffset(self) -> dict[str, Any]:
        self._initial = self._request(lambda cluster: initial_position(cluster, self._options)).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark accepts only one limit. If both are set, this method returns the first one, and `latestOffset` applies
        # both.
        if (most_rows := self._options.max_offsets_per_trigger) is not None:
            return ReadMaxRows(most_rows)
        most_bytes = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if most_bytes is None else ReadMaxBytes(most_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._request(lambda cluster: latest_offsets(cluster, self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        position = StreamPosition.from_json(start)
        if start != self._initial:
            # Spark plans a batch when the previous batch is done, but calls `commit` one batch late.
            self._commit(position.ends)
        # Not checked in each call, because Spark polls an idle stream every few milliseconds.
        check_all = time.monotonic() >= self._check_at
        target = None if self._target is None else self._whole_target(self._target, position.ends)
        if target is None:
            progress = self._request(lambda cluster: advance(cluster, self._options, position, check_all=check_all))
        else:
            progress = self._request(lambda cluster: advance_towards(cluster, self._options, position, target))
        if check_all:
            self._check_at = time.monotonic() + CHECK_INTERVAL_S
        self._latest = ends = progress.ends
        new = progress.starts
        if target is not None:
            new = {queue: offset for queue, offset in new.items() if queue in target}
            starts = position.ends | new
            ends = {
                queue: min(end, max(target.get(queue, 0), starts[queue]))
                for queue, end in ends.items()
                if queue in starts
            }
        self._read_to = starts = position.ends | new
        if target is None and self._is_delayed(sum(max(0, end - starts[queue]) for queue, end in ends.items())):
            return start
        limited = ends
        if isinstance(limit, ReadMaxRows):
            limited = limit_rows(starts, ends, limit.max_rows, position.turn)
        if not isinstance(limit, ReadAllAvailable):
            limited = self._limit_bytes(starts, limited, position.turn)
        turn, ends = last_in_turn(starts, ends, limited, position.turn), limited
        self._read_to = ends
        if ends == position.ends and not new:
            return start
        firsts = {queue: first for queue, first in progress.firsts.items() if queue in ends}
        moved = {queue: end for queue, end in ends.items() if queue in new or position.ends[queue] != end}
        lasts = {queue: time_ms for queue, time_ms in position.lasts.items() if queue in ends.keys() - moved.keys()}
        lasts |= self._request(lambda cluster: last_times(cluster, self._options, moved))
        new_starts = starts if start == self._initial else new
        plan = record_plan(self._plan(starts, ends))
        self._planned = StreamPosition(ends, new_starts, firsts, position.began, lasts, turn, plan).to_json()
        return self._planned

    def _is_delayed(self, available: int) -> bool:
        """Whether a micro-batch with `available` messages must wait for more, by minOffsetsPerTrigger.

        Source: KafkaMicroBatchStream.delayBatch. As there, the first micro-batch of a query is never delayed.
        """
        least = self._options.min_offsets_per_trigger
        if least is None or not available:
            return False
        now = time.monotonic()
        last = self._last_trigger_at
        if last is not None and available < least and now - last < self._options.max_trigger_delay_ms / 1000:
            return True
        self._last_trigger_at = now
        return False

    def _plan(self, starts: Offsets, ends: Offsets) -> list[list[OffsetRange]]:
        sizes: MessageSizes = {}
        if any(end - starts[queue] >= SAMPLED_ROWS for queue, end in ends.items()):
            sizes = self._request(lambda cluster: message_sizes(cluster, self._options, starts, ends))
        return plan_partitions(starts, ends, self._options, sizes)

    def _whole_target(self, target: Offsets, known: Offsets) -> Offsets:
        """Adds queues whose brokers were down when `target` was set, so that the run reads the whole stream.

        Raises BrokersAway.
        """
        were_there = {(queue.topic, queue.broker_name) for queue in target}
        away = {
            queue: offset
            for queue, offset in known.items()
            if (queue.topic, queue.broker_name) not in were_there and is_wanted(self._options, queue)
        }
        if away:
            # Requested once, so that the next micro-batch doesn't retry for brokers that are still down.
            now = self._request(lambda cluster: latest_offsets(cluster, self._options, known))
            self._target = target = target | {queue: now.get(queue, offset) for queue, offset in away.items()}
        return target

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return progress_of(self._latest, self._read_to)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        position = StreamPosition.from_json(end)
        starts, ends = StreamPosition.from_json(start).ends | position.starts, position.ends
        if unknown := ends.keys() - starts.keys():
            raise ClientError(f"the checkpoint has no start for {sorted(unknown)}")
        read = {queue for queue, end in ends.items() if end > starts[queue]}
        if end != self._planned and read:
            left = self._request(lambda cluster: ends_left(cluster, self._options, position, read))
            ends = ends | {queue: max(starts[queue], end) for queue, end in left.items()}
        if position.plan is not None:
            planned = recorded_partitions(position.plan, starts, ends)
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
        self._commit(StreamPosition.from_json(end).ends)

    def stop(self) -> None:
        if self._connections is not None:
            self._connections.close()
            self._connections = None

    def _limit_bytes(self, starts: Offsets, ends: Offsets, after: MessageQueue | None) -> Offsets:
        most, group = self._options.max_bytes_per_trigger, self._options.pull_group
        if most is None:
            return ends

        async def limited(cluster: ClusterClient) -> Offsets:
            async def size(ranges: Sequence[OffsetRange]) -> float:
                return sum(await estimate_sizes(cluster, group, ranges))

            return await limit_bytes(starts, ends, most, size, after)

        return self._request(limited)

    def _commit(self, offsets: Offsets) -> None:
        group = self._options.consumer_group
        changed = {
            queue: offset
            for queue, offset in offsets.items()
            if self._committed.get(queue) != offset and is_wanted(self._options, queue)
        }
        if group is not None and changed:
            self._committed |= self._request(lambda cluster: commit_offsets(cluster, group, changed))

    def _request(self, request: Callable[[ClusterClient], Coroutine[Any, Any, T]]) -> T:
        if self._connections is None:
            self._connections = _Connections(self._options)
        return self._connections.run(request)


class _Connections:
    """A ClusterClient with its own event loop."""

    def __init__(self, options: ReadOptions) -> None:
        self._stack = ExitStack()
        self._loop = self._stack.enter_context(LoopThread("plan"))

        async def connect() -> ClusterClient:
            return ClusterClient(options.name_servers, options.retry_timeout_ms, options.security)

        self._cluster = self._loop.submit(connect()).result()
        self._stack.callback(lambda: self.run(lambda cluster: cluster.__aexit__(None, None, None)))

    def run(self, request: Callable[[ClusterClient], Coroutine[Any, Any, T]]) -> T:
        return self._loop.submit(request(self._cluster)).result()

    def close(self) -> None:
        self._stack.close()


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: pa.Schema, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a partition."""
    # If a read has no partitions, Spark passes a partition of another class.
    if isinstance(partition, RangesPartition):
        tune_worker_memory()
        for rows in read_ranges(partition.ranges, options, columns):
            yield with_names(rows, names)
