"""The version of Spark, and substitutes for the parts of its data source API that older versions lack.

| part of the API | from | substitute |
|---|---|---|
| Python data sources | 4.0 | none: the import fails |
| conditions of a query (`pushFilters`) | 4.1 | none: Spark checks every row |
| Arrow batches for the writer of a stream | 4.1 | a class that 4.0 treats as an Arrow writer of a batch |
| limits of a micro-batch, `Trigger.AvailableNow` in several | 4.2 | `legacy_stream_reader.LegacyStreamReader` |
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
from pyspark.sql.types import DataType, StructType  # noqa: E402

HAS_FILTERS = VERSION >= (4, 1)
HAS_ADMISSION_CONTROL = VERSION >= (4, 2)
HAS_PIPELINES = VERSION >= (4, 1)

if TYPE_CHECKING or VERSION >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 passes Arrow batches to every writer that is a DataSourceArrowWriter."""


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
        """The limit of a micro-batch."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """A limit in rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """An approximate limit in bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """A marker class that older versions ignore."""


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Returns Spark's Arrow schema for `schema`, with times in UTC."""
    if TYPE_CHECKING or VERSION >= (4, 2):
        return _pandas_types.to_arrow_schema(schema, timezone="UTC")
    return _pandas_types.to_arrow_schema(schema)


def from_arrow_type(kind: pa.DataType) -> DataType:
    """Returns Spark's type for an Arrow type."""
    return _pandas_types.from_arrow_type(kind)


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
    "from_arrow_type",
    "to_arrow_schema",
]
