"""The schemas of a read: Spark's default schema, and the Arrow schema for the schema of the query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructField, StructType

from gantrymq.arrow.columns import BODY, BODY_ERROR, PROPERTIES, READ_COLUMNS, VALUE, proper_name
from gantrymq.errors import ConfigError
from gantrymq.spark.bodies.body_format import BodyOptions
from gantrymq.spark.columns import READ_TYPES, plain_field
from gantrymq.spark.versions import to_arrow_schema


def default_schema(
    *,
    include_properties: bool,
    include_body_error: bool,
    property_columns: Iterable[str] = (),
    body: BodyOptions | None = None,
    columns: Sequence[str] = (),
) -> StructType | str:
    """Returns the schema of a read if the query has none. `columns` selects columns; empty means the default.

    The schema is DDL if the options have DDL, which only Spark can parse. With a `body`, the column `value` replaces
    the column `body`. If `include_body_error` is true, the schema has both. Raises ConfigError for an invalid body
    schema, and for an unknown column.
    """
    is_included = {
        PROPERTIES: include_properties,
        BODY_ERROR: include_body_error,
        BODY: body is None or include_body_error,
    }
    kinds: dict[str, DataType | str] = dict(READ_TYPES)
    kinds |= dict.fromkeys(property_columns, StringType())
    if body is not None:
        kinds[VALUE] = body.column_type()
    names = [proper_name(name, kinds) for name in columns] or [name for name in kinds if is_included.get(name, True)]
    if unknown := [name for name in names if name not in kinds]:
        raise ConfigError(f"option columns: no column {unknown[0]!r} in this read; there are {', '.join(kinds)}")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"option columns: {twice[0]!r} is there twice")
    fields = [(name, kinds[name]) for name in names]
    if any(isinstance(kind, str) for _, kind in fields):
        return ", ".join(f"`{name.replace('`', '``')}` {_ddl(kind)}" for name, kind in fields)
    return StructType([StructField(name, kind) for name, kind in fields if isinstance(kind, DataType)])


def check_selected(schema: StructType, columns: Sequence[str]) -> None:
    """Raises ConfigError if the query has a schema with other columns than the option `columns`."""
    if columns and [name.lower() for name in schema.names] != [name.lower() for name in columns]:
        raise ConfigError(
            f"option columns has {', '.join(columns)}, but the schema of the query has {', '.join(schema.names)}: "
            "leave one of them out"
        )


def _ddl(kind: DataType | str) -> str:
    return kind if isinstance(kind, str) else kind.simpleString()


def arrow_schema(
    schema: StructType, property_columns: Iterable[str] = (), body: BodyOptions | None = None
) -> pa.Schema:
    """Returns the Arrow schema of a read.

    Args:
        schema: The schema of the query. Names can be in any case, and strings can have collations.
        property_columns: Additional columns, each with one property.
        body: If given, the read has the column `value`.

    Raises:
        ConfigError: A column is unknown, duplicate, not nullable or of another type.
    """
    names = (*READ_COLUMNS, VALUE, *property_columns)
    fields = [plain_field(field, proper_name(field.name, names)) for field in schema.fields]
    kinds = dict(READ_TYPES)
    kinds |= dict.fromkeys(property_columns, StringType())
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
            # Spark does not check the schema: it would read a null as an empty text, or fail the query.
            raise ConfigError(f"column {field.name} is not null in the schema: leave that out, as messages may lack it")
    if not fields:
        raise ConfigError("a rocketmq read needs at least one column")
    columns = to_arrow_schema(StructType(fields))
    if body is not None and VALUE in columns.names:
        # Only called for its check: it raises an error on the driver if the format doesn't support the type.
        body.decoder(columns.field(VALUE).type)
    return columns
