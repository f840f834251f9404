"""Avro schemas from a registry, with the types of their references."""

from __future__ import annotations

import json
from typing import Any

from gantrymq.codecs.registry.client import RegisteredSchema, SchemaRegistry, references_of
from gantrymq.errors import CodecError


def avro_schema(registry: SchemaRegistry, schema: RegisteredSchema, name: str) -> Any:
    """Returns the parsed schema. Each referenced type is inserted at its first use.

    Raises CodecError for an invalid schema. The error has its `name` or the reference.
    """
    parsed = _parsed(schema, name)
    definitions: dict[str, Any] = {}
    for reference, other in references_of(registry, schema).values():
        title = f"version {reference.version} of subject {reference.subject}"
        found = definitions[reference.name] = _parsed(other, title)
        if not isinstance(found, dict):
            raise _is_none(title, "it has no name by which another schema can refer to it")
    try:
        return _with_definitions(parsed, "", definitions)
    except (AttributeError, KeyError, RecursionError, TypeError) as e:
        raise _is_none(f"{name}, or one that it refers to,", repr(e)) from e


def _parsed(schema: RegisteredSchema, name: str) -> Any:
    try:
        return json.loads(schema.text)
    except (RecursionError, ValueError) as e:
        raise _is_none(name, f"no JSON: {e}") from e


def _is_none(name: str, problem: str) -> CodecError:
    return CodecError(f"{name} in the schema registry is no Avro schema: {problem}: register it anew")


def _with_definitions(schema: Any, namespace: str, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, str):
        name = schema if "." in schema or not namespace else f"{namespace}.{schema}"
        if (definition := definitions.pop(name, None)) is None:
            return schema
        # An explicit namespace, because otherwise the surrounding namespace would apply.
        return _with_definitions({"namespace": "", **definition}, namespace, definitions)
    if isinstance(schema, list):
        return [_with_definitions(branch, namespace, definitions) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if "name" in schema and "type" in schema and isinstance(schema["type"], str):
        namespace = schema["name"].rpartition(".")[0] or schema.get("namespace", namespace)
    whole = dict(schema)
    for key in ("type", "items", "values"):
        if key in schema:
            whole[key] = _with_definitions(schema[key], namespace, definitions)
    if "fields" in schema:
        whole["fields"] = [
            {**field, "type": _with_definitions(field["type"], namespace, definitions)} for field in schema["fields"]
        ]
    return whole
