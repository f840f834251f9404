"""Extracts index entries from records of the log. Native code handles ordinary records."""

from __future__ import annotations

import logging
from typing import NamedTuple

from gantrymq.errors import RecordError
from gantrymq.kernels import native
from gantrymq.kernels.interface import IndexEntries
from gantrymq.protocol.record import (
    BLANK_SIZE,
    BODY_AT_V4,
    FIXED_SIZE_V4,
    MAGIC_BLANK,
    MAGIC_V1,
    decode_record,
    unpacker,
)
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_ROLLBACK
from gantrymq.store.index_file import Entry
from gantrymq.store.index_keys import LEFT_OUT, KeyHash, is_left_out, keys_of

log = logging.getLogger(__name__)

#: Limits of a piece: records, keys (a record can have 16,000), and bytes of properties.
_RECORDS = 64
_KEYS = 2048
_PROPERTY_BYTES = 32 * 1024
#: Native code handles this multiple of the limits in the same time, but at most this many bytes of the log. Each page
#: may have to be read from disk.
_NATIVE_TIMES = 8
_NATIVE_BYTES = 4 * 1024 * 1024

_unpack_plain = unpacker("size", "magic", "sys_flag", "store_timestamp", "body_length")
_unpack_head = unpacker("size", "magic")
_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6


class Piece(NamedTuple):
    """The index entries of a part of the log.

    It contains all entries of the records before the physical offset `following`, and the first `keys_done` entries of
    the record at that offset. `last` is the last record that was read, or None.
    """

    entries: list[Entry] | IndexEntries
    last: int | None
    following: int
    keys_done: int


def entries_of(view: memoryview, base: int, at: int, end: int, skip: int, key_hash: KeyHash) -> Piece:
    """Returns the entries of some records between the positions `at` and `end` of a log file.

    The file starts at the physical offset `base`. The result omits the first `skip` entries of the first record.
    """
    if not skip and (piece := _native_entries_of(view, base, at, end)) is not None:
        return piece
    last: int | None = None
    entries: list[Entry] = []
    # Number of keys of the next piece's first record that are already in the index.
    keys_done = 0
    read = 0
    for _ in range(_RECORDS):
        if at + BLANK_SIZE > end:
            at = end
            break
        size, magic, sys_flag, timestamp, body_length = (
            _unpack_plain(view, at) if at + BODY_AT_V4 <= end else (*_unpack_head(view, at), 0, 0, 0)
        )
        if (
            magic == MAGIC_V1
            and not sys_flag & _HOSTS_V6
            and 0 <= body_length <= size - FIXED_SIZE_V4
            and at + size <= end
        ):
            tail = bytes(view[at + BODY_AT_V4 + body_length : at + size])
            topic_end = 1 + tail[0]
            topic = tail[1:topic_end]
            properties = tail[topic_end + 2 :]
        elif magic == MAGIC_BLANK:
            at = end
            break
        else:
            try:
                record = decode_record(view, at, check_crc=False)
            except RecordError as e:
                log.warning("no record at %d, indexing continues with the next log file: %s", base + at, e)
                at = end
                break
            size, timestamp, sys_flag = record.size, record.store_timestamp, record.sys_flag
            topic, properties = record.topic, record.properties
        if sys_flag & TRANSACTION_ROLLBACK != TRANSACTION_ROLLBACK and not is_left_out(topic, properties):
            keys = keys_of(properties)[skip:]
            room = _KEYS - len(entries)
            if not room and keys:
                break
            for key in keys[:room]:
                entries.append((key_hash(topic + b"#" + key), base + at, timestamp))
            if len(keys) > room:
                last, keys_done = at, skip + room
                break
        skip = 0
        last = at
        at += size
        read += len(properties)
        if read >= _PROPERTY_BYTES:
            break
    return Piece(entries, None if last is None else base + last, base + at, keys_done)


def _native_entries_of(view: memoryview, base: int, at: int, end: int) -> Piece | None:
    """Returns the entries that native code can extract; None if it can't handle the first record."""
    if native is None:
        return None
    entries, last, following = native.index_entries(
        view,
        at,
        min(end, at + _NATIVE_BYTES),
        base,
        _RECORDS * _NATIVE_TIMES,
        _KEYS * _NATIVE_TIMES,
        _PROPERTY_BYTES * _NATIVE_TIMES,
        LEFT_OUT,
    )
    if following == at:
        return None
    return Piece(entries, base + last, base + following, 0)
