"""What a task does: pull its ranges, decode them, and leave out the rows that aren't wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.errors import CodecError, ProtocolError
from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.row_ids import GANTRY_ID
from gantrymq.spark.offsets import OffsetRange
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.pull import PulledBatch, data_lost, pull_batches
from gantrymq.spark.record_batches import pulled_records, record_batches, stored_columns, value_decoder


def read_ranges(ranges: Sequence[OffsetRange], options: ReadOptions, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of `ranges`, in order. Raises DataLost, and a ProtocolError or CodecError that names what is wrong."""
    rows = _Rows(options, columns)
    for pulled in pull_batches(ranges, options):
        try:
            yield from rows.decode(pulled)
        except (CodecError, ProtocolError) as e:
            raise type(e)(f"in {OffsetRange(*pulled[:3])}: {e}") from e


class _Rows:
    def __init__(self, options: ReadOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        #: What is made of each record: the columns, and what tells which rows are wanted.
        self._made = stored_columns(columns, options.body)
        if options.tags is not None:
            self._made.append("tags")
        if options.deduplicate:
            self._made.append(GANTRY_ID)
        self._tags = None if options.tags is None else pa.array(SubscriptionData.parse("", options.tags).tags_set)
        self._values = value_decoder(options.body, columns)
        self._seen: set[str] = set()

    def decode(self, pulled: PulledBatch) -> Iterator[pa.RecordBatch]:
        """The wanted rows of a batch. Raises as `read_ranges` does."""
        options = self._options
        records = pulled_records(pulled.buffer, self._made, options.corrupt_bodies, check_crc=options.check_crc)
        offsets = records.queue_offsets
        is_complete = (
            len(records) == pulled.end - pulled.start
            and offsets[0] == pulled.start
            and bool((np.diff(offsets) == 1).all())
        )
        if not is_complete and not options.is_filtered:
            data_lost(options, f"{OffsetRange(*pulled[:3])}: the broker sent {len(records)} messages")
        keep: pa.Array | None = None
        if not is_complete:
            # Whatever a broker sends besides belongs to no row of this task.
            keep = pa.array((offsets >= pulled.start) & (offsets < pulled.end))
        elif self._tags is not None or options.deduplicate:
            keep = pa.repeat(pa.scalar(True), len(records))
        if self._tags is not None:
            # Brokers compare hash codes of tags.
            keep = pc.and_(keep, pc.is_in(records.tags(), self._tags))
        if options.deduplicate:
            keep = pc.and_(keep, self._first_seen(records.property_values(GANTRY_ID), keep))
        yield from record_batches(
            records,
            self._columns,
            pulled.queue.topic,
            pulled.queue.broker_name,
            keep,
            options.corrupt_bodies,
            self._values,
            check_crc=options.check_crc,
        )

    def _first_seen(self, row_ids: pa.Array, wanted: pa.Array) -> pa.Array:
        """Which of the `wanted` rows have an id that none had before; those without one have never been seen."""
        seen = self._seen
        is_first = []
        for row_id, is_wanted in zip(row_ids.to_pylist(), wanted.to_pylist(), strict=True):
            is_first.append(is_wanted and (row_id is None or row_id not in seen))
            if is_wanted and row_id is not None:
                seen.add(row_id)
        return pa.array(is_first, pa.bool_())
