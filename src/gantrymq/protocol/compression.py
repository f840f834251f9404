"""Compressed message bodies: zlib, lz4 (frame format) and zstd (`common/compression/*`).

The type stands in bits 8 to 10 of sysFlag; 0 with the COMPRESSED bit set is zlib, as old clients write it.
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

#: No body grows over this many bytes: eight times Java's maxMessageSize, against decompression bombs.
MAX_DECOMPRESSED_SIZE = 32 * 1024 * 1024
#: What an inflater may return at once; it may allocate that much before it knows how much there is.
_PIECE = 65536
#: Bytes of a zstd body given to the inflater at once, which become 32 MiB at most.
_ZSTD_PIECE = 1024
#: The same where pieces are taken one by one: they become 4 MiB at most (a block of 128 KiB takes 4 bytes).
_ZSTD_STEP = 128


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
    # Java's frames don't say their size, and decompress() has no bound: small pieces keep a bomb's next step small.
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
    """The plain body of a record in pieces of at most `piece_size` bytes, for those who need only its beginning.

    It takes the memory of a few pieces, 4 MiB with lz4 and zstd. Raises CompressionError as `decompress` does, when
    the pieces up to the damage are out.
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
            # There may be more even if all of `data` is taken.
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
