"""Protobuf files from a registry, as descriptors, and the paths of their messages. Needs `gantrymq[protobuf]`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from gantrymq.codecs.registry.client import Reference, RegisteredSchema, SchemaRegistry, references_of
from gantrymq.codecs.registry.field_errors import listed
from gantrymq.codecs.registry.settings import OptionNames
from gantrymq.errors import ConfigError

_WELL_KNOWN = "google/protobuf/"


def descriptor_set(registry: SchemaRegistry, schema: RegisteredSchema) -> bytes:
    """Returns the descriptor set of a file in the registry, with its imports. The file itself is the last one."""
    return bytes(file_set(schema, references_of(registry, schema, serialized=True), registry.names).SerializeToString())


def file_set(
    schema: RegisteredSchema, others: Mapping[str, tuple[Reference, RegisteredSchema]], names: OptionNames
) -> Any:
    """Returns the descriptor set of a file and its imports, which are among `others`. The file itself is the last one.

    Raises ConfigError if a file is invalid, or an import is missing.
    """
    from google.protobuf import descriptor_pb2

    files: dict[str, Any] = {}
    begun: set[str] = set()

    def add(name: str, of: RegisteredSchema) -> None:
        begun.add(name)
        file = parse_file(of.text, names)
        file.name = name
        for reference in of.references:
            # A file within its own imports is left out; protobuf then refuses the descriptor set.
            if reference.name not in begun:
                add(reference.name, others[reference.name][1])
        for imported in file.dependency:
            if imported in others:
                if imported not in begun:
                    add(imported, others[imported][1])
            elif imported not in files:
                add_well_known(imported, name)
        files[name] = file

    def add_well_known(name: str, by: str) -> None:
        try:
            if not name.startswith(_WELL_KNOWN):
                raise ImportError(name)
            module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        except ImportError as e:
            raise ConfigError(
                f"{by} of the schema registry imports {name}, which isn't among its references: {names.descriptor_set}"
            ) from e
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for imported in file.dependency:
            if imported not in files:
                add_well_known(imported, name)
        files[name] = file

    add("registered.proto", schema)
    return descriptor_pb2.FileDescriptorSet(file=files.values())


def parse_file(text: str, names: OptionNames) -> Any:
    """Decodes a file descriptor from Base64. Raises ConfigError."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        if not all(isinstance(name, str) for name in file.dependency):
            # protobuf returns bytes for text that is not UTF-8.
            raise ValueError("the name of an import is not UTF-8")
        return file
    except (DecodeError, ValueError) as e:
        raise ConfigError(
            "the schema registry doesn't give protobuf's files as descriptors (format=serialized): "
            f"{names.descriptor_set}"
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

    Raises ConfigError if the descriptor set is invalid, or if no file has the message.
    """
    for file in _parsed_set(descriptors).file:
        for path, name in messages_of(file).items():
            if name == message:
                return file, path
    raise ConfigError(f"the descriptor set has no message {message}: name it with its package")


def last_file(descriptors: bytes) -> Any:
    """Returns the last file of a descriptor set: the file itself, after its imports. Raises ConfigError."""
    files = _parsed_set(descriptors).file
    if not files:
        raise ConfigError("the descriptor set has no file: write it by protoc --include_imports --descriptor_set_out")
    return files[-1]


def only_message(file: Any, names: OptionNames) -> str:
    """Returns the only message of a file descriptor. Raises ConfigError for several messages."""
    found = [name for path, name in messages_of(file).items() if len(path) == 1]
    if not found:
        raise ConfigError("the protobuf file in the schema registry has no message: register another one")
    if len(found) > 1:
        raise ConfigError(f"the file has several messages: give {names.message} ({listed(found)})")
    return found[0]


def descriptor_pool(files: Any) -> Any:
    """Returns a pool with the files of a descriptor set. Raises ConfigError for an invalid file."""
    from google.protobuf import descriptor_pool as pools

    pool = pools.DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
            # Without native code, protobuf checks a file when it is requested.
            pool.FindFileByName(file.name)
    except Exception as e:
        raise ConfigError(f"a file descriptor is invalid: {' '.join(str(e).split())}") from e
    return pool


def find_message(descriptors: bytes, message: str) -> Any:
    """Returns the descriptor of a message. Raises ConfigError if the descriptor set is invalid or lacks the message."""
    try:
        return descriptor_pool(_parsed_set(descriptors)).FindMessageTypeByName(message)
    except KeyError as e:
        raise ConfigError(f"the descriptor set has no message {message}: name it with its package") from e


def _parsed_set(descriptors: bytes) -> Any:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    except DecodeError as e:
        raise ConfigError(f"no descriptor set (protoc --include_imports --descriptor_set_out): {e}") from e
