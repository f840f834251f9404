"""`check_columns` checks the schema of a write."""

from __future__ import annotations

from pyspark.sql.types import DataType, StructType

from gantrymq.arrow.columns import BODY, VALUE, proper_name
from gantrymq.arrow.row_messages import COLUMN_NAMES
from gantrymq.arrow.write_columns import check_column_names
from gantrymq.errors import ConfigError
from gantrymq.spark.columns import WRITE_TYPES, plain_field
from gantrymq.spark.options import WriteOptions


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises ConfigError for a column that a write doesn't accept, and if a required column is missing."""
    body = BODY if options.body is None else VALUE
    takes = [body, *(name for name in WRITE_TYPES if name != BODY)]
    columns = [plain_field(column, proper_name(column.name, COLUMN_NAMES)) for column in schema.fields]
    for column in columns:
        if options.body is not None and column.name == VALUE:
            options.body.check(column.dataType)
            continue
        kinds = WRITE_TYPES[column.name] if column.name in takes else None
        if kinds is None:
            raise ConfigError(
                f"a rocketmq write has no use for column {column.name!r}; it takes {', '.join(takes)}: "
                "select those, or put the others into body or properties"
            )
        if not any(_same_kind(column.dataType, kind) for kind in kinds):
            raise ConfigError(
                f"column {column.name} is {column.dataType.simpleString()}; a rocketmq write takes "
                f"{' or '.join(kind.simpleString() for kind in kinds)}"
            )
    check_column_names([column.name for column in columns], body, options)


def _same_kind(given: DataType, wanted: DataType) -> bool:
    """Whether the types are the same, regardless of nullability."""
    return given.simpleString() == wanted.simpleString()
