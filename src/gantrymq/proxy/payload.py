"""A received gRPC message before it is decompressed and parsed."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from gantrymq.proxy.statuses import GrpcCode, GrpcError

#: Size of a message's prefix in a stream, bytes: the compression flag and the length.
PREFIX = 5
#: Window bits with which zlib reads gzip data.
_GZIP_BITS = 16 + zlib.MAX_WBITS
#: Largest number of decompressed bytes for each byte of deflate data.
_MOST_INFLATED = 1032


class Payload(NamedTuple):
    """A message, possibly compressed. `data` is without the prefix."""

    data: bytes | bytearray
    is_gzip: bool

    def most_plain_bytes(self, most_bytes: int) -> int:
        """Returns the largest possible size of the decompressed message, bytes, and at most `most_bytes`."""
        return min(len(self.data) * _MOST_INFLATED, most_bytes) if self.is_gzip else len(self.data)

    def plain(self, most_bytes: int) -> bytes | bytearray:
        """Returns the decompressed message. Raises GrpcError if it is invalid or longer than `most_bytes`."""
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
