"""Samples the bodies of a read, to derive their schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa

from gantrymq.arrow.columns import BODY
from gantrymq.arrow.connection_pool import task_connections
from gantrymq.arrow.filters import PushedFilters
from gantrymq.arrow.offsets import plan_ranges
from gantrymq.arrow.options import ReadOptions
from gantrymq.arrow.planning import batch_offsets
from gantrymq.arrow.rows import read_ranges
from gantrymq.arrow.store.options import StoreOptions
from gantrymq.arrow.store.planning import plan
from gantrymq.arrow.store.rows import read_range

_COLUMNS = pa.schema([(BODY, pa.binary())])


def newest_bodies(options: ReadOptions, count: int) -> list[bytes]:
    """Returns the newest bodies of each queue of a read, about `count` in total. Raises the errors of `read_topic`.

    Each queue has the same number of messages in the sample, or all that it has. Filters can reduce this number.
    """
    with task_connections(options) as brokers:
        start, end = brokers.submit(batch_offsets(brokers.cluster, options, PushedFilters())).result()
    of_queue = -(-count // max(1, len(end)))
    start = {queue: max(first, end[queue] - of_queue) for queue, first in start.items()}
    return list(_bodies(read_ranges(plan_ranges(start, end), options, _COLUMNS)))


def stored_bodies(options: StoreOptions, count: int) -> list[bytes]:
    """Returns up to `count` bodies from the last part of a log that has some. Raises the errors of `scan_store`."""
    for part in reversed(plan(options)):
        if bodies := list(islice(_bodies(read_range(part, options, _COLUMNS)), count)):
            return bodies
    return []


def _bodies(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yields the bodies of rows, without those that could not be decompressed."""
    for rows in batches:
        yield from (body for body in rows.column(BODY).to_pylist() if body is not None)
