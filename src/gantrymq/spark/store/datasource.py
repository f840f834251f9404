"""RocketMQStoreDataSource: `format("rocketmq-store")`, a broker's files as a table, without a broker.

Nothing is written and no lock is taken, so a running broker is no obstacle: what is in the log when the read is planned
is what it gives, unless retention deletes a file before a task gets to it, which is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from gantrymq.spark.columns import arrow_schema, default_schema, with_names
from gantrymq.spark.record_batches import CorruptBodies
from gantrymq.spark.store.options import StoreOptions
from gantrymq.spark.store.planning import LogRange, plan
from gantrymq.spark.store.rows import read_range


class LogPartition(InputPartition):
    """What one task reads."""

    def __init__(self, part: LogRange) -> None:
        super().__init__(part)
        self.part = part


class RocketMQStoreReader(DataSourceReader):
    """One read of a store's commit log. Raises StoreError, ConfigError."""

    def __init__(self, options: StoreOptions, columns: pa.Schema, names: Sequence[str]) -> None:
        """`names` are the column names of the rows."""
        self._options = options
        self._columns = columns
        self._names = names

    def partitions(self) -> Sequence[InputPartition]:
        return [LogPartition(part) for part in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own when there is none.
        if isinstance(partition, LogPartition):
            for rows in read_range(partition.part, self._options, self._columns):
                yield with_names(rows, self._names)


class RocketMQStoreDataSource(DataSource):
    """`spark.read.format("rocketmq-store").load(directory)`; `StoreOptions` has every option.

    The columns are those of `format("rocketmq")`. Messages come in the order of the log.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> StructType | str:
        options = StoreOptions.parse(self.options)
        return default_schema(
            include_properties=options.include_properties,
            include_body_error=options.corrupt_bodies is CorruptBodies.NULL,
            property_columns=options.property_columns,
            body=options.body,
        )

    def reader(self, schema: StructType) -> RocketMQStoreReader:
        options = StoreOptions.parse(self.options)
        return RocketMQStoreReader(options, arrow_schema(schema, options.property_columns, options.body), schema.names)
