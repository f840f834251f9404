"""Converts a JSON Schema to a type of Spark.

| JSON Schema | Spark |
|---|---|
| object with properties | struct; fields that aren't required, or may be null, are nullable |
| object with additionalProperties | map with string keys |
| array | array |
| integer, number, boolean | bigint, double, boolean |
| string with the format date-time, with the format date | timestamp, date |
| other strings | string |

Other schemas have no type in Spark. Values are only checked against the type, not against the schema.
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
    """Returns the type for the text of a JSON Schema. Raises ConfigError if Spark has no such type."""
    try:
        schema = json.loads(text)
    except ValueError as e:
        raise ConfigError(f"the JSON Schema of bodies is no JSON: {e}") from e
    return _Types(schema).of(schema, "value", ())[0]


class _Types:
    def __init__(self, root: Any) -> None:
        self._root = root

    def of(self, schema: Any, path: str, within: tuple[str, ...]) -> tuple[DataType, bool]:
        """Returns the type, and whether null is valid. `within` has the references that led to this schema."""
        if not isinstance(schema, dict):
            raise _untyped(path, "may be anything")
        if (reference := schema.get("$ref")) is not None:
            if reference in within:
                raise _untyped(path, f"is a {reference} within itself")
            return self.of(self._referenced(reference, path), path, (*within, reference))
        for name in ("oneOf", "anyOf"):
            if name in schema:
                others = [branch for branch in schema[name] if branch != {"type": "null"}]
                if len(others) != 1:
                    raise _untyped(path, f"has an {name} of several types")
                kind, _ = self.of(others[0], path, within)
                return kind, len(others) < len(schema[name])
        names = schema.get("type", "object" if "properties" in schema else None)
        others = [name for name in (names if isinstance(names, list) else [names]) if name != "null"]
        if len(others) != 1:
            raise _untyped(path, "has several types")
        return self._single(others[0], schema, path, within), isinstance(names, list) and "null" in names

    def _single(self, name: Any, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> DataType:
        if name == "object":
            return self._object(schema, path, within)
        if name == "array":
            kind, has_nulls = self.of(schema.get("items"), f"{path}[]", within)
            return ArrayType(kind, has_nulls)
        if name == "string":
            return _OF_FORMAT.get(schema.get("format", ""), StringType())
        if name not in _SIMPLE:
            raise _untyped(path, "has no type" if name is None else f"is {name}")
        return _SIMPLE[name]

    def _object(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> DataType:
        properties = schema.get("properties")
        if properties:
            required = schema.get("required", ())
            fields = []
            for name, of_property in properties.items():
                kind, has_nulls = self.of(of_property, f"{path}.{name}", within)
                fields.append(StructField(name, kind, has_nulls or name not in required))
            return StructType(fields)
        more = schema.get("additionalProperties")
        if not isinstance(more, dict):
            raise _untyped(path, "is an object without properties")
        kind, has_nulls = self.of(more, f"{path}[]", within)
        return MapType(StringType(), kind, has_nulls)

    def _referenced(self, reference: str, path: str) -> Any:
        if not reference.startswith("#"):
            raise _untyped(path, f"refers to {reference}, another schema")
        found = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found


def _untyped(path: str, why: str) -> ConfigError:
    return ConfigError(f'{path} {why}, for which Spark has no type: name the columns, .schema("value STRUCT<...>")')
