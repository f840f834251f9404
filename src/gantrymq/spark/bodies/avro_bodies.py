"""Avro bodies: a value's binary encoding without a header, of one schema. The extra `gantrymq[avro]`.

    record                      struct
    array, map                  array, map of strings
    [null, X] in any order      X; other unions have no type in Spark
    enum, string                string
    bytes, fixed                binary
    int, long, float, double, boolean
    date, timestamp-millis, timestamp-micros, local-timestamp-..., decimal      what Spark calls so

Other logical types are read as what they are made of. Every column may be null.
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

from gantrymq.codecs.avro import AvroCodec
from gantrymq.errors import ConfigError
from gantrymq.spark.bodies.decoding import DecodeBody

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
#: Spark's most digits of a decimal.
_MOST_DIGITS = 38


def avro_bodies(text: str) -> tuple[DataType, DecodeBody]:
    """The column's type and the decoder, of a schema's JSON. Raises ConfigError for one that Spark has no type for.

    Raises CodecError for one that is none, MissingExtra without fastavro.
    """
    schema = _schema(text)
    codec = AvroCodec(without_other_logical_types(schema))
    return _Types().of(schema, "value", ""), codec.decode


def avro_codec(text: str) -> AvroCodec:
    """For the values of columns. Raises as `avro_bodies` does."""
    return AvroCodec(without_other_logical_types(_schema(text)))


def _schema(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise ConfigError(f"the Avro schema of bodies is no JSON: {e}") from e


class _Types:
    """Spark's types; `place` is where a schema stands, `namespace` the one that names in it are of."""

    def __init__(self) -> None:
        #: By full name; None for one whose fields are being looked at.
        self._named: dict[str, DataType | None] = {}

    def of(self, schema: Any, place: str, namespace: str) -> DataType:
        if isinstance(schema, list):
            others = [branch for branch in schema if branch != "null"]
            if len(others) != 1:
                raise ConfigError(f"{place} is a union of {json.dumps(schema)}, for which Spark has no type")
            return self.of(others[0], place, namespace)
        if isinstance(schema, str):
            return _PRIMITIVE.get(schema) or self._reference(schema, place, namespace)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.of(kind, place, namespace)
        if (logical := _logical(schema)) is not None:
            return logical
        if kind == "array":
            return ArrayType(self.of(schema["items"], f"{place}[]", namespace))
        if kind == "map":
            return MapType(StringType(), self.of(schema["values"], f"{place}[]", namespace))
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(kind, schema, place, namespace)
        return self.of(kind, place, namespace)

    def _definition(self, kind: str, schema: dict[str, Any], place: str, namespace: str) -> DataType:
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
                [StructField(f["name"], self.of(f["type"], f"{place}.{f['name']}", inner)) for f in fields]
            )
        self._named[name] = found
        return found

    def _reference(self, name: str, place: str, namespace: str) -> DataType:
        found = self._named.get(_full_name(name, namespace))
        if found is None:
            raise ConfigError(f"{place} is a {name} within itself, for which Spark has no type")
        return found


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(schema: dict[str, Any]) -> DataType | None:
    kind, logical, precision = schema["type"], schema.get("logicalType"), schema.get("precision")
    is_decimal = logical == "decimal" and kind in ("bytes", "fixed")
    # Where the precision is no number Avro wants the type read as what it is made of.
    if is_decimal and isinstance(precision, int) and 0 < precision <= _MOST_DIGITS:
        return DecimalType(precision, schema.get("scale", 0))
    return _LOGICAL.get((kind, str(logical)))


def without_other_logical_types(schema: Any) -> Any:
    """fastavro would make what pyarrow has no column for, such as UUIDs and times of a day."""
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
