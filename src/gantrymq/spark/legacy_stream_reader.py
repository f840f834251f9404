"""`LegacyStreamReader` reads streams on Spark 4.0 and 4.1.

The API of these versions passes neither the position of a stream nor limits to the reader. Spark makes these calls:

| query | calls |
|---|---|
| new | latestOffset, initialOffset, partitions(initial, latest), latestOffset, ... |
| restarted | partitions(position, position), latestOffset, partitions(position, latest), ... |
| either with AvailableNow | the same for one micro-batch, which may be an unfinished one |

The reader therefore takes the position from the calls of `partitions`. Before the first call, the position is the
initial offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RocketMQStreamReader
from gantrymq.spark.versions import ReadAllAvailable

log = logging.getLogger(__name__)

Offset = dict[str, Any]


class LegacyStreamReader(DataSourceStreamReader):
    """Adapts RocketMQStreamReader to Spark 4.0 and 4.1, and applies the limits of a micro-batch.

    With Trigger.AvailableNow, these versions run only one micro-batch, so a run ends at the limit. The reader logs this
    for every query with a limit, because Spark doesn't tell the reader which trigger a query has.
    """

    def __init__(self, options: ReadOptions, columns: pa.Schema, names: Sequence[str] | None = None) -> None:
        self._reader = RocketMQStreamReader(options, columns, names)
        self._limit = self._reader.getDefaultReadLimit()
        self._initial: Offset | None = None
        #: The end of the last planned micro-batch.
        self._position: Offset | None = None
        self._has_warned = False

    def initialOffset(self) -> Offset:
        # Cached, because `latest` would give another position in a later call.
        if self._initial is None:
            self._initial = self._reader.initialOffset()
        return self._initial

    def latestOffset(self) -> Offset:  # type: ignore[override]  # as it was before 4.2
        if not self._has_warned and not isinstance(self._limit, ReadAllAvailable):
            self._has_warned = True
            log.warning(
                "Spark %s ends a query with Trigger.AvailableNow after one micro-batch, at maxOffsetsPerTrigger or "
                "maxBytesPerTrigger: run it until it finds nothing, leave the option out, or take Spark 4.2",
                pyspark.__version__,
            )
        start = self.initialOffset() if self._position is None else self._position
        return self._reader.latestOffset(start, self._limit)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._position = end
        # `start == end` is the position of the stream after a restart: there is nothing to plan.
        return [] if start == end else self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: Offset) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()
