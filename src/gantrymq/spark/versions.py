"""Which Spark this is, and stand-ins for what its data source API lacks, so that the rest is written for the newest.

| of the API | since | before that |
|---|---|---|
| Python data sources at all | 4.0 | the import says so |
| conditions of a query (`pushFilters`) | 4.1 | Spark looks at every row itself |
| Arrow batches for a stream's writer | 4.1 | a class that 4.0 takes for a batch's Arrow writer |
| how much a micro-batch may have, `Trigger.AvailableNow` in parts | 4.2 | `older_stream.OlderStreamReader` |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gantrymq.extras import missing

try:
    import pyarrow as pa
    import pyspark
except ImportError as e:
    raise missing("spark", "gantrymq.spark", e) from e

VERSION = tuple(map(int, re.findall(r"\d+", pyspark.__version__)[:2]))
if VERSION < (4, 0):
    raise ImportError(
        "gantrymq.spark needs Spark 4.0 or later, with which Python data sources begin; "
        f"this is pyspark {pyspark.__version__}"
    )

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter  # noqa: E402
from pyspark.sql.pandas import types as _pandas_types  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

HAS_FILTERS = VERSION >= (4, 1)
HAS_ADMISSION_CONTROL = VERSION >= (4, 2)
HAS_PIPELINES = VERSION >= (4, 1)

if TYPE_CHECKING or VERSION >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 asks of any writer whether it is a DataSourceArrowWriter, and hands over Arrow batches then."""


if TYPE_CHECKING or HAS_ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """How much a micro-batch may have."""

    class ReadAllAvailable(ReadLimit):
        """Everything there is."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """At most so many rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """At most about so many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """Nobody asks for it."""


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's Arrow types for `schema`, times in UTC."""
    if TYPE_CHECKING or VERSION >= (4, 2):
        return _pandas_types.to_arrow_schema(schema, timezone="UTC")
    return _pandas_types.to_arrow_schema(schema)


__all__ = [
    "HAS_ADMISSION_CONTROL",
    "HAS_FILTERS",
    "HAS_PIPELINES",
    "VERSION",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "to_arrow_schema",
]
