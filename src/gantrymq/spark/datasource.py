"""RocketMQDataSource: what Spark looks up by the name `rocketmq`."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamReader
from pyspark.sql.types import StructType

from gantrymq.errors import ConfigError
from gantrymq.spark.columns import arrow_schema, default_schema
from gantrymq.spark.older_stream import OlderStreamReader
from gantrymq.spark.options import ReadOptions, WriteOptions
from gantrymq.spark.reader import RocketMQBatchReader, RocketMQPushdownReader, RocketMQStreamReader
from gantrymq.spark.record_batches import CorruptBodies
from gantrymq.spark.row_messages import check_columns
from gantrymq.spark.store.datasource import RocketMQStoreDataSource
from gantrymq.spark.versions import HAS_ADMISSION_CONTROL, HAS_FILTERS, DataSourceStreamArrowWriter
from gantrymq.spark.writer import RocketMQBatchWriter, RocketMQStreamWriter

NAME = "rocketmq"
FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class RocketMQDataSource(DataSource):
    """`spark.read.format("rocketmq")`, `.readStream`, `.write` and `.writeStream`; `options` has every option.

    A read has the columns of `columns.COLUMNS`, `properties` only with includeProperties, and those of propertyColumns.
    `.schema("body binary, tags string")` leaves out the others, which then cost nothing. A write takes the columns of
    `row_messages.COLUMNS`.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType | str:
        options = ReadOptions.parse(self.options)
        return default_schema(
            include_properties=options.include_properties,
            include_body_error=options.corrupt_bodies is CorruptBodies.NULL,
            property_columns=options.property_columns,
            body=options.body,
        )

    def reader(self, schema: StructType) -> RocketMQBatchReader:
        options = ReadOptions.parse(self.options, streaming=False)
        return RocketMQBatchReader(options, arrow_schema(schema, options.property_columns, options.body), schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader = RocketMQStreamReader if HAS_ADMISSION_CONTROL else OlderStreamReader
        options = ReadOptions.parse(self.options, streaming=True)
        return reader(options, arrow_schema(schema, options.property_columns, options.body), schema.names)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = WriteOptions.parse(self.options, streaming=False)
        _check_write(schema, options, overwrite)
        return RocketMQBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = WriteOptions.parse(self.options, streaming=True)
        _check_write(schema, options, overwrite)
        return RocketMQStreamWriter(options)


class RocketMQPushdownDataSource(RocketMQDataSource):
    """The same, for sessions in which Spark hands the conditions of a query to Python data sources."""

    def reader(self, schema: StructType) -> RocketMQBatchReader:
        options = ReadOptions.parse(self.options, streaming=False)
        return RocketMQPushdownReader(
            options, arrow_schema(schema, options.property_columns, options.body), schema.names
        )


def register(spark: SparkSession) -> None:
    """Makes `format("rocketmq")` and `format("rocketmq-store")` known to `spark`.

    Conditions on topic, brokerName, queueId, queueOffset and storeTimestamp spare reading when
    spark.sql.python.filterPushdown.enabled is on by now, as `session_builder` sets it; without it Spark does not even
    allow a reader to offer that. Spark 4.0 has no such thing.
    """
    pushes = HAS_FILTERS and spark.conf.get(FILTER_PUSHDOWN, "false") == "true"
    spark.dataSource.register(RocketMQPushdownDataSource if pushes else RocketMQDataSource)
    spark.dataSource.register(RocketMQStoreDataSource)


def _check_write(schema: StructType, options: WriteOptions, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError('a topic can\'t be overwritten: use mode("append")')
    check_columns(schema, options)
