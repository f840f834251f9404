"""The two ids of a message, both upper-case hexadecimal.

- offset message id: where the record is stored; store host (IPv4 8 or IPv6 20 bytes) and int64 commit log offset.
  (`MessageDecoder.createMessageId`)
- unique key: made by the producer and kept over retries; ip, pid, an instance number, ms since the month began, a
  counter: 16 bytes with IPv4. (`MessageClientIDSetter`)
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
    """32 characters (56 for IPv6); `store_host` as in a record."""
    return (store_host + _I64.pack(physical_offset)).hex().upper()


def encode_offset_message_ids(store_host: bytes, physical_offsets: Iterable[int]) -> str:
    """The ids of a batch's messages, with commas between; 0.2 us each."""
    host = store_host.hex().upper()
    return ",".join([f"{host}{offset:016X}" for offset in physical_offsets])


def decode_offset_message_id(message_id: str) -> tuple[str, int]:
    """(host:port of the broker, commit log offset). Raises ProtocolError when the id is of another form."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    # fromhex takes spaces too.
    if len(raw) not in (16, 28) or len(message_id) != 2 * len(raw):
        raise ProtocolError(f"{message_id!r} is no offset message id: 32 or 56 hexadecimal digits are")
    return decode_host(raw[:-8]), _I64.unpack_from(raw, len(raw) - 8)[0]


class UniqueKeys:
    """Makes the unique keys of one producer process; `ip` is 4 or 16 address bytes.

    A key never repeats. A key could repeat when the clock goes back, when a month begins, or after 65,536 values of the
    counter. The instance number changes in each of these cases. The time in a key is that of the clock.
    """

    def __init__(self, ip: bytes = b"\x7f\x00\x00\x01") -> None:
        self._process = (ip + (network.process_id() & 0xFFFF).to_bytes(2, "big")).hex().upper()
        self._instance = randomness.getrandbits(32)
        self._count = itertools.count()
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._last_ms = -1
        self._head = ""
        #: The first number whose counter value was already used with `_head`.
        self._end = _COUNTS

    def next(self) -> str:
        """A key that no other message has."""
        number = next(self._count)
        now_ms = clock.now_ms()
        if now_ms != self._last_ms or number >= self._end:
            self._set_head(now_ms, number)
        return f"{self._head}{number & 0xFFFF:04X}"

    def some(self, count: int) -> tuple[str, int]:
        """The common beginning of up to 65,536 keys, and the number in the last four digits of the first one."""
        # In C: no other thread gets a number between them.
        last = deque(itertools.islice(self._count, count), maxlen=1).pop()
        first = last - count + 1
        now_ms = clock.now_ms()
        if now_ms != self._last_ms or last >= self._end:
            self._set_head(now_ms, first)
        return self._head, first & 0xFFFF

    def _set_head(self, now_ms: int, first: int) -> None:
        """Begins keys of the time `now_ms`, with numbers from `first` on."""
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
