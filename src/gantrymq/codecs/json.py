"""JSON codec based on msgspec: Structs, dataclasses, TypedDicts, NamedTuples, attrs classes and JSON's own types."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gantrymq.codecs.codec import Codec, undecodable, unencodable

T = TypeVar("T")


class JsonCodec(Codec[T]):
    """Encodes values of `kind`, and checks the type on decoding: `JsonCodec(Order)`, `JsonCodec(dict[str, int])`.

    `JsonCodec(object)` accepts any JSON. For special cases, such as numbers in strings, use msgspec's types.
    """

    content_type = "application/json"

    def __init__(self, kind: type[T]) -> None:
        self._name = getattr(kind, "__name__", str(kind)) if kind is not object else "value"
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def encode(self, value: T) -> bytes:
        try:
            return self._encoder.encode(value)
        except Exception as e:
            raise unencodable("JSON", value, e) from e

    def decode(self, data: bytes) -> T:
        try:
            return self._decoder.decode(data)
        except Exception as e:
            raise undecodable(f"JSON of type {self._name}", e) from e
