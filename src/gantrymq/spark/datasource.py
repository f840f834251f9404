"""RocketMQDataSource: what Spark looks up by the name `rocketmq`."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gantrymq.errors import ConfigError
from gantrymq.spark.options import ReadOptions, WriteOptions
from gantrymq.spark.reader import RocketMQBatchReader, RocketMQPushdownReader, RocketMQStreamReader
from gantrymq.spark.writer import RocketMQBatchWriter, RocketMQStreamWriter, check_columns

NAME = "rocketmq"
FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

#: The columns of a read, as `arrow_records.ARROW_TYPES` makes them.
COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "brokerName": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "keys": StringType(),
    "tags": StringType(),
    "body": BinaryType(),
    "bornTimestamp": TimestampType(),
    "storeTimestamp": TimestampType(),
    "msgId": StringType(),
    "reconsumeTimes": IntegerType(),
    "properties": MapType(StringType(), StringType()),
}


class RocketMQDataSource(DataSource):
    """`spark.read.format("rocketmq")`, `.readStream`, `.write` and `.writeStream`; `options` has every option.

    A read has the columns of `COLUMNS`, `properties` only with includeProperties. `.schema("body binary, tags string")`
    leaves out the others, which then cost nothing. A write takes the columns of `writer.COLUMNS`.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = ReadOptions.parse(self.options)
        left_out = set() if options.include_properties else {"properties"}
        return StructType([StructField(name, kind) for name, kind in COLUMNS.items() if name not in left_out])

    def reader(self, schema: StructType) -> RocketMQBatchReader:
        return RocketMQBatchReader(ReadOptions.parse(self.options, streaming=False), _arrow_schema(schema))

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:
        return RocketMQStreamReader(ReadOptions.parse(self.options, streaming=True), _arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = WriteOptions.parse(self.options)
        _check_write(schema, options, overwrite)
        return RocketMQBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = WriteOptions.parse(self.options)
        _check_write(schema, options, overwrite)
        return RocketMQStreamWriter(options)


class RocketMQPushdownDataSource(RocketMQDataSource):
    """The same, for sessions in which Spark hands the conditions of a query to Python data sources."""

    def reader(self, schema: StructType) -> RocketMQBatchReader:
        return RocketMQPushdownReader(ReadOptions.parse(self.options, streaming=False), _arrow_schema(schema))


def register(spark: SparkSession) -> None:
    """Makes `format("rocketmq")` known to `spark`.

    Conditions on topic, brokerName, queueId, queueOffset and storeTimestamp spare reading when
    spark.sql.python.filterPushdown.enabled is on by now, as `session_builder` sets it; without it Spark does not even
    allow a reader to offer that.
    """
    pushes = spark.conf.get(FILTER_PUSHDOWN, "false") == "true"
    spark.dataSource.register(RocketMQPushdownDataSource if pushes else RocketMQDataSource)


def _arrow_schema(schema: StructType) -> pa.Schema:
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise ConfigError(f"no column {field.name!r} in a rocketmq read; there are {', '.join(COLUMNS)}")
        if field.dataType != kind:
            raise ConfigError(f"column {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}")
    if not schema.fields:
        raise ConfigError("a rocketmq read needs at least one column")
    return to_arrow_schema(schema, timezone="UTC")


def _check_write(schema: StructType, options: WriteOptions, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError('a topic can\'t be overwritten: use mode("append")')
    check_columns(schema, options)
