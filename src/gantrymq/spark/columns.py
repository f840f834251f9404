"""The columns of a read, of brokers or of a store's files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
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
from gantrymq.spark.bodies.body_format import VALUE, BodyOptions
from gantrymq.spark.versions import to_arrow_schema

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
    "bodyError": StringType(),
}


def proper_name(name: str, columns: Iterable[str] = (*COLUMNS, VALUE)) -> str:
    """The spelling of `name` in `columns`, because Spark's names are case-insensitive. Other names stay unchanged."""
    return next((column for column in columns if column.lower() == name.lower()), name)


def without_collation(kind: DataType) -> DataType:
    """The type without collations. The Arrow data is the same with and without them."""
    match kind:
        case StringType():
            return StringType()
        case ArrayType():
            return ArrayType(without_collation(kind.elementType), kind.containsNull)
        case MapType():
            key, value = without_collation(kind.keyType), without_collation(kind.valueType)
            return MapType(key, value, kind.valueContainsNull)
        case StructType():
            return StructType([plain_field(field, field.name) for field in kind.fields])
        case _:
            return kind


def plain_field(field: StructField, name: str) -> StructField:
    """The field with this name and without collations."""
    return StructField(name, without_collation(field.dataType), field.nullable)


def with_names(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """The same rows with these column names."""
    return rows if rows.schema.names == list(names) else pa.RecordBatch.from_arrays(rows.columns, names=list(names))


def default_schema(
    *,
    include_properties: bool,
    include_body_error: bool,
    property_columns: Iterable[str] = (),
    body: BodyOptions | None = None,
) -> StructType | str:
    """What a read has when no schema is asked for: DDL where the options have a schema as DDL, which only Spark reads.

    A body that is read as a value is there besides when the value may be missing. Raises ConfigError.
    """
    is_there = {
        "properties": include_properties,
        "bodyError": include_body_error,
        "body": body is None or include_body_error,
    }
    kinds = COLUMNS | dict.fromkeys(property_columns, StringType())
    columns = {name: kind for name, kind in kinds.items() if is_there.get(name, True)}
    value = None if body is None else body.column_type()
    if isinstance(value, str):
        quoted = [f"`{name.replace('`', '``')}` {kind.simpleString()}" for name, kind in columns.items()]
        return ", ".join([*quoted, f"{VALUE} {value}"])
    if value is not None:
        columns[VALUE] = value
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def arrow_schema(
    schema: StructType, property_columns: Iterable[str] = (), body: BodyOptions | None = None
) -> pa.Schema:
    """The Arrow schema of a read. `schema` may have names in any case, and collated strings.

    `property_columns` are additional columns with single properties; a `body` adds the column of its value. Raises
    ConfigError for a column that is unknown, duplicate or of another type.
    """
    names = (*COLUMNS, VALUE, *property_columns)
    fields = [plain_field(field, proper_name(field.name, names)) for field in schema.fields]
    kinds = COLUMNS | dict.fromkeys(property_columns, StringType())
    if body is not None:
        if VALUE in property_columns:
            raise ConfigError(f"option propertyColumns: {VALUE!r} is the column of bodies with bodyFormat")
        kinds[VALUE] = body.type_of(next((field.dataType for field in fields if field.name == VALUE), None))
    seen: set[str] = set()
    for field in fields:
        kind = kinds.get(field.name)
        if kind is None:
            raise ConfigError(
                f"no column {field.name!r} in a rocketmq read; there are {', '.join(kinds)}, "
                "and properties that the option propertyColumns names"
            )
        if field.name in seen:
            raise ConfigError(f"column {field.name} is in the schema twice: name it once, and copy it in the query")
        seen.add(field.name)
        if field.dataType.simpleString() != kind.simpleString():
            raise ConfigError(f"column {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}")
        if not field.nullable or field.dataType != kind:
            # Spark takes the word for it: what isn't there would be read as an empty text, or end the query.
            raise ConfigError(f"column {field.name} is not null in the schema: leave that out, as messages may lack it")
    if not fields:
        raise ConfigError("a rocketmq read needs at least one column")
    columns = to_arrow_schema(StructType(fields))
    if body is not None and VALUE in columns.names:
        # What its format has nothing for is refused here, before a task meets it.
        body.decoder(columns.field(VALUE).type)
    return columns
