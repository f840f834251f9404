"""Many bodies as one Arrow array: those that can't be read are null there, and told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from gantrymq.errors import CodecError

#: A body's value as pyarrow takes it: dictionaries for structs. Raises CodecError for a body that has none.
DecodeBody = Callable[[bytes], Any]
#: What pyarrow says of a value that isn't as its type says, such as a decimal with too many digits.
_NOT_OF_TYPE = (pa.ArrowException, ArithmeticError, TypeError, ValueError)


class ValueDecoder:
    """Values of one type."""

    def __init__(self, decode: DecodeBody, kind: pa.DataType) -> None:
        self._decode = decode
        self._kind = kind

    def decode(self, bodies: Sequence[bytes | None]) -> tuple[pa.Array, dict[int, str]]:
        """The values, and what is wrong with some of them, by their place. A null body has a null value."""
        values: list[Any] = []
        errors: dict[int, str] = {}
        for place, body in enumerate(bodies):
            value = None
            if body is not None:
                try:
                    value = self._decode(body)
                except CodecError as e:
                    errors[place] = str(e)
            values.append(value)
        try:
            return pa.array(values, self._kind), errors
        except _NOT_OF_TYPE:
            # It doesn't say which: each alone, which is rare.
            for place, value in enumerate(values):
                try:
                    pa.array([value], self._kind)
                except _NOT_OF_TYPE as e:
                    values[place] = None
                    errors[place] = f"its value is no {self._kind}: {e}"
            return pa.array(values, self._kind), errors
