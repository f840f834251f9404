"""Payload: one gRPC message as it was received, maybe compressed, before it is inflated and built."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from gantrymq.proxy.statuses import GrpcCode, GrpcError

#: The prefix of a message in a stream: whether it is compressed, and its length.
PREFIX = 5
#: zlib reads what gzip writes, with this many bits.
_GZIP_BITS = 16 + zlib.MAX_WBITS
#: A byte of deflate inflates to no more.
_MOST_INFLATED = 1032


class Payload(NamedTuple):
    """`data` without the prefix."""

    data: bytes
    is_gzip: bool

    def most_plain_bytes(self, most_bytes: int) -> int:
        """How long the encoded message is at most, if it has no more than `most_bytes`."""
        return min(len(self.data) * _MOST_INFLATED, most_bytes) if self.is_gzip else len(self.data)

    def plain(self, most_bytes: int) -> bytes:
        """The encoded message. Raises GrpcError for one that doesn't inflate, or to more than `most_bytes`."""
        if not self.is_gzip:
            return self.data
        inflater = zlib.decompressobj(_GZIP_BITS)
        try:
            plain = inflater.decompress(self.data, most_bytes)
        except zlib.error as e:
            raise GrpcError(GrpcCode.INTERNAL, f"a message that is no gzip: {e}") from e
        if not inflater.eof:
            raise GrpcError(GrpcCode.RESOURCE_EXHAUSTED, f"Decompressed gRPC message exceeds maximum size {most_bytes}")
        return plain
