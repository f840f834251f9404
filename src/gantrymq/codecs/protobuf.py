"""Protocol buffers codec for classes that protoc generated. Needs the extra `gantrymq[protobuf]`."""

from __future__ import annotations

from typing import TypeVar

from gantrymq.codecs.codec import Codec, undecodable, unencodable
from gantrymq.errors import CodecError
from gantrymq.extras import missing

try:
    from google.protobuf import json_format
    from google.protobuf.message import Message
except ImportError as e:
    raise missing("protobuf", "gantrymq.codecs.protobuf", e) from e


P = TypeVar("P", bound=Message)


class ProtobufCodec(Codec[P]):
    """Encodes messages of one class: `ProtobufCodec(orders_pb2.Order)`."""

    content_type = "application/protobuf"

    def __init__(self, message_class: type[P]) -> None:
        self._class = message_class

    def encode(self, value: P) -> bytes:
        if not isinstance(value, self._class):
            # A value of another class could be encoded, but its fields would be decoded as fields of this class.
            raise CodecError(f"{type(value).__name__} is no {self._class.__name__}")
        try:
            return value.SerializeToString()
        except Exception as e:
            raise unencodable(f"protobuf's {self._class.__name__}", value, e) from e

    def decode(self, data: bytes) -> P:
        try:
            return self._class.FromString(data)
        except Exception as e:
            raise undecodable(f"protobuf {self._class.__name__}", e) from e

    def to_json(self, value: P) -> bytes:
        """Returns JSON in protobuf's JSON mapping. Raises CodecError."""
        try:
            text = json_format.MessageToJson(value, indent=None)
        except Exception as e:
            raise CodecError(f"{self._class.__name__} as JSON: {e}") from e
        return text.encode()
