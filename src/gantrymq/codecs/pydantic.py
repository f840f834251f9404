"""Codec for pydantic models as JSON. Needs the extra `gantrymq[pydantic]`."""

from __future__ import annotations

from typing import TypeVar

from gantrymq.codecs.codec import Codec, undecodable, unencodable
from gantrymq.extras import missing

try:
    from pydantic import BaseModel
except ImportError as e:
    raise missing("pydantic", "gantrymq.codecs.pydantic", e) from e

M = TypeVar("M", bound=BaseModel)


class PydanticCodec(Codec[M]):
    """Encodes values of a pydantic model. Field names are the aliases by which the model reads them."""

    content_type = "application/json"

    def __init__(self, model: type[M]) -> None:
        self._model = model

    def encode(self, value: M) -> bytes:
        try:
            return value.model_dump_json(by_alias=True).encode()
        except Exception as e:
            raise unencodable("JSON", value, e) from e

    def decode(self, data: bytes) -> M:
        try:
            return self._model.model_validate_json(data)
        except Exception as e:
            raise undecodable(f"JSON of type {self._model.__name__}", e) from e

    def to_json(self, value: M) -> bytes:
        return self.encode(value)
