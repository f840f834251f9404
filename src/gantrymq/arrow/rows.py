"""Reads ranges of offsets: pulls them, decodes the records, and filters the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.arrow.offsets import OffsetRange
from gantrymq.arrow.options import ReadOptions
from gantrymq.arrow.pull import PulledBatch, pull_batches, report_data_loss
from gantrymq.arrow.record_batches import pulled_records, record_batches, stored_columns, value_decoder
from gantrymq.errors import CodecError, ProtocolError
from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.row_ids import GANTRY_ID


def read_ranges(ranges: Sequence[OffsetRange], options: ReadOptions, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of `ranges`, in order. Raises DataLost, and a ProtocolError or CodecError with the position."""
    rows = RowDecoder(options, columns)
    for pulled in pull_batches(ranges, options):
        yield from rows.decode(pulled)


class RowDecoder:
    """Decodes pulled batches into the rows that pass the filters of the options."""

    def __init__(self, options: ReadOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        #: The columns to read from each record: the columns of the schema, and columns on which rows are filtered.
        self._record_columns = stored_columns(columns, options.body)
        if options.tags is not None:
            self._record_columns.append("tags")
        if options.deduplicate:
            self._record_columns.append(GANTRY_ID)
        self._tags = None if options.tags is None else pa.array(SubscriptionData.parse("", options.tags).tags_set)
        self._values = value_decoder(options.body, columns)
        self._seen: set[str] = set()

    def decode(self, pulled: PulledBatch) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a batch that pass the filters. Raises the errors of `read_ranges`."""
        try:
            yield from self._decode(pulled)
        except (CodecError, ProtocolError) as e:
            raise type(e)(f"in {OffsetRange(*pulled[:3])}: {e}") from e

    def _decode(self, pulled: PulledBatch) -> Iterator[pa.RecordBatch]:
        options = self._options
        records = pulled_records(
            pulled.buffer,
            self._record_columns,
            options.corrupt_bodies,
            check_crc=options.check_crc,
            max_body_size=options.max_body_size,
        )
        offsets = records.queue_offsets
        is_complete = len(records) == pulled.end - pulled.start and bool(
            (offsets == np.arange(pulled.start, pulled.end)).all()
        )
        if not is_complete and not options.has_gaps:
            report_data_loss(options, f"{OffsetRange(*pulled[:3])}: the broker sent {len(records)} messages")
        keep: pa.Array | None = None
        if not is_complete:
            # Other tasks read the messages outside of the range.
            keep = pa.array((offsets >= pulled.start) & (offsets < pulled.end))
        elif self._tags is not None or options.deduplicate:
            keep = pa.repeat(pa.scalar(True), len(records))
        if self._tags is not None:
            # The broker's filter is not exact: it only compares the hash codes of tags.
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
        """Marks the `wanted` rows with an id that no earlier row has. Rows without an id are always marked."""
        seen = self._seen
        is_first = []
        for row_id, is_wanted in zip(row_ids.to_pylist(), wanted.to_pylist(), strict=True):
            is_first.append(is_wanted and (row_id is None or row_id not in seen))
            if is_wanted and row_id is not None:
                seen.add(row_id)
        return pa.array(is_first, pa.bool_())
