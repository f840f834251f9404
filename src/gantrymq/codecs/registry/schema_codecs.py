"""Codecs of one registered schema each: bodies without the prefix of the schema id."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import msgspec

from gantrymq.codecs.json import JsonCodec
from gantrymq.codecs.registry.client import RegisteredSchema, SchemaRegistry, references_of
from gantrymq.codecs.registry.field_errors import listed
from gantrymq.codecs.registry.wire_format import encode_indexes, split_indexes
from gantrymq.errors import CodecError, ConfigError
from gantrymq.logs import log_text


class SchemaCodec(ABC):
    """Encodes and decodes values of one schema."""

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Encodes a value. Raises CodecError."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Decodes a value. Raises CodecError."""

    @abstractmethod
    def from_json(self, value: Any, size: int) -> Any:
        """Converts decoded JSON of `size` bytes to a value. Raises CodecError with the field."""


class AvroSchemaCodec(SchemaCodec):
    """Encodes values of an Avro schema."""

    def __init__(self, registry: SchemaRegistry, schema: RegisteredSchema, name: str) -> None:
        from gantrymq.codecs.avro import AvroCodec
        from gantrymq.codecs.registry.avro_json import avro_from_json
        from gantrymq.codecs.registry.avro_schemas import avro_schema

        parsed = avro_schema(registry, schema, name)
        try:
            codec = AvroCodec(parsed)
            self._from_json = avro_from_json(parsed)
        except (CodecError, KeyError, RecursionError, TypeError) as e:
            problem = log_text(str(e) if isinstance(e, CodecError) else repr(e), 200)
            raise CodecError(f"{name} in the schema registry can't be used: {problem}: register it anew") from e
        self._encode, self._decode = codec.encode, codec.decode

    def encode(self, value: Any) -> bytes:
        return self._encode(value)

    def decode(self, data: bytes) -> Any:
        return self._decode(data)

    def from_json(self, value: Any, size: int) -> Any:
        return self._from_json(value, size)


class JsonSchemaCodec(SchemaCodec):
    """Encodes JSON values, and checks them against a JSON Schema. Decoding does not check them."""

    def __init__(self, registry: SchemaRegistry, schema: RegisteredSchema, name: str) -> None:
        from gantrymq.codecs.registry.json_schema_check import JsonSchemaCheck

        try:
            parsed = json.loads(schema.text)
            others = {key: json.loads(other.text) for key, (_, other) in references_of(registry, schema).items()}
        except (RecursionError, ValueError) as e:
            raise CodecError(f"{name}, or one that it refers to, is no JSON: {e}: register it anew") from e
        self._check = JsonSchemaCheck(parsed, others)
        self._codec = JsonCodec(object)

    def encode(self, value: Any) -> bytes:
        data = self._codec.encode(value)
        # Checks the JSON that a reader receives: the value can have tuples, datetimes or Structs.
        try:
            encoded = msgspec.json.decode(data)
        except RecursionError as e:
            raise CodecError("the value is nested too deeply") from e
        self._check(encoded, len(data))
        return data

    def decode(self, data: bytes) -> Any:
        return self._codec.decode(data)

    def from_json(self, value: Any, size: int) -> Any:
        return value


class Encodes(NamedTuple):
    """The full name of the protobuf message to encode; None if the file has only one."""

    message: str | None


class ProtobufSchemaCodec(SchemaCodec):
    """Encodes and decodes messages of a protobuf file. Without `encodes`, it only decodes."""

    def __init__(self, registry: SchemaRegistry, schema: RegisteredSchema, name: str, encodes: Encodes | None) -> None:
        from gantrymq.codecs.registry.protobuf_files import descriptor_pool, file_set, messages_of, only_message

        references = references_of(registry, schema, serialized=True)
        try:
            files = file_set(schema, references, registry.names)
            self._pool = descriptor_pool(files)
        except ConfigError as e:
            raise CodecError(f"{name} in the schema registry is no usable protobuf file: {e}") from e
        self._messages = messages_of(files.file[-1])
        #: Codecs by the path of the message in the file.
        self._codecs: dict[tuple[int, ...], Any] = {}
        self._path: tuple[int, ...] = ()
        if encodes is not None:
            message = encodes.message or only_message(files.file[-1], registry.names)
            self._path = self._path_of(message, registry.names.message)

    def encode(self, value: Any) -> bytes:
        codec = self._codec(self._path)
        if isinstance(value, dict):
            value = self._parsed(value)
        elif getattr(getattr(value, "DESCRIPTOR", None), "full_name", None) == self._messages[self._path]:
            from gantrymq.codecs.protobuf import ProtobufCodec

            # Also a class that protoc generated for the same message.
            codec = ProtobufCodec(type(value))
        return encode_indexes(self._path) + bytes(codec.encode(value))

    def decode(self, data: bytes) -> Any:
        path, rest = split_indexes(data)
        if path not in self._messages:
            raise CodecError(f"the schema has no message at {list(path)}, which the body names")
        return self._codec(path).decode(rest)

    def from_json(self, value: Any, size: int) -> Any:
        return self._parsed(value)

    def _parsed(self, value: Any) -> Any:
        from google.protobuf import json_format

        try:
            return json_format.ParseDict(value, self._class(self._path)())
        except (json_format.ParseError, AttributeError, RecursionError, TypeError, ValueError) as e:
            raise CodecError(f"no {self._messages[self._path]}: {' '.join(str(e).split())}") from e

    def _path_of(self, message: str, argument: str) -> tuple[int, ...]:
        for path, found in self._messages.items():
            if found == message:
                return path
        raise ConfigError(f"{argument}: the schema has no message {message}, but {listed(self._messages.values())}")

    def _codec(self, path: tuple[int, ...]) -> Any:
        from gantrymq.codecs.protobuf import ProtobufCodec

        if path not in self._codecs:
            self._codecs[path] = ProtobufCodec(self._class(path))
        return self._codecs[path]

    def _class(self, path: tuple[int, ...]) -> Any:
        """Returns the class of a message: always the same one, because values of another class are refused."""
        from google.protobuf import message_factory

        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(self._messages[path]))


def schema_codec(
    registry: SchemaRegistry, schema: RegisteredSchema, schema_id: int, encodes: Encodes | None = None
) -> SchemaCodec:
    """Returns the codec of a schema. Without `encodes`, it only decodes.

    Raises CodecError for an invalid or unsupported schema, ConfigError for an unknown message, and MissingExtra.
    """
    name = f"schema {schema_id}"
    if schema.kind == "AVRO":
        return AvroSchemaCodec(registry, schema, name)
    if schema.kind == "JSON":
        return JsonSchemaCodec(registry, schema, name)
    if schema.kind == "PROTOBUF":
        from gantrymq.codecs import protobuf  # noqa: F401  # raises MissingExtra

        serialized = registry.schema(schema_id, serialized=True)
        return ProtobufSchemaCodec(registry, schema if serialized is None else serialized, name, encodes)
    raise CodecError(f"{name} has the type '{log_text(schema.kind, 50)}', not AVRO, JSON or PROTOBUF")
