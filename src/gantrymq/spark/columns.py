"""The columns of `gantrymq.arrow.columns` with Spark's types, and types without collations."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from gantrymq.arrow.columns import READ_COLUMNS, WRITE_COLUMNS
from gantrymq.spark.versions import from_arrow_type

#: {column: its type in a read}, in the order of a read.
READ_TYPES: dict[str, DataType] = {name: from_arrow_type(column.kind) for name, column in READ_COLUMNS.items()}
#: {column: the types that a write accepts}.
WRITE_TYPES: dict[str, tuple[DataType, ...]] = {
    name: tuple(map(from_arrow_type, column.written_as)) for name, column in WRITE_COLUMNS.items()
}


def without_collation(kind: DataType) -> DataType:
    """Returns the type without collations, which do not change the Arrow data."""
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
    """Returns the field with this name and without collations."""
    return StructField(name, without_collation(field.dataType), field.nullable)
