"""Compressed message bodies: zlib, lz4 (frame format) and zstd (`common/compression/*`).

The type stands in bits 8 to 10 of sysFlag; 0 with the COMPRESSED bit set is zlib, as old clients write it.
"""

from __future__ import annotations

import zlib
from enum import IntEnum

import lz4.frame
import zstandard

from gantrymq.errors import CompressionError
from gantrymq.protocol.sys_flag import COMPRESSED, COMPRESSION_MASK, COMPRESSION_SHIFT
from gantrymq.system import threads

#: No body grows over this many bytes: eight times Java's maxMessageSize, against decompression bombs.
MAX_DECOMPRESSED_SIZE = 32 * 1024 * 1024
#: What an inflater may return at once; it may allocate that much before it knows how much there is.
_PIECE = 65536
#: Bytes of a zstd body given to the inflater at once, which become 32 MiB at most.
_ZSTD_PIECE = 1024


class CompressionType(IntEnum):
    """`CompressionType`; the number is what sysFlag carries."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def compression_flag(compression: CompressionType) -> int:
    """The sysFlag bits of a body compressed so."""
    return COMPRESSED | compression << COMPRESSION_SHIFT


class _Zstd(threads.local):
    """One decompressor per thread: making one costs 8 us, using one that another thread uses corrupts both."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def compress(body: bytes, compression: CompressionType, level: int = 5) -> bytes:
    """`level` is zlib's or zstd's own, 5 the Java producer's default; lz4 has none here, as in Java."""
    match compression:
        case CompressionType.LZ4:
            return bytes(lz4.frame.compress(body))
        case CompressionType.ZSTD:
            return zstandard.ZstdCompressor(level=level).compress(body)
        case CompressionType.ZLIB:
            return zlib.compress(body, level)


def decompress(body: bytes, sys_flag: int, max_size: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """The plain body of a record; unchanged without the COMPRESSED bit. Raises CompressionError."""
    if not sys_flag & COMPRESSED:
        return body
    number = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    try:
        match number:
            case 0 | CompressionType.ZLIB:
                plain, rest = _inflate_zlib(body, max_size)
            case CompressionType.LZ4:
                plain, rest = _inflate_lz4(body, max_size)
            case CompressionType.ZSTD:
                plain, rest = _inflate_zstd(body, max_size)
            case _:
                raise CompressionError(f"compression type {number} is not known")
    except (zlib.error, RuntimeError, zstandard.ZstdError, EOFError) as e:
        raise CompressionError(f"body of {len(body)} bytes doesn't decompress: {e}") from e
    if len(plain) > max_size:
        raise CompressionError(f"body of {len(body)} bytes decompresses to more than {max_size} bytes")
    if rest:
        raise CompressionError(f"compressed body of {len(body)} bytes is cut off")
    return plain


def _inflate_zlib(body: bytes, max_size: int) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(body, max_size + 1)
    return plain, not inflater.eof and len(plain) <= max_size


def _inflate_lz4(body: bytes, max_size: int) -> tuple[bytes, bool]:
    inflater = lz4.frame.LZ4FrameDecompressor()
    plain = inflater.decompress(body, _PIECE)
    if inflater.eof:
        return plain, False
    pieces, size = [plain], len(plain)
    while not inflater.eof and not inflater.needs_input and size <= max_size:
        pieces.append(inflater.decompress(b"", 16 * _PIECE))
        size += len(pieces[-1])
    return b"".join(pieces), not inflater.eof and size <= max_size


def _inflate_zstd(body: bytes, max_size: int) -> tuple[bytes, bool]:
    # Java's frames don't say their size, and decompress() has no bound: small pieces keep a bomb's next step small.
    inflater = _zstd.decompressor.decompressobj()
    plain = bytearray()
    for start in range(0, len(body), _ZSTD_PIECE):
        plain += inflater.decompress(body[start : start + _ZSTD_PIECE])
        if inflater.eof or len(plain) > max_size:
            break
    return bytes(plain), not inflater.eof and len(plain) <= max_size
