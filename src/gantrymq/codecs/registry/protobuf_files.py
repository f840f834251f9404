"""Protobuf files from a registry, as descriptors, and the paths of their messages. Needs `gantrymq[protobuf]`."""

from __future__ import annotations

import base64
import binascii
from importlib import import_module
from typing import Any

from gantrymq.codecs.registry.client import RegisteredSchema, SchemaRegistry, references_of
from gantrymq.codecs.registry.settings import OptionNames
from gantrymq.errors import ConfigError

_WELL_KNOWN = "google/protobuf/"


def descriptor_set(registry: SchemaRegistry, schema: RegisteredSchema) -> bytes:
    """Returns the descriptor set of a file in the registry, with its imports. The file itself is the last one."""
    from google.protobuf import descriptor_pb2

    files: dict[str, Any] = {}
    others = references_of(registry, schema, serialized=True)
    begun: set[str] = set()

    def add(name: str, of: RegisteredSchema) -> None:
        begun.add(name)
        file = parse_file(of.text, registry.names)
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
                f"{by} of the schema registry imports {name}, which isn't among its references: "
                f"{registry.names.descriptor_set}"
            ) from e
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for imported in file.dependency:
            if imported not in files:
                add_well_known(imported, name)
        files[name] = file

    add("registered.proto", schema)
    return bytes(descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString())


def parse_file(text: str, names: OptionNames) -> Any:
    """Decodes a file descriptor from Base64. Raises ConfigError."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError) as e:
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

    Raises ConfigError if no file has it.
    """
    from google.protobuf import descriptor_pb2

    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        for path, name in messages_of(file).items():
            if name == message:
                return file, path
    raise ConfigError(f"the descriptor set has no message {message}: name it with its package")


def only_message(descriptors: bytes, names: OptionNames) -> str:
    """Returns the only message of the last file in a descriptor set. Raises ConfigError for several messages."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]
    found = [name for path, name in messages_of(file).items() if len(path) == 1]
    if len(found) != 1:
        raise ConfigError(f"{names.message} is required where there are several: {', '.join(found)}")
    return found[0]


def find_message(descriptors: bytes, message: str) -> Any:
    """Returns the descriptor of a message. Raises ConfigError if the descriptor set is invalid or lacks the message."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError as e:
        raise ConfigError(f"the descriptor set has no message {message}: name it with its package") from e
    except Exception as e:
        raise ConfigError(f"no descriptor set (protoc --include_imports --descriptor_set_out): {e}") from e
