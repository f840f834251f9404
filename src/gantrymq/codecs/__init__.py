"""Codecs for message bodies: JSON, pydantic models, Avro, protobuf. They do not depend on a client.

A codec encodes and decodes values of one type:

    orders = JsonCodec(Order)
    await producer.send(orders.message("orders", Order("apples", 42)))
    PushConsumer(..., orders.handler(handle))      # handle(order, message)
    orders.value(message)                          # of any received message

`codec.py` has the base class; read it first. `named.py` creates a codec from text, for command lines and options.
`registry/` has the codec that takes its schemas from a schema registry.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gantrymq.codecs.codec import CONTENT_TYPE, Codec, MessageOptions
from gantrymq.codecs.named import codec_named

if TYPE_CHECKING:
    from gantrymq.codecs.avro import AvroCodec
    from gantrymq.codecs.json import JsonCodec
    from gantrymq.codecs.protobuf import ProtobufCodec
    from gantrymq.codecs.pydantic import PydanticCodec
    from gantrymq.codecs.registry.codec import RegistryCodec
    from gantrymq.codecs.registry.settings import RegistrySettings

#: Imported on first use, because each module needs an optional library.
_MODULES = {
    "AvroCodec": "gantrymq.codecs.avro",
    "JsonCodec": "gantrymq.codecs.json",
    "ProtobufCodec": "gantrymq.codecs.protobuf",
    "PydanticCodec": "gantrymq.codecs.pydantic",
    "RegistryCodec": "gantrymq.codecs.registry.codec",
    "RegistrySettings": "gantrymq.codecs.registry.settings",
}

__all__ = [
    "CONTENT_TYPE",
    "AvroCodec",
    "Codec",
    "JsonCodec",
    "MessageOptions",
    "ProtobufCodec",
    "PydanticCodec",
    "RegistryCodec",
    "RegistrySettings",
    "codec_named",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'gantrymq.codecs' has no attribute {name!r}")
