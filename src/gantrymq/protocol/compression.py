"""Compresses and decompresses message bodies: zlib, lz4 (frame format) and zstd (`common/compression/*`).

Bits 8 to 10 of sysFlag contain the type. 0 with the COMPRESSED bit means zlib, as old clients send it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum

import lz4.frame
import zstandard

from gantrymq.errors import CompressionError
from gantrymq.protocol.sys_flag import COMPRESSED, COMPRESSION_MASK, COMPRESSION_SHIFT
from gantrymq.system import threads

#: Largest decompressed body, in bytes: eight times Java's maxMessageSize. Stops decompression bombs.
MAX_DECOMPRESSED_SIZE = 32 * 1024 * 1024
#: Largest number of bytes that a decompressor returns at once, and may allocate in advance.
_PIECE = 65536
#: Compressed bytes of a zstd body per step. They decompress to at most 32 MiB.
_ZSTD_PIECE = 1024
#: The same for `decompress_pieces`: at most 4 MiB, because 4 compressed bytes can make a block of 128 KiB.
_ZSTD_STEP = 128


class CompressionType(IntEnum):
    """The compression type, as in sysFlag (`CompressionType`)."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def compression_flag(compression: CompressionType) -> int:
    """Returns the sysFlag bits for a body with this compression."""
    return COMPRESSED | compression << COMPRESSION_SHIFT


class _Zstd(threads.local):
    """One decompressor per thread. Creating one takes 8 us, and sharing one between threads corrupts both results."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def compress(body: bytes, compression: CompressionType, level: int = 5) -> bytes:
    """Compresses a body. `level` is for zlib and zstd (Java's producer uses 5). As in Java, lz4 has no level."""
    match compression:
        case CompressionType.LZ4:
            return bytes(lz4.frame.compress(body))
        case CompressionType.ZSTD:
            return zstandard.ZstdCompressor(level=level).compress(body)
        case CompressionType.ZLIB:
            return zlib.compress(body, level)


def decompress(body: bytes, sys_flag: int, max_size: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """Returns the plain body of a record. Without the COMPRESSED bit, returns `body`. Raises CompressionError."""
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
        raise _cut_off(body)
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
    # Java's lz4 frames don't contain their size, and `decompress` has no limit. Small pieces limit each step.
    inflater = _zstd.decompressor.decompressobj()
    plain = bytearray()
    for start in range(0, len(body), _ZSTD_PIECE):
        plain += inflater.decompress(body[start : start + _ZSTD_PIECE])
        if inflater.eof or len(plain) > max_size:
            break
    return bytes(plain), not inflater.eof and len(plain) <= max_size


def decompress_pieces(
    body: bytes, sys_flag: int, piece_size: int = _PIECE, max_size: int = MAX_DECOMPRESSED_SIZE
) -> Iterator[bytes]:
    """Yields the plain body of a record in pieces of at most `piece_size` bytes.

    For callers that need only the beginning of the body. Needs the memory of a few pieces; 4 MiB with lz4 and zstd. If
    the body is damaged, yields the pieces before the damage, then raises CompressionError as `decompress` does.
    """
    if not sys_flag & COMPRESSED:
        yield from (body[start : start + piece_size] for start in range(0, len(body), piece_size))
        return
    number = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    size = 0
    try:
        match number:
            case 0 | CompressionType.ZLIB:
                pieces = _zlib_pieces(body, piece_size)
            case CompressionType.LZ4:
                pieces = _lz4_pieces(body, piece_size)
            case CompressionType.ZSTD:
                pieces = _zstd_pieces(body, piece_size)
            case _:
                raise CompressionError(f"compression type {number} is not known")
        for piece in pieces:
            size += len(piece)
            if size > max_size:
                raise CompressionError(f"body of {len(body)} bytes decompresses to more than {max_size} bytes")
            yield piece
    except (zlib.error, RuntimeError, zstandard.ZstdError, EOFError) as e:
        raise CompressionError(f"body of {len(body)} bytes doesn't decompress: {e}") from e


def _zlib_pieces(body: bytes, piece_size: int) -> Iterator[bytes]:
    inflater = zlib.decompressobj()
    for start in range(0, len(body), _PIECE):
        data = body[start : start + _PIECE]
        piece = inflater.decompress(data, piece_size)
        while piece:
            yield piece
            # More output may follow even if all of `data` is consumed.
            piece = inflater.decompress(inflater.unconsumed_tail, piece_size)
        if inflater.eof:
            return
    raise _cut_off(body)


def _lz4_pieces(body: bytes, piece_size: int) -> Iterator[bytes]:
    inflater = lz4.frame.LZ4FrameDecompressor()
    for start in range(0, len(body), _PIECE):
        data = body[start : start + _PIECE]
        while not inflater.eof:
            if piece := inflater.decompress(data, piece_size):
                yield piece
            if inflater.needs_input:
                break
            data = b""
        if inflater.eof:
            return
    raise _cut_off(body)


def _zstd_pieces(body: bytes, piece_size: int) -> Iterator[bytes]:
    inflater = zstandard.ZstdDecompressor().decompressobj()
    for start in range(0, len(body), _ZSTD_STEP):
        plain = inflater.decompress(body[start : start + _ZSTD_STEP])
        yield from (plain[begin : begin + piece_size] for begin in range(0, len(plain), piece_size))
        if inflater.eof:
            return
    raise _cut_off(body)


def _cut_off(body: bytes) -> CompressionError:
    return CompressionError(f"compressed body of {len(body)} bytes is cut off")
