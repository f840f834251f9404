"""Values in message bodies: JSON, pydantic models, Avro, protobuf. Nothing here knows a client.

A codec is made for one type; it encodes, decodes, and does no more than that:

    orders = JsonCodec(Order)
    await producer.send(orders.message("orders", Order("apples", 42)))
    PushConsumer(..., orders.handler(handle))      # handle(order, message)
    orders.value(message)                          # of any received message

`codec.py` has what they share; open it first. `named.py` makes one from text, as command lines and options have it.
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

#: Imported when they are asked for: each needs a library that others can do without.
_MODULES = {
    "AvroCodec": "gantrymq.codecs.avro",
    "JsonCodec": "gantrymq.codecs.json",
    "ProtobufCodec": "gantrymq.codecs.protobuf",
    "PydanticCodec": "gantrymq.codecs.pydantic",
}

__all__ = [
    "CONTENT_TYPE",
    "AvroCodec",
    "Codec",
    "JsonCodec",
    "MessageOptions",
    "ProtobufCodec",
    "PydanticCodec",
    "codec_named",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'gantrymq.codecs' has no attribute {name!r}")
