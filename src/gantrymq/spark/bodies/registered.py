"""Loads schemas and their references from a registry, and decodes bodies that begin with the id of their schema.

- Avro: each body is decoded with its own schema, and resolved to the schema of the read (Avro's schema resolution).
- Protobuf: bodies are decoded as the message type of the read. If the file of this type is from the registry, each
  body's own file is used to check that the body has this type.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from pyspark.sql.types import DataType

from gantrymq.arrow.body_values import BodyFormat, DecodeBody
from gantrymq.codecs.registry.avro_schemas import avro_schema
from gantrymq.codecs.registry.client import RegisteredSchema, SchemaRegistry, schema_of_body
from gantrymq.codecs.registry.protobuf_files import descriptor_set, file_of, messages_of, parse_file
from gantrymq.codecs.registry.schema_cache import SchemaCache
from gantrymq.codecs.registry.settings import RegistrySettings
from gantrymq.codecs.registry.wire_format import split, split_indexes
from gantrymq.errors import CodecError, ConfigError
from gantrymq.spark.bodies.registry_options import RegistryOptions


def schema_of_subject(options: RegistryOptions, body_format: BodyFormat) -> tuple[bytes, int]:
    """Returns the schema of the subject, and its id. For protobuf, the schema is a descriptor set.

    Raises:
        ConfigError: The registry lacks the schema, the schema has another format, or an option is wrong.
        ClientError: The registry doesn't respond.
        CodecError: The schema is invalid.
    """
    subject = options.required_subject()
    with closing(SchemaRegistry(options.connection)) as registry:
        found = registry.subject_schema(subject, options.version)
        if found.kind != body_format.upper():
            raise ConfigError(
                f"the schema of subject {subject} is {found.kind}, not {body_format} as in option bodyFormat"
            )
        return _schema_text(registry, found, subject), found.id


def type_of_subject(settings: RegistrySettings, subject: str) -> DataType:
    """Returns the type of the column `value` for the latest schema of a subject. Raises as `schema_of_subject` does."""
    with closing(SchemaRegistry(settings)) as registry:
        found = registry.subject_schema(subject, None)
        kind = found.kind
        if kind not in ("AVRO", "JSON", "PROTOBUF"):
            raise ConfigError(f"the schema of subject {subject} has the type {kind!r}, not AVRO, JSON or PROTOBUF")
        schema = _schema_text(registry, found, subject)
    if kind == "AVRO":
        from gantrymq.spark.bodies.avro_bodies import avro_bodies

        return avro_bodies(schema.decode())[0]
    if kind == "JSON":
        from gantrymq.spark.bodies.json_schema import type_of_json_schema

        return type_of_json_schema(schema.decode())
    from gantrymq.codecs.registry.protobuf_files import last_file, only_message
    from gantrymq.spark.bodies.protobuf_bodies import protobuf_bodies

    return protobuf_bodies(schema, only_message(last_file(schema), settings.names))[0]


def _schema_text(registry: SchemaRegistry, found: RegisteredSchema, subject: str) -> bytes:
    """Returns a schema with its references. For protobuf, it is a descriptor set."""
    if found.kind == "AVRO":
        return json.dumps(avro_schema(registry, found, f"the schema of subject {subject}")).encode()
    if found.kind == "PROTOBUF":
        serialized = registry.schema(found.id, serialized=True)
        return descriptor_set(registry, found if serialized is None else serialized)
    return found.text.encode()


# -- Avro ---------------------------------------------------------------------------------------------------------


def registered_avro(options: RegistryOptions, reader: str) -> DecodeBody:
    """Returns a decoder for bodies that begin with the id of their schema. Decoded values have the schema `reader`."""
    from gantrymq.codecs.avro import AvroCodec
    from gantrymq.spark.bodies.avro_bodies import without_other_logical_types

    registry = SchemaRegistry(options.connection)
    read_as = without_other_logical_types(json.loads(reader))

    def load(schema_id: int) -> RegisteredSchema:
        return schema_of_body(registry, schema_id, "AVRO")

    def decoder(schema_id: int, found: RegisteredSchema) -> DecodeBody:
        written_as = avro_schema(registry, found, f"schema {schema_id}")
        return AvroCodec(without_other_logical_types(written_as), reader=read_as).decode

    decoders = SchemaCache(load, decoder)

    def decode(body: bytes) -> Any:
        schema_id, rest = split(body, registry.names)
        found = decoders.cached(schema_id) or decoders.get(schema_id, time.monotonic())
        return found(rest)

    return decode


# -- protobuf -----------------------------------------------------------------------------------------------------


def registered_protobuf(
    options: RegistryOptions, descriptors: bytes, message: str, decode: DecodeBody, *, is_registered: bool
) -> DecodeBody:
    """Returns a decoder for bodies that begin with the id of their file and the path of their message.

    The message must be `message`. If `is_registered` is true, the descriptors are from the registry, and the decoder
    requests the files of other ids from the registry. Otherwise it assumes that messages have the same paths in all
    files.
    """
    registry = SchemaRegistry(options.connection)
    own = messages_of(file_of(descriptors, message)[0])

    def load(schema_id: int) -> RegisteredSchema:
        return schema_of_body(registry, schema_id, "PROTOBUF", serialized=True)

    def names_in(schema_id: int, found: RegisteredSchema) -> Mapping[tuple[int, ...], str]:
        return messages_of(parse_file(found.text, registry.names))

    files = SchemaCache(load, names_in)

    def decode_named(body: bytes) -> Any:
        schema_id, rest = split(body, registry.names)
        path, data = split_indexes(rest)
        names = files.cached(schema_id) if is_registered else own
        if names is None:
            names = files.get(schema_id, time.monotonic())
        if names.get(path) != message:
            raise CodecError(f"the body is a {names.get(path, f'message at {list(path)}')}, not a {message}")
        return decode(data)

    return decode_named
