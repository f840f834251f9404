"""Codecs of one registered schema each: bodies without the prefix of the schema id."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from gantrymq.codecs.json import JsonCodec
from gantrymq.codecs.registry.client import RegisteredSchema, SchemaRegistry, references_of
from gantrymq.codecs.registry.wire_format import encode_indexes, split_indexes
from gantrymq.errors import CodecError


class SchemaCodec(ABC):
    """Encodes and decodes values of one schema."""

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Encodes a value. Raises CodecError."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Decodes a value. Raises CodecError."""

    @abstractmethod
    def from_json(self, value: Any) -> Any:
        """Converts decoded JSON to a value. Raises CodecError with the field."""


class AvroSchemaCodec(SchemaCodec):
    """Encodes values of an Avro schema."""

    def __init__(self, registry: SchemaRegistry, schema: RegisteredSchema, name: str) -> None:
        from gantrymq.codecs.avro import AvroCodec
        from gantrymq.codecs.registry.avro_json import avro_from_json
        from gantrymq.codecs.registry.avro_schemas import avro_schema

        parsed = avro_schema(registry, schema, name)
        codec = AvroCodec(parsed)
        self._encode, self._decode = codec.encode, codec.decode
        self._from_json = avro_from_json(parsed)

    def encode(self, value: Any) -> bytes:
        return self._encode(value)

    def decode(self, data: bytes) -> Any:
        return self._decode(data)

    def from_json(self, value: Any) -> Any:
        return self._from_json(value)


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
        # Checks what a reader receives: the value can be a dataclass or a Struct.
        self._check(value if isinstance(value, dict) else msgspec.json.decode(data))
        return data

    def decode(self, data: bytes) -> Any:
        return self._codec.decode(data)

    def from_json(self, value: Any) -> Any:
        return value


class ProtobufSchemaCodec(SchemaCodec):
    """Encodes messages of a protobuf file. `message` is the full name of the message to encode."""

    def __init__(self, registry: SchemaRegistry, schema: RegisteredSchema, message: str | None) -> None:
        from google.protobuf import descriptor_pb2

        from gantrymq.codecs.registry.protobuf_files import descriptor_set, messages_of

        self._names = registry.names
        self._descriptors = descriptor_set(registry, schema)
        self._messages = messages_of(descriptor_pb2.FileDescriptorSet.FromString(self._descriptors).file[-1])
        self._message = message
        #: Classes and codecs by the path of the message in the file.
        self._classes: dict[tuple[int, ...], Any] = {}
        self._codecs: dict[tuple[int, ...], Any] = {}

    def encode(self, value: Any) -> bytes:
        path, codec = self._to_encode()
        if isinstance(value, dict):
            value = self.from_json(value)
        elif getattr(getattr(value, "DESCRIPTOR", None), "full_name", None) == self._messages[path]:
            # Also a class that protoc generated for the same message.
            return encode_indexes(path) + bytes(value.SerializeToString())
        return encode_indexes(path) + bytes(codec.encode(value))

    def decode(self, data: bytes) -> Any:
        path, rest = split_indexes(data)
        if path not in self._messages:
            raise CodecError(f"the schema has no message at {list(path)}, which the body names")
        return self._codec(path).decode(rest)

    def from_json(self, value: Any) -> Any:
        from google.protobuf import json_format

        path, _ = self._to_encode()
        try:
            return json_format.ParseDict(value, self._class(path)())
        except (json_format.ParseError, AttributeError, RecursionError, TypeError, ValueError) as e:
            raise CodecError(f"no {self._messages[path]}: {' '.join(str(e).split())}") from e

    def _to_encode(self) -> tuple[tuple[int, ...], Any]:
        """Returns the path and the codec of the message to encode."""
        from gantrymq.codecs.registry.protobuf_files import only_message

        name = self._message or only_message(self._descriptors, self._names)
        for path, found in self._messages.items():
            if found == name:
                return path, self._codec(path)
        raise CodecError(f"the schema has no message {name}: it has {', '.join(self._messages.values())}")

    def _codec(self, path: tuple[int, ...]) -> Any:
        from gantrymq.codecs.protobuf import ProtobufCodec

        if path not in self._codecs:
            self._codecs[path] = ProtobufCodec(self._class(path))
        return self._codecs[path]

    def _class(self, path: tuple[int, ...]) -> Any:
        """Returns the class of a message: always the same one, because values of another class are refused."""
        from google.protobuf import message_factory

        from gantrymq.codecs.registry.protobuf_files import find_message

        if path not in self._classes:
            descriptor = find_message(self._descriptors, self._messages[path])
            self._classes[path] = message_factory.GetMessageClass(descriptor)
        return self._classes[path]


def schema_codec(
    registry: SchemaRegistry, schema: RegisteredSchema, schema_id: int, message: str | None = None
) -> SchemaCodec:
    """Returns the codec of a schema. Raises CodecError for an invalid or unsupported schema, and MissingExtra."""
    if schema.kind == "AVRO":
        return AvroSchemaCodec(registry, schema, f"schema {schema_id}")
    if schema.kind == "JSON":
        return JsonSchemaCodec(registry, schema, f"schema {schema_id}")
    if schema.kind == "PROTOBUF":
        from gantrymq.codecs import protobuf  # noqa: F401  # raises MissingExtra

        serialized = registry.schema(schema_id, serialized=True)
        return ProtobufSchemaCodec(registry, schema if serialized is None else serialized, message)
    raise CodecError(f"schema {schema_id} has the type {schema.kind!r}, not AVRO, JSON or PROTOBUF")
