"""Writes types of Spark as DDL, without a JVM."""

from __future__ import annotations

import re

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from gantrymq.errors import ConfigError

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def fields_ddl(kind: DataType) -> str:
    """Returns the fields of a struct: `id BIGINT NOT NULL, tags ARRAY<STRING>`. Raises ConfigError for other types."""
    if not isinstance(kind, StructType):
        raise ConfigError(f"the schema is no record but {kind.simpleString()}: only records have columns")
    return ", ".join(f"{_name(field.name)} {_ddl(field.dataType)}{_nullability(field)}" for field in kind.fields)


def _ddl(kind: DataType) -> str:
    if isinstance(kind, StructType):
        fields = (f"{_name(field.name)}: {_ddl(field.dataType)}{_nullability(field)}" for field in kind.fields)
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    return kind.simpleString().upper()


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _nullability(field: StructField) -> str:
    return "" if field.nullable else " NOT NULL"
