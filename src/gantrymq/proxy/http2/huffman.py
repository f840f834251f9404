"""Decoder for the Huffman code of header blocks, byte by byte (RFC 7541, 5.2 and appendix B)."""

from __future__ import annotations

from functools import lru_cache

#: The code length of each symbol: of the 256 bytes and the end symbol. The letter "a" means 5 bits. The code is
#: canonical: each code follows from the one before it, so the lengths are enough to calculate all codes.
_LENGTHS = (
    "isxxxxxxxtzxxzxxxxxxxxzxxxxxxxxxbffhibdgffdgdbbbaaabbbbbbbcdkbhfibccccccccccccccccccccccdcdioijb"
    "kabababbbaccbbbabcbaabccccckgjixprpprrrsrssssststtrstssssqrsrsstrqprrssqsrrtqrssqqrqsrssprrrsrrs"
    "vvporsruvvvwwvtuoqvwwvwtqqvvxwwwptpqrqqsrruuttvsvwvvwwwwwxwwwwwvz"
)
_END = 256
_SHORTEST = 5


def _codes() -> dict[tuple[int, int], int]:
    """Returns {(length, code): symbol}."""
    codes: dict[tuple[int, int], int] = {}
    code = length = 0
    for symbol in sorted(range(len(_LENGTHS)), key=lambda symbol: (_LENGTHS[symbol], symbol)):
        longer = ord(_LENGTHS[symbol]) - ord("a") + _SHORTEST
        code, length = code << (longer - length), longer
        codes[length, code] = symbol
        code += 1
    return codes


_CODES = _codes()
#: Cached decoding steps: (remaining bits, byte) to (symbols, new remaining bits). A 1 bit precedes the remaining bits.
#: There are about 60,000 possible steps; text needs a few hundred.
_steps: dict[tuple[int, int], tuple[bytes, int]] = {}


def _step(rest: int, byte: int) -> tuple[bytes, int]:
    """Calculates and caches one decoding step. Raises ValueError if the byte contains the end symbol."""
    symbols = bytearray()
    before = rest
    for shift in range(7, -1, -1):
        rest = rest << 1 | (byte >> shift & 1)
        length = rest.bit_length() - 1
        symbol = _CODES.get((length, rest ^ (1 << length)))
        if symbol is not None:
            if symbol == _END:
                raise ValueError("the end of a Huffman code within it")
            symbols.append(symbol)
            rest = 1
    step = _steps[before, byte] = bytes(symbols), rest
    return step


#: Longest cached text, bytes. Peers choose the texts, and 4,096 texts of 16 KiB would take 150 MiB.
_LONGEST_CACHED = 128


def decode(data: bytes) -> bytes:
    """Decodes bytes. Raises ValueError for an invalid code or padding. Valid padding is up to seven 1 bits.

    27 bytes take 4 us. Repeated texts, such as most of a client's signature, are cached.
    """
    return _cached(data) if len(data) <= _LONGEST_CACHED else _decoded(data)


def _decoded(data: bytes) -> bytes:
    rest = 1
    text = []
    for byte in data:
        symbols, rest = _steps.get((rest, byte)) or _step(rest, byte)
        text.append(symbols)
    # The padding must be 1 bits, the beginning of the end symbol's code.
    if rest & (rest + 1) or rest > 0xFF:
        raise ValueError("a Huffman code that isn't padded as it should be")
    return b"".join(text)


_cached = lru_cache(4096)(_decoded)
