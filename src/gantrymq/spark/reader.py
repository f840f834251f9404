"""Spark's reader interfaces: a batch read, and a stream of micro-batches.

A reader plans on the driver and is pickled to the tasks, whose `read` uses nothing but its options and columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from gantrymq.errors import ClientError, ProtocolError
from gantrymq.protocol.heartbeat import SubscriptionData
from gantrymq.spark.arrow_records import PulledRecords
from gantrymq.spark.cluster import run
from gantrymq.spark.filters import PushedFilters
from gantrymq.spark.offsets import OffsetRange, Offsets, from_json, limit_rows, plan_ranges, to_json
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.planning import advance, commit_offsets, initial_offsets, latest_offsets, plan_batch
from gantrymq.spark.pull import PulledBatch, data_lost, pull_batches

#: In the offset of a micro-batch: where queues start that the offset before it doesn't have, or has by chance only.
#: `latest` is another place when a first batch that failed is planned again after a restart, and what lies between
#: would be lost. No topic has this name.
STARTS = "$start"


class RangePartition(InputPartition):
    """The part of a queue that one task reads."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class RocketMQBatchReader(DataSourceReader):
    """One read of what there is."""

    def __init__(self, options: ReadOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._filters = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(wanted) for wanted in run(plan_batch(self._options, self._filters))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns)


class RocketMQPushdownReader(RocketMQBatchReader):
    """A batch read that leaves out what the query's conditions exclude.

    A class of its own, as Spark refuses readers with this method unless spark.sql.python.filterPushdown.enabled is on.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return [condition for condition in filters if not self._filters.push(condition)]


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: Spark keeps its place in the checkpoint, as JSON of `offsets.to_json`."""

    def __init__(self, options: ReadOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._initial: dict[str, Any] | None = None
        #: What Trigger.AvailableNow reads up to.
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        self._committed: Offsets = {}

    def initialOffset(self) -> dict[str, Any]:
        self._initial = to_json(run(initial_offsets(self._options)))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = run(latest_offsets(self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        known = _offsets(start)
        if start != self._initial:
            # Spark plans a batch after the one before it is done; its call of `commit` comes one batch late.
            self._commit(known)
        new, ends = run(advance(self._options, known))
        if self._target is not None:
            new = {queue: offset for queue, offset in new.items() if queue in self._target}
            ends = {queue: min(end, self._target.get(queue, 0)) for queue, end in ends.items()}
        starts = known | new
        self._latest = ends = {queue: max(end, starts[queue]) for queue, end in ends.items() if queue in starts}
        if isinstance(limit, ReadMaxRows):
            ends = limit_rows(starts, ends, limit.max_rows)
        if ends == known:
            return start
        offset: dict[str, Any] = to_json(ends)
        if start == self._initial:
            offset[STARTS] = to_json(starts)
        elif new:
            offset[STARTS] = to_json(new)
        return offset

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json(self._latest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        starts = _offsets(start) | from_json(end.get(STARTS, {}))
        ends = _offsets(end)
        if unknown := ends.keys() - starts.keys():
            raise ClientError(f"the checkpoint doesn't say where to start in {sorted(unknown)}")
        return [RangePartition(wanted) for wanted in plan_ranges(starts, ends, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        self._commit(_offsets(end))

    def _commit(self, offsets: Offsets) -> None:
        changed = {queue: offset for queue, offset in offsets.items() if self._committed.get(queue) != offset}
        run(commit_offsets(self._options, changed))
        self._committed |= changed


def _offsets(offset: dict[str, Any]) -> Offsets:
    return from_json({topic: queues for topic, queues in offset.items() if topic != STARTS})


def read_partition(partition: InputPartition, options: ReadOptions, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises DataLost, ProtocolError for what can't be decoded."""
    # Spark makes a partition of its own when there is none.
    if not isinstance(partition, RangePartition):
        return
    wanted = partition.wanted
    tags = pa.array(SubscriptionData.parse(wanted.queue.topic, options.tags).tags_set) if options.tags else None
    for pulled in pull_batches(wanted, options):
        try:
            batch = _decode(pulled, wanted, options, columns, tags)
        except ProtocolError as e:
            e.add_note(f"in {wanted._replace(start=pulled.start, end=pulled.end)}")
            raise
        if batch.num_rows:
            yield batch


def _decode(
    pulled: PulledBatch, wanted: OffsetRange, options: ReadOptions, columns: pa.Schema, tags: pa.Array | None
) -> pa.RecordBatch:
    records = PulledRecords(pulled.buffer, check_crc=options.check_crc)
    offsets = records.queue_offsets
    expected = pulled.end - pulled.start
    complete = len(records) == expected and offsets[0] == pulled.start and bool((np.diff(offsets) == 1).all())
    if not complete and tags is None:
        part = wanted._replace(start=pulled.start, end=pulled.end)
        data_lost(options, f"{part}: the broker sent {len(records)} messages")
    arrays = records.columns(columns.names, wanted.queue.topic, wanted.queue.broker_name)
    batch = pa.RecordBatch.from_arrays(arrays, schema=columns)
    if complete and tags is None:
        return batch
    # Brokers compare hash codes of tags, and a pull that filters may go on behind the end.
    keep = pa.array((offsets >= pulled.start) & (offsets < pulled.end))
    if tags is not None:
        keep = pc.and_(keep, pc.is_in(records.tags(), tags))
    return batch.filter(keep)
