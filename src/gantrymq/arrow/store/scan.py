"""`scan_store` reads the files of a broker as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from gantrymq.arrow.option_values import Values, check_names
from gantrymq.arrow.read_arguments import zoned_milliseconds
from gantrymq.arrow.row_filter import Condition, RowFilter
from gantrymq.arrow.store.options import STORE_OPTIONS, StoreOptions
from gantrymq.arrow.store.planning import LogRange, plan
from gantrymq.arrow.store.rows import read_range
from gantrymq.errors import ConfigError

#: Options that are arguments of `scan_store`, and options of partitions, which a scan does not have.
_OF_ARGUMENTS = {"path", "subscribe", "startingTimestamp", "endingTimestamp", "maxPartitionBytes"}
SCAN_OPTIONS = tuple(name for name in STORE_OPTIONS if name not in _OF_ARGUMENTS)


def scan_store(
    path: str | Path,
    topic: str | Sequence[str] | None = None,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    filter: Sequence[Condition] | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> pa.RecordBatchReader:
    """Reads the commit log of a broker, which need not be running.

    The messages are in the order of the log. The scan stops at the end of the log at the time of the call.

    Args:
        path: The storePathRootDir of a broker, a directory with the files of its commit log, or the tier of a broker:
            a directory, or a URL such as `s3://bucket/path/CLUSTER/BROKER`.
        topic: The topic, or several of them. Default: all topics except system topics, retry topics and dead-letter
            queues.
        start: Only messages stored at this time or later. The time needs a time zone.
        end: Only messages stored before this time.
        filter: Conditions, as for `read_topic`. They are checked for each message.
        columns: The columns of the result. Default: all but `properties` and `bodyError`.
        options: Further options, with the names and values of the Spark source `rocketmq-store`.

    Returns:
        A reader. While it is read, it raises StoreError for unreadable or damaged files, and CompressionError for a
        corrupt body.

    Raises:
        ConfigError: An argument or option is invalid.
        StoreError: There is no log, or a part of it is missing.
    """
    given = dict(options or {})
    check_names(given, SCAN_OPTIONS, "scan of a store", STORE_OPTIONS)
    given["path"] = str(path)
    if topic is not None:
        if not topic:
            raise ConfigError("no topic is named: pass None to read all topics")
        given["subscribe"] = topic if isinstance(topic, str) else ",".join(topic)
    for name, time in (("starting", start), ("ending", end)):
        if time is not None:
            given[f"{name}Timestamp"] = str(zoned_milliseconds("start" if name == "starting" else "end", time))
    parsed = StoreOptions.of(Values(given, STORE_OPTIONS, "scan of a store"))
    rows = RowFilter(
        filter or (),
        columns,
        property_columns=parsed.property_columns,
        include_properties=parsed.include_properties,
        include_body_error=parsed.returns_corrupt_bodies,
    )
    batches = _read_all(plan(parsed), parsed, rows.decoded)
    return rows.reader(batches)


def _read_all(parts: Sequence[LogRange], options: StoreOptions, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from read_range(part, options, columns)
