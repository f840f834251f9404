"""Encodes and decodes the two ids of a message, both in upper-case hexadecimal.

- The offset message id contains the record's position: store host (IPv4: 8 bytes, IPv6: 20) and int64 commit log offset
  (`MessageDecoder.createMessageId`).
- The unique key is created by the producer and kept in retries (`MessageClientIDSetter`). Its parts are the IP address,
  process id, instance number, ms since the start of the month, and a counter. It has 16 bytes with IPv4.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from struct import Struct

from gantrymq.errors import ProtocolError
from gantrymq.protocol.record import decode_host
from gantrymq.system import clock, network, randomness

_I64 = Struct(">q")
#: Number of different values of the counter in a unique key.
_COUNTS = 1 << 16


def encode_offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Returns an id of 32 characters, or 56 for IPv6. `store_host` is encoded as in a record."""
    return (store_host + _I64.pack(physical_offset)).hex().upper()


def encode_offset_message_ids(store_host: bytes, physical_offsets: Iterable[int]) -> str:
    """Returns the ids of a batch, separated by commas. Takes 0.2 us per message."""
    host = store_host.hex().upper()
    return ",".join([f"{host}{offset:016X}" for offset in physical_offsets])


def decode_offset_message_id(message_id: str) -> tuple[str, int]:
    """Returns (HOST:PORT of the broker, commit log offset). Raises ProtocolError if the id has another form."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    # `fromhex` also accepts spaces, so the length of the text is checked as well.
    if len(raw) not in (16, 28) or len(message_id) != 2 * len(raw):
        raise ProtocolError(f"{message_id!r} is no offset message id: 32 or 56 hexadecimal digits are")
    return decode_host(raw[:-8]), _I64.unpack_from(raw, len(raw) - 8)[0]


class UniqueKeys:
    """Creates the unique keys of one producer process. `ip` has 4 or 16 bytes.

    Keys never repeat. The instance number changes if the clock is set back, if a month begins, and after 65,536 values
    of the counter.
    """

    def __init__(self, ip: bytes = b"\x7f\x00\x00\x01") -> None:
        self._process = (ip + (network.process_id() & 0xFFFF).to_bytes(2, "big")).hex().upper()
        self._instance = randomness.getrandbits(32)
        self._count = itertools.count()
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._last_ms = -1
        self._head = ""
        #: The first number that needs another `_head`, because its counter value was already used with this one.
        self._end = _COUNTS

    def next(self) -> str:
        """Returns a key that no other message has."""
        head, number = self.take(clock.now_ms())
        return f"{head}{number:04X}"

    def take(self, now_ms: int) -> tuple[str, int]:
        """Returns the parts of a key that no other message has: a prefix, and the number in the last four digits."""
        number = next(self._count)
        if now_ms != self._last_ms or number >= self._end:
            self._set_head(now_ms, number)
        return self._head, number & 0xFFFF

    def some(self, count: int) -> tuple[str, int]:
        """Returns the common prefix of up to 65,536 keys, and the number in the last four digits of the first key."""
        # Runs in C, so no other thread can take a number in between.
        last = deque(itertools.islice(self._count, count), maxlen=1).pop()
        first = last - count + 1
        now_ms = clock.now_ms()
        if now_ms != self._last_ms or last >= self._end:
            self._set_head(now_ms, first)
        return self._head, first & 0xFFFF

    def _set_head(self, now_ms: int, first: int) -> None:
        """Starts keys with the time `now_ms` and numbers from `first` on."""
        is_new_month = not self._month_start_ms <= now_ms < self._month_end_ms
        if is_new_month:
            self._set_month(now_ms)
        if is_new_month or now_ms <= self._last_ms:
            self._instance = (self._instance + 1) & 0xFFFFFFFF
        since = now_ms - self._month_start_ms
        self._head = f"{self._process}{self._instance:08X}{since & 0xFFFFFFFF:08X}"
        self._end = first + _COUNTS
        # Set last: a thread that reads the new value also reads the new `_head`.
        self._last_ms = now_ms

    def _set_month(self, now_ms: int) -> None:
        now = clock.localtime(now_ms / 1000)
        year, month = now.tm_year, now.tm_mon
        self._month_start_ms = int(clock.mktime((year, month, 1, 0, 0, 0, 0, 0, -1)) * 1000)
        self._month_end_ms = int(clock.mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1)) * 1000)
