"""Avro bodies: a binary-encoded value of one schema, without a header. Requires the extra `gantrymq[avro]`.

| Avro | Spark |
|---|---|
| record | struct |
| array, map | array, map with string keys |
| [null, X], in any order | X (other unions have no type in Spark) |
| enum, string | string |
| bytes, fixed | binary |
| int, long, float, double, boolean | the same type |
| date, timestamp-millis, timestamp-micros, decimal | date, timestamp, decimal |
| local-timestamp-millis, local-timestamp-micros | timestamp_ntz |

Other logical types are read as their underlying type. Every column is nullable.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from gantrymq.arrow.body_values import DecodeBody
from gantrymq.codecs.avro import AvroCodec
from gantrymq.errors import ConfigError

_PRIMITIVE: dict[str, DataType] = {
    "null": NullType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_LOGICAL: dict[tuple[str, str], DataType] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
#: The largest precision of a decimal in Spark.
_MOST_DIGITS = 38


def avro_bodies(text: str) -> tuple[DataType, DecodeBody]:
    """Returns the type of the column and the decoder, from the JSON of a schema.

    Raises:
        ConfigError: The schema is no JSON, or Spark has no type for it.
        CodecError: The schema is no Avro schema.
        MissingExtra: fastavro is not installed.
    """
    schema = _schema(text)
    codec = AvroCodec(without_other_logical_types(schema))
    return _Types().of(schema, "value", ""), codec.decode


def avro_codec(text: str) -> AvroCodec:
    """Returns a codec that encodes the values of a column. Raises as `avro_bodies` does."""
    return AvroCodec(without_other_logical_types(_schema(text)))


def _schema(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise ConfigError(f"the Avro schema of bodies is no JSON: {e}") from e


class _Types:
    """Converts schemas to Spark's types. `path` is the field in errors, `namespace` completes names without one."""

    def __init__(self) -> None:
        #: {full name: type}; None while the fields of the type are being converted.
        self._named: dict[str, DataType | None] = {}

    def of(self, schema: Any, path: str, namespace: str) -> DataType:
        if isinstance(schema, list):
            others = [branch for branch in schema if branch != "null"]
            if len(others) != 1:
                raise ConfigError(f"{path} is a union of {json.dumps(schema)}, for which Spark has no type")
            return self.of(others[0], path, namespace)
        if isinstance(schema, str):
            return _PRIMITIVE.get(schema) or self._reference(schema, path, namespace)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.of(kind, path, namespace)
        if (logical := _logical(schema)) is not None:
            return logical
        if kind == "array":
            return ArrayType(self.of(schema["items"], f"{path}[]", namespace))
        if kind == "map":
            return MapType(StringType(), self.of(schema["values"], f"{path}[]", namespace))
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(kind, schema, path, namespace)
        return self.of(kind, path, namespace)

    def _definition(self, kind: str, schema: dict[str, Any], path: str, namespace: str) -> DataType:
        name = _full_name(schema["name"], schema.get("namespace", namespace))
        self._named[name] = None
        found: DataType
        if kind == "enum":
            found = StringType()
        elif kind == "fixed":
            found = BinaryType()
        else:
            inner = name.rpartition(".")[0]
            fields = schema["fields"]
            found = StructType(
                [StructField(f["name"], self.of(f["type"], f"{path}.{f['name']}", inner)) for f in fields]
            )
        self._named[name] = found
        return found

    def _reference(self, name: str, path: str, namespace: str) -> DataType:
        found = self._named.get(_full_name(name, namespace))
        if found is None:
            raise ConfigError(f"{path} is a {name} within itself, for which Spark has no type")
        return found


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(schema: dict[str, Any]) -> DataType | None:
    kind, logical, precision = schema["type"], schema.get("logicalType"), schema.get("precision")
    is_decimal = logical == "decimal" and kind in ("bytes", "fixed")
    # By Avro's specification, a decimal with an invalid precision is read as its underlying type.
    if is_decimal and isinstance(precision, int) and 0 < precision <= _MOST_DIGITS:
        return DecimalType(precision, schema.get("scale", 0))
    return _LOGICAL.get((kind, str(logical)))


def without_other_logical_types(schema: Any) -> Any:
    """Returns the schema with only the logical types of the table above.

    For other logical types, such as UUIDs and times of day, fastavro returns values for which pyarrow has no column.
    """
    if isinstance(schema, list):
        return [without_other_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {
        key: without_other_logical_types(part) if key in ("type", "items", "values", "fields") else part
        for key, part in schema.items()
    }
    if isinstance(schema.get("type"), str) and _logical(schema) is None:
        parts.pop("logicalType", None)
    return parts
