"""Codecs by name, for command lines and options."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from gantrymq.codecs.codec import Codec
from gantrymq.errors import CodecError

#: Forms of names for `codec_named`, for help texts.
FORMS = "json[:MODULE:TYPE] | pydantic:MODULE:MODEL | avro:SCHEMA_FILE | protobuf:MODULE:CLASS"


def codec_named(text: str) -> Codec[Any]:
    """Returns the codec for a name in one of the FORMS: `avro:order.avsc`, `protobuf:shop.orders_pb2:Order`.

    Raises:
        CodecError: The name is invalid, or its class or schema cannot be loaded.
        MissingExtra: The library of the codec is not installed.
    """
    kind, _, what = text.partition(":")
    if kind == "json":
        from gantrymq.codecs.json import JsonCodec

        return JsonCodec(_imported(what, text) if what else object)
    if kind == "pydantic" and what:
        from gantrymq.codecs.pydantic import PydanticCodec

        return PydanticCodec(_imported(what, text))
    if kind == "avro" and what:
        from gantrymq.codecs.avro import AvroCodec

        try:
            return AvroCodec.from_file(Path(what))
        except OSError as e:
            raise CodecError(f"the schema of {text!r}: {e}") from e
    if kind == "protobuf" and what:
        from gantrymq.codecs.protobuf import ProtobufCodec

        return ProtobufCodec(_imported(what, text))
    raise CodecError(f"{text!r} names no codec: {FORMS}")


def _imported(place: str, text: str) -> type[Any]:
    """Imports the class MODULE:NAME. NAME may contain dots. Raises CodecError."""
    module, _, name = place.partition(":")
    if not module or not name:
        raise CodecError(f"{text!r} names no class: MODULE:NAME is wanted after the first colon")
    try:
        found: object = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as e:
        raise CodecError(f"the class of {text!r} can't be imported: {e}") from e
    if not isinstance(found, type):
        raise CodecError(f"{name} of {text!r} is no class")
    return found
