"""Spark's type of a JSON Schema, as far as it has one.

    object with properties                  struct; what isn't required, or may be null, is null
    object with additionalProperties        map of strings
    array                                   array
    integer, number, boolean                bigint, double, boolean
    string                                  string; with the format date-time timestamp, with date date

Values aren't checked against the schema, only against the type.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gantrymq.errors import ConfigError

_SIMPLE: dict[str, DataType] = {"integer": LongType(), "number": DoubleType(), "boolean": BooleanType()}
_OF_FORMAT: dict[str, DataType] = {"date-time": TimestampType(), "date": DateType()}


def type_of_json_schema(text: str) -> DataType:
    """Raises ConfigError for what has no type in Spark."""
    try:
        schema = json.loads(text)
    except ValueError as e:
        raise ConfigError(f"the JSON Schema of bodies is no JSON: {e}") from e
    return _Types(schema).of(schema, "value", ())[0]


class _Types:
    def __init__(self, root: Any) -> None:
        self._root = root

    def of(self, schema: Any, place: str, within: tuple[str, ...]) -> tuple[DataType, bool]:
        """The type, and whether null is one of its values; `within` are the references on the way here."""
        if not isinstance(schema, dict):
            raise _untyped(place, "may be anything")
        if (reference := schema.get("$ref")) is not None:
            if reference in within:
                raise _untyped(place, f"is a {reference} within itself")
            return self.of(self._referenced(reference, place), place, (*within, reference))
        for name in ("oneOf", "anyOf"):
            if name in schema:
                others = [branch for branch in schema[name] if branch != {"type": "null"}]
                if len(others) != 1:
                    raise _untyped(place, f"has an {name} of several types")
                kind, _ = self.of(others[0], place, within)
                return kind, len(others) < len(schema[name])
        names = schema.get("type", "object" if "properties" in schema else None)
        others = [name for name in (names if isinstance(names, list) else [names]) if name != "null"]
        if len(others) != 1:
            raise _untyped(place, "has several types")
        return self._single(others[0], schema, place, within), isinstance(names, list) and "null" in names

    def _single(self, name: Any, schema: dict[str, Any], place: str, within: tuple[str, ...]) -> DataType:
        if name == "object":
            return self._object(schema, place, within)
        if name == "array":
            kind, has_nulls = self.of(schema.get("items"), f"{place}[]", within)
            return ArrayType(kind, has_nulls)
        if name == "string":
            return _OF_FORMAT.get(schema.get("format", ""), StringType())
        if name not in _SIMPLE:
            raise _untyped(place, "has no type" if name is None else f"is {name}")
        return _SIMPLE[name]

    def _object(self, schema: dict[str, Any], place: str, within: tuple[str, ...]) -> DataType:
        properties = schema.get("properties")
        if properties:
            required = schema.get("required", ())
            fields = []
            for name, of_property in properties.items():
                kind, has_nulls = self.of(of_property, f"{place}.{name}", within)
                fields.append(StructField(name, kind, has_nulls or name not in required))
            return StructType(fields)
        more = schema.get("additionalProperties")
        if not isinstance(more, dict):
            raise _untyped(place, "is an object without properties")
        kind, has_nulls = self.of(more, f"{place}[]", within)
        return MapType(StringType(), kind, has_nulls)

    def _referenced(self, reference: str, place: str) -> Any:
        if not reference.startswith("#"):
            raise _untyped(place, f"refers to {reference}, another schema")
        found = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found


def _untyped(place: str, why: str) -> ConfigError:
    return ConfigError(f'{place} {why}, for which Spark has no type: name the columns, .schema("value STRUCT<...>")')
