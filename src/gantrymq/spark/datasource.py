"""`RocketMQDataSource`, the data source that Spark finds by the name `rocketmq`."""

from __future__ import annotations

from importlib.util import find_spec

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamReader
from pyspark.sql.types import StructType

from gantrymq.arrow.body_values import CorruptBodies
from gantrymq.arrow.samples import newest_bodies
from gantrymq.codecs.json_types import DEFAULT_SAMPLE
from gantrymq.errors import ConfigError
from gantrymq.spark.bodies.body_format import INFER
from gantrymq.spark.legacy_stream_reader import LegacyStreamReader
from gantrymq.spark.options import ReadOptions, WriteOptions
from gantrymq.spark.read_schema import arrow_schema, check_selected, default_schema
from gantrymq.spark.reader import RocketMQBatchReader, RocketMQPushdownReader, RocketMQStreamReader
from gantrymq.spark.store.datasource import RocketMQStoreDataSource
from gantrymq.spark.versions import HAS_ADMISSION_CONTROL, HAS_FILTERS, DataSourceStreamArrowWriter
from gantrymq.spark.write_schema import check_columns
from gantrymq.spark.writer import RocketMQBatchWriter, RocketMQStreamWriter

NAME = "rocketmq"
FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class RocketMQDataSource(DataSource):
    """Implements `format("rocketmq")` for `read`, `readStream`, `write` and `writeStream`.

    The module `options` describes every option. A read has the columns `columns.READ_COLUMNS` and the columns of the
    option propertyColumns. It has `properties` only with includeProperties. `.schema("body binary, tags string")`
    selects columns; the others then cost nothing. A write accepts `columns.WRITE_COLUMNS`.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType | str:
        options = ReadOptions.parse(self.options)
        body = options.body
        if body is not None and body.is_inferred:
            body = body.with_sample(newest_bodies(options, DEFAULT_SAMPLE), "the topic")
        return default_schema(
            include_properties=options.include_properties,
            include_body_error=options.corrupt_bodies is CorruptBodies.NULL,
            property_columns=options.property_columns,
            body=body,
            columns=options.columns,
        )

    def reader(self, schema: StructType) -> RocketMQBatchReader:
        options = ReadOptions.parse(self.options, streaming=False)
        return RocketMQBatchReader(options, _columns(schema, options), schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader = RocketMQStreamReader if HAS_ADMISSION_CONTROL else LegacyStreamReader
        options = ReadOptions.parse(self.options, streaming=True)
        if options.body is not None and options.body.is_inferred:
            # After a restart, the sample could have other fields than the tables and the state of the query.
            raise ConfigError(
                f"option bodySchema: {INFER} is for batch reads: set the DDL that 'gantry schema infer' writes"
            )
        return reader(options, _columns(schema, options), schema.names)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = WriteOptions.parse(self.options, streaming=False)
        _check_write(schema, options, overwrite)
        return RocketMQBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = WriteOptions.parse(self.options, streaming=True)
        _check_write(schema, options, overwrite)
        return RocketMQStreamWriter(options)


class RocketMQPushdownDataSource(RocketMQDataSource):
    """A RocketMQDataSource for sessions with filter pushdown to Python data sources."""

    def reader(self, schema: StructType) -> RocketMQBatchReader:
        options = ReadOptions.parse(self.options, streaming=False)
        return RocketMQPushdownReader(options, _columns(schema, options), schema.names)


def register(spark: SparkSession) -> None:
    """Registers `format("rocketmq")` and `format("rocketmq-store")` with a session.

    If spark.sql.python.filterPushdown.enabled is on before this call, conditions on topic, brokerName, queueId,
    queueOffset, storeTimestamp and tags reduce the messages that a query reads (Spark 4.1 and later). The setting is
    off by default: Spark keeps the conditions of a DataFrame's first query, so that later queries of the DataFrame lack
    rows. While the setting is off, Spark rejects readers that support such conditions.

    Raises AnalysisException if Spark 4.0 has another data source of one of these names.
    """
    pushes = HAS_FILTERS and spark.conf.get(FILTER_PUSHDOWN, "false") == "true"
    for source in (RocketMQPushdownDataSource if pushes else RocketMQDataSource, RocketMQStoreDataSource):
        try:
            spark.dataSource.register(source)
        except AnalysisException as e:
            # Spark 4.0 keeps the sources that it has found itself: the same classes, in modules such as
            # `pyspark_rocketmq`. If there is no such module, it has a source of another package.
            found_by_spark = find_spec("pyspark_" + source.name().replace("-", "_")) is not None
            if e.getCondition() != "DATA_SOURCE_ALREADY_EXISTS" or not found_by_spark:
                raise


def _columns(schema: StructType, options: ReadOptions) -> pa.Schema:
    check_selected(schema, options.columns)
    return arrow_schema(schema, options.property_columns, options.body)


def _check_write(schema: StructType, options: WriteOptions, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError('a topic can\'t be overwritten: use mode("append")')
    check_columns(schema, options)
