"""Bodies as values of the column `value`: `ValueDecoder`, the interfaces of a format, the policy for corrupt bodies.

`spark.bodies` implements the interfaces for each format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Protocol

import pyarrow as pa

from gantrymq.errors import CodecError

#: Decodes a body into a value that pyarrow accepts, with dictionaries for structs. Raises CodecError for an invalid
#: body.
DecodeBody = Callable[[bytes], Any]
#: Encodes a value of an Arrow array as a body. Raises IllegalMessage for a value that can't be encoded.
EncodeValue = Callable[[Any], bytes]
#: Errors of pyarrow for a value that doesn't fit its type, such as a decimal with too many digits.
_NOT_OF_TYPE = (pa.ArrowException, ArithmeticError, TypeError, ValueError)


class BodyFormat(StrEnum):
    """The format of bodies: the values of the option bodyFormat."""

    STRING = "string"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class CorruptBodies(StrEnum):
    """The policy of a read for a body that cannot be decompressed, has a wrong CRC32 or the wrong format."""

    FAIL = "fail"
    NULL = "null"


class ValueDecoder:
    """Decodes bodies into values of one type."""

    def __init__(self, decode: DecodeBody, kind: pa.DataType) -> None:
        self._decode = decode
        self._kind = kind

    def decode(self, bodies: Sequence[bytes | None]) -> tuple[pa.Array, dict[int, str]]:
        """Returns the values, and {index: error}. The value is null if the body is null or has an error."""
        values: list[Any] = []
        errors: dict[int, str] = {}
        for index, body in enumerate(bodies):
            value = None
            if body is not None:
                try:
                    value = self._decode(body)
                except CodecError as e:
                    errors[index] = str(e)
            values.append(value)
        try:
            return pa.array(values, self._kind), errors
        except _NOT_OF_TYPE:
            # The error doesn't tell which value is wrong, so each value is converted alone. Such errors are rare.
            for index, value in enumerate(values):
                try:
                    pa.array([value], self._kind)
                except _NOT_OF_TYPE as e:
                    values[index] = None
                    errors[index] = f"its value is no {self._kind}: {e}"
            return pa.array(values, self._kind), errors


class BodyDecoding(Protocol):
    """The format of the bodies of a read."""

    def decoder(self, kind: pa.DataType) -> ValueDecoder:
        """Returns a decoder for a column of this type. Raises ConfigError if the format doesn't support the type."""
        ...


class BodyEncoding(Protocol):
    """The format of the bodies of a write."""

    def encoder(self, kind: pa.DataType) -> EncodeValue:
        """Returns an encoder for the values of a column of this type."""
        ...
