"""OlderStreamReader: streams of Spark 4.0 and 4.1, which ask for the latest offset and say neither where the stream is
nor how much a micro-batch may have.

What these versions ask a reader, as recorded:

| query | calls |
|---|---|
| new | latestOffset, initialOffset, partitions(initial, latest), latestOffset, ... |
| restarted | partitions(place, place), latestOffset, partitions(place, latest), ... |
| either with AvailableNow | the same for one micro-batch, which may be one that was left unfinished |

So `partitions` tells where the stream is, and where nothing was planned that is where it begins.
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


class OlderStreamReader(DataSourceStreamReader):
    """A RocketMQStreamReader as Spark 4.0 and 4.1 use one.

    Limits of a micro-batch hold. As such a Spark runs one micro-batch with Trigger.AvailableNow, a run then ends at the
    limit, and nothing tells a reader which trigger there is: the log says so whenever a query with a limit starts.
    """

    def __init__(self, options: ReadOptions, columns: pa.Schema, names: Sequence[str] | None = None) -> None:
        self._reader = RocketMQStreamReader(options, columns, names)
        self._limit = self._reader.getDefaultReadLimit()
        self._initial: Offset | None = None
        #: Up to where Spark has planned.
        self._place: Offset | None = None
        self._has_warned = False

    def initialOffset(self) -> Offset:
        # `latest` would be another place when it is asked for again.
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
        start = self.initialOffset() if self._place is None else self._place
        return self._reader.latestOffset(start, self._limit)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._place = end
        # Told its place, after a restart, a reader has nothing to plan.
        return [] if start == end else self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: Offset) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()
