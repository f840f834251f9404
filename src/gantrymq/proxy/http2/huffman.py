"""The Huffman code of header blocks, decoded byte by byte (RFC 7541, 5.2 and appendix B)."""

from __future__ import annotations

from functools import lru_cache

#: The length of each symbol's code, 256 bytes and the end: "a" is 5 bits. The code is canonical: of codes with one
#: length, as of lengths, the next is the former plus one, so that the lengths say them all.
_LENGTHS = (
    "isxxxxxxxtzxxzxxxxxxxxzxxxxxxxxxbffhibdgffdgdbbbaaabbbbbbbcdkbhfibccccccccccccccccccccccdcdioijb"
    "kabababbbaccbbbabcbaabccccckgjixprpprrrsrssssststtrstssssqrsrsstrqprrssqsrrtqrssqqrqsrssprrrsrrs"
    "vvporsruvvvwwvtuoqvwwvwtqqvvxwwwptpqrqqsrruuttvsvwvvwwwwwxwwwwwvz"
)
_END = 256
_SHORTEST = 5


def _codes() -> dict[tuple[int, int], int]:
    """{(length, code): symbol}"""
    codes: dict[tuple[int, int], int] = {}
    code = length = 0
    for symbol in sorted(range(len(_LENGTHS)), key=lambda symbol: (_LENGTHS[symbol], symbol)):
        longer = ord(_LENGTHS[symbol]) - ord("a") + _SHORTEST
        code, length = code << (longer - length), longer
        codes[length, code] = symbol
        code += 1
    return codes


_CODES = _codes()
#: What a byte does after a rest of some bits, made when it first comes: (rest, byte) to (symbols, new rest). A rest is
#: its bits with a one before them. There are at most some 60,000; those of text are a few hundred.
_steps: dict[tuple[int, int], tuple[bytes, int]] = {}


def _step(rest: int, byte: int) -> tuple[bytes, int]:
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


#: Longer texts are not cached: peers choose them, and 4,096 of 16 KiB would take 150 MiB.
_LONGEST_CACHED = 128


def decode(data: bytes) -> bytes:
    """The text of some bytes. Raises ValueError for an invalid code, or if the padding isn't fewer than 8 ones.

    4 us for 27 bytes. Repeated texts, such as most of a client's signature, are cached.
    """
    return _cached(data) if len(data) <= _LONGEST_CACHED else _decoded(data)


def _decoded(data: bytes) -> bytes:
    rest = 1
    text = []
    for byte in data:
        symbols, rest = _steps.get((rest, byte)) or _step(rest, byte)
        text.append(symbols)
    # The rest must be ones: the beginning of the end's code.
    if rest & (rest + 1) or rest > 0xFF:
        raise ValueError("a Huffman code that isn't padded as it should be")
    return b"".join(text)


_cached = lru_cache(4096)(_decoded)
