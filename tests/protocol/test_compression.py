"""Tests of compressed bodies: round trips, and CompressionError for truncated and damaged bodies and bombs."""

from __future__ import annotations

import threading
import tracemalloc
import zlib
from contextlib import suppress

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.errors import CompressionError
from gantrymq.protocol.compression import CompressionType, compress, compression_flag, decompress
from gantrymq.protocol.sys_flag import COMPRESSED

ALL = pytest.mark.parametrize("compression", CompressionType)
TYPES = st.sampled_from(CompressionType)
BOMB_SIZE = 256 * 1024 * 1024


@given(st.binary(max_size=2000), TYPES, st.integers(1, 9))
def test_round_trip(body: bytes, compression: CompressionType, level: int) -> None:
    assert decompress(compress(body, compression, level), compression_flag(compression)) == body


@ALL
@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 1_048_576, 1_114_112, 3_000_000])
def test_sizes(compression: CompressionType, size: int) -> None:
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    packed = compress(body, compression)

    assert decompress(packed, compression_flag(compression)) == body
    assert decompress(packed, compression_flag(compression), max_size=size) == body
    if size:
        with pytest.raises(CompressionError, match=f"more than {size - 1} bytes"):
            decompress(packed, compression_flag(compression), max_size=size - 1)


@settings(max_examples=50)
@given(st.binary(min_size=1, max_size=3000), TYPES, st.data())
def test_cut_bodies(body: bytes, compression: CompressionType, data: st.DataObject) -> None:
    packed = compress(body, compression)
    # A frame ends with a mark. Without it Java expects more data, too.
    with pytest.raises(CompressionError):
        decompress(packed[: data.draw(st.integers(0, len(packed) - 1))], compression_flag(compression))


@given(st.binary(min_size=1, max_size=200), TYPES, st.data())
def test_damaged_bodies(body: bytes, compression: CompressionType, data: st.DataObject) -> None:
    packed = bytearray(compress(body, compression))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CompressionError):
        decompress(bytes(packed), compression_flag(compression))


@given(st.binary(max_size=200), st.integers(0, 7))
def test_any_bytes(body: bytes, number: int) -> None:
    with suppress(CompressionError):
        decompress(body, COMPRESSED | number << 8)


def bomb(compression: CompressionType) -> bytes:
    piece, count = bytes(1024 * 1024), BOMB_SIZE // (1024 * 1024)
    match compression:
        case CompressionType.ZLIB:
            deflater = zlib.compressobj(9)
            return b"".join(deflater.compress(piece) for _ in range(count)) + deflater.flush()
        case CompressionType.LZ4:
            with lz4.frame.LZ4FrameCompressor() as compressor:
                parts = [compressor.begin(), *(compressor.compress(piece) for _ in range(count)), compressor.flush()]
            return b"".join(parts)
        case CompressionType.ZSTD:
            packer = zstandard.ZstdCompressor(level=1).compressobj()
            return b"".join(packer.compress(piece) for _ in range(count)) + packer.flush()


@ALL
def test_bombs(compression: CompressionType) -> None:
    packed = bomb(compression)
    assert len(packed) < BOMB_SIZE // 100
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError, match="more than"):
            decompress(packed, compression_flag(compression))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < BOMB_SIZE * 3 // 4


def test_a_small_body_takes_little_memory() -> None:
    packed = compress(b"small " * 20, CompressionType.LZ4)
    tracemalloc.start()
    try:
        decompress(packed, compression_flag(CompressionType.LZ4))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_bodies_that_are_not_compressed_stay() -> None:
    assert decompress(b"plain", 0) == b"plain"
    assert decompress(b"plain", 3 << 8) == b"plain"


def test_old_clients_name_no_type() -> None:
    assert decompress(zlib.compress(b"plain"), COMPRESSED) == b"plain"


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_unknown_types(number: int) -> None:
    with pytest.raises(CompressionError, match=f"type {number}"):
        decompress(b"", COMPRESSED | number << 8)


def test_threads_do_not_share_a_decompressor() -> None:
    bodies = [bytes([n]) * 500_000 for n in range(4)]
    wrong: list[int] = []

    def work(n: int) -> None:
        packed = compress(bodies[n], CompressionType.ZSTD)
        for _ in range(50):
            if decompress(packed, compression_flag(CompressionType.ZSTD)) != bodies[n]:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
