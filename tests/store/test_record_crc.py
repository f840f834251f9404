"""`enabledAppendPropCRC` and `forceVerifyPropCRC`. Java's own checksums are in test_message_index.py."""

from __future__ import annotations

import zlib

import pytest
from store_support import log_files, open_store, put, read_all

from gantrymq.errors import RecordError
from gantrymq.store.record_crc import has_crc, has_right_crc


@pytest.mark.parametrize(
    ("properties", "stored"),
    [
        (b"", b""),
        (b"TAGS\x01a\x02", b"TAGS\x01a\x02"),
        (b"TAGS\x01a", b"TAGS\x01a\x02"),
        (b"__CRC32#\x010123456789\x02TAGS\x01a\x02", b"TAGS\x01a\x02"),
        (b"A\x011\x02__CRC32#\x01\x02", b"A\x011\x02"),
    ],
)
def test_last_property(tmp_path, properties, stored):
    store = open_store(tmp_path, enabled_append_prop_crc=True)
    queue = store.queue("T", 0)
    result = put(store, queue, b"body", properties=properties)
    (buffer,) = store.get(queue, 0, 1, 1000).buffers
    expected = zlib.crc32(buffer[:-20]) & 0x7FFFFFFF
    assert bytes(buffer[-20:]) == b"__CRC32#\x01" + f"{expected:010d}"[::-1].encode() + b"\x02"
    assert store.read_record(result.physical_offset).properties == stored + bytes(buffer[-20:])
    assert has_crc(buffer)
    assert has_right_crc(buffer)
    damaged = bytearray(buffer)
    damaged[40] ^= 1
    assert has_crc(damaged)
    assert not has_right_crc(damaged)
    store.close()


def test_no_room_for_it(tmp_path):
    store = open_store(tmp_path, enabled_append_prop_crc=True)
    with pytest.raises(RecordError):
        put(store, store.queue("T", 0), b"", properties=b"A\x01" + b"x" * 32_750 + b"\x02")
    assert store.max_physical_offset == 0
    store.close()


@pytest.mark.parametrize("forced", [False, True])
def test_recovery(tmp_path, forced):
    """The damage is in the record's properties, which the body checksum of the format does not cover."""
    store = open_store(tmp_path, enabled_append_prop_crc=True)
    queue = store.queue("T", 0)
    results = [put(store, queue, b"%d" % n, properties=b"K\x01some value\x02") for n in range(3)]
    store.close()
    with log_files(tmp_path)[0].open("r+b") as file:
        file.seek(results[2].physical_offset - 25)
        file.write(b"X")
    (tmp_path / "abort").write_text("1")
    (tmp_path / "checkpoint").unlink()
    store = open_store(tmp_path, force_verify_prop_crc=forced)
    assert len(read_all(store, store.queue("T", 0))) == (1 if forced else 3)
    store.close()
