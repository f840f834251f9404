"""`RocketMQStoreDataSource` implements `format("rocketmq-store")`, which reads the files of a broker as a table.

The source sends no requests to the broker, writes nothing and takes no lock, so the broker may be running. A read
returns the messages that are in the log when Spark plans it. If retention deletes a file before a task reads it, the
task fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from gantrymq.arrow.body_values import CorruptBodies
from gantrymq.arrow.columns import with_names
from gantrymq.arrow.samples import stored_bodies
from gantrymq.arrow.store.planning import LogRange, plan
from gantrymq.arrow.store.rows import read_range
from gantrymq.codecs.json_types import DEFAULT_SAMPLE
from gantrymq.spark.read_schema import arrow_schema, default_schema
from gantrymq.spark.store.options import StoreOptions
from gantrymq.spark.worker_memory import tune_worker_memory


class LogPartition(InputPartition):
    """The part of the log that one task reads."""

    def __init__(self, part: LogRange) -> None:
        super().__init__(part)
        self.part = part


class RocketMQStoreReader(DataSourceReader):
    """Reads the commit log of a store. Raises StoreError for missing or damaged files, and ConfigError."""

    def __init__(self, options: StoreOptions, columns: pa.Schema, names: Sequence[str]) -> None:
        """`names` are the column names of the rows."""
        self._options = options
        self._columns = columns
        self._names = names

    def partitions(self) -> Sequence[InputPartition]:
        return [LogPartition(part) for part in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # If a read has no partitions, Spark passes a partition of another class.
        if isinstance(partition, LogPartition):
            tune_worker_memory()
            for rows in read_range(partition.part, self._options, self._columns):
                yield with_names(rows, self._names)


class RocketMQStoreDataSource(DataSource):
    """Implements `spark.read.format("rocketmq-store").load(directory)`. `StoreOptions` describes every option.

    The columns are the same as for `format("rocketmq")`. Messages are in the order of the commit log.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> StructType | str:
        options = StoreOptions.parse(self.options)
        body = options.body
        if body is not None and body.is_inferred:
            body = body.with_sample(stored_bodies(options, DEFAULT_SAMPLE), str(options.url or options.path))
        return default_schema(
            include_properties=options.include_properties,
            include_body_error=options.corrupt_bodies is CorruptBodies.NULL,
            property_columns=options.property_columns,
            body=body,
        )

    def reader(self, schema: StructType) -> RocketMQStoreReader:
        options = StoreOptions.parse(self.options)
        return RocketMQStoreReader(options, arrow_schema(schema, options.property_columns, options.body), schema.names)
