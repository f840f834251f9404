"""Loads schemas and their references from a registry, and decodes bodies that begin with the id of their schema.

- Avro: each body is decoded with its own schema, and resolved to the schema of the read (Avro's schema resolution).
- Protobuf: bodies are decoded as the message type of the read. If the file of this type is from the registry, each
  body's own file is used to check that the body has this type.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import closing
from importlib import import_module
from typing import Any

from gantrymq.arrow.body_values import BodyFormat, DecodeBody
from gantrymq.errors import CodecError, ConfigError
from gantrymq.spark.bodies.confluent import split, split_indexes
from gantrymq.spark.bodies.registry import RegisteredSchema, SchemaRegistry
from gantrymq.spark.bodies.registry_options import RegistryOptions

_WELL_KNOWN = "google/protobuf/"


def schema_of_subject(options: RegistryOptions, body_format: BodyFormat) -> tuple[bytes, int]:
    """Returns the schema of the subject, and its id. For protobuf, the schema is a descriptor set.

    Raises:
        ConfigError: The registry lacks the schema, the schema has another format, or an option is wrong.
        ClientError: The registry doesn't respond.
        CodecError: The schema is invalid.
    """
    subject = options.required_subject()
    with closing(SchemaRegistry(options)) as registry:
        return _schema_of_subject(registry, subject, options.version, body_format)


def _schema_of_subject(
    registry: SchemaRegistry, subject: str, version: int | None, body_format: BodyFormat
) -> tuple[bytes, int]:
    found = registry.subject_schema(subject, version)
    if found.kind != body_format.upper():
        raise ConfigError(f"the schema of subject {subject} is {found.kind}, not {body_format} as in option bodyFormat")
    if body_format is BodyFormat.AVRO:
        return json.dumps(avro_schema(registry, found, f"the schema of subject {subject}")).encode(), found.id
    if body_format is BodyFormat.PROTOBUF:
        serialized = registry.schema(found.id, serialized=True)
        return descriptor_set(registry, found if serialized is None else serialized), found.id
    return found.text.encode(), found.id


# -- Avro ---------------------------------------------------------------------------------------------------------


def avro_schema(registry: SchemaRegistry, schema: RegisteredSchema, name: str) -> Any:
    """Returns the parsed schema. Each referenced type is inserted at its first use.

    Raises CodecError for an invalid schema. The error has its `name` or the reference.
    """
    parsed = _parsed(schema, name)
    definitions: dict[str, Any] = {}
    left = list(schema.references)
    while left:
        reference = left.pop()
        if reference.name not in definitions:
            other = registry.referenced(reference)
            title = f"version {reference.version} of subject {reference.subject}"
            found = definitions[reference.name] = _parsed(other, title)
            if not isinstance(found, dict):
                raise _is_none(title, "it has no name by which another schema can refer to it")
            left += other.references
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


def registered_avro(options: RegistryOptions, reader: str) -> DecodeBody:
    """Returns a decoder for bodies that begin with the id of their schema. Decoded values have the schema `reader`."""
    from gantrymq.codecs.avro import AvroCodec
    from gantrymq.spark.bodies.avro_bodies import without_other_logical_types

    registry = SchemaRegistry(options)
    read_as = without_other_logical_types(json.loads(reader))
    decoders: dict[int, DecodeBody] = {}

    def decoder(schema_id: int, found: RegisteredSchema) -> DecodeBody:
        try:
            written_as = avro_schema(registry, found, f"schema {schema_id}")
            return AvroCodec(without_other_logical_types(written_as), reader=read_as).decode
        except CodecError as e:
            # Caches the error, too, because a schema never changes.
            problem = f"schema {schema_id}, which the body names, can't be used: {e}"

        def refuse(body: bytes) -> Any:
            raise CodecError(problem)

        return refuse

    def decode(body: bytes) -> Any:
        schema_id, rest = split(body)
        found = decoders.get(schema_id)
        if found is None:
            found = decoders[schema_id] = decoder(schema_id, _of_body(registry, schema_id, "AVRO"))
        return found(rest)

    return decode


# -- protobuf -----------------------------------------------------------------------------------------------------


def descriptor_set(registry: SchemaRegistry, schema: RegisteredSchema) -> bytes:
    """Returns the descriptor set of a file in the registry, with its imports. The file itself is the last one."""
    from google.protobuf import descriptor_pb2

    files: dict[str, Any] = {}

    def add(name: str, of: RegisteredSchema) -> None:
        file = _file(of.text)
        file.name = name
        for reference in of.references:
            if reference.name not in files:
                add(reference.name, registry.referenced(reference, serialized=True))
        for imported in file.dependency:
            if imported not in files:
                add_well_known(imported, name)
        files[name] = file

    def add_well_known(name: str, by: str) -> None:
        try:
            if not name.startswith(_WELL_KNOWN):
                raise ImportError(name)
            module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        except ImportError as e:
            raise ConfigError(
                f"{by} of the schema registry imports {name}, which isn't among its references: "
                "give a descriptor set by option bodySchemaFile"
            ) from e
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for imported in file.dependency:
            if imported not in files:
                add_well_known(imported, name)
        files[name] = file

    add("registered.proto", schema)
    return bytes(descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString())


def _file(text: str) -> Any:
    """Decodes a file descriptor from Base64."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        if not all(isinstance(name, str) for name in file.dependency):
            # protobuf returns bytes for text that is not UTF-8.
            raise ValueError("the name of an import is not UTF-8")
        return file
    except (ValueError, DecodeError) as e:
        # ValueError: also text that is not Base64.
        raise ConfigError(
            "the schema registry doesn't give protobuf's files as descriptors (format=serialized): "
            "give a descriptor set by option bodySchemaFile"
        ) from e


def messages_of(file: Any) -> dict[tuple[int, ...], str]:
    """Returns {path in the file: full name} for the messages of a file descriptor."""
    found: dict[tuple[int, ...], str] = {}

    def add(messages: Any, within: str, path: tuple[int, ...]) -> None:
        for number, message in enumerate(messages):
            name = f"{within}.{message.name}" if within else message.name
            found[(*path, number)] = name
            add(message.nested_type, name, (*path, number))

    add(file.message_type, file.package, ())
    return found


def file_of(descriptors: bytes, message: str) -> tuple[Any, tuple[int, ...]]:
    """Returns the file with the message in a descriptor set, and the path of the message in this file.

    Raises ConfigError if no file has it.
    """
    from google.protobuf import descriptor_pb2

    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        for path, name in messages_of(file).items():
            if name == message:
                return file, path
    raise ConfigError(f"the descriptor set has no message {message}: name it with its package")


def only_message(descriptors: bytes) -> str:
    """Returns the only message of the last file in a descriptor set. Raises ConfigError for several messages."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]
    names = [name for path, name in messages_of(file).items() if len(path) == 1]
    if len(names) != 1:
        raise ConfigError(f"option bodyMessage is required where there are several: {', '.join(names)}")
    return names[0]


def registered_protobuf(
    options: RegistryOptions, descriptors: bytes, message: str, decode: DecodeBody, *, is_registered: bool
) -> DecodeBody:
    """Returns a decoder for bodies that begin with the id of their file and the path of their message.

    The message must be `message`. If `is_registered` is true, the descriptors are from the registry, and the decoder
    requests the files of other ids from it. Otherwise it assumes that messages have the same paths in all files.
    """
    registry = SchemaRegistry(options)
    own = messages_of(file_of(descriptors, message)[0])
    files: dict[int, Mapping[tuple[int, ...], str]] = {}

    def decode_named(body: bytes) -> Any:
        schema_id, rest = split(body)
        path, data = split_indexes(rest)
        # Only ids that exist in the registry are cached, because corrupt bodies can have any number of other ids.
        names = files.get(schema_id) if is_registered else own
        if names is None:
            names = messages_of(_file(_of_body(registry, schema_id, "PROTOBUF", serialized=True).text))
            files[schema_id] = names
        if names.get(path) != message:
            raise CodecError(f"the body is a {names.get(path, f'message at {list(path)}')}, not a {message}")
        return decode(data)

    return decode_named


def _of_body(registry: SchemaRegistry, schema_id: int, kind: str, *, serialized: bool = False) -> RegisteredSchema:
    found = registry.schema(schema_id, serialized=serialized)
    if found is None:
        raise CodecError(f"the schema registry has no schema {schema_id}, which the body names")
    if found.kind != kind:
        raise CodecError(f"schema {schema_id}, which the body names, is {found.kind}, not {kind}")
    return found
