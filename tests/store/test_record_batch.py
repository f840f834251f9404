"""A batch of records is what the same records are, stored one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_support import open_store, small_config

from gantrymq.errors import RecordError, StoreError
from gantrymq.protocol.record import encode_host
from gantrymq.store.message_store import MessageStore
from gantrymq.store.record_crc import has_right_crc

HOSTS = {"IPv4": encode_host("127.0.0.1", 10911), "IPv6": encode_host("::1", 10911)}
#: More than a file of the queue has units for, and a file of the log has room.
COUNT = 1500


@pytest.mark.parametrize("with_crc", [False, True], ids=["", "crc"])
@pytest.mark.parametrize("store_host", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("born_host", HOSTS.values(), ids=HOSTS)
def test_is_stored_as_single_records_are(tmp_path: Path, born_host: bytes, store_host: bytes, with_crc: bool) -> None:
    messages = [(n % 7, b"body %d" % n, b"n\x01%d\x02" % n, n) for n in range(COUNT)]
    stores = [
        MessageStore(small_config(tmp_path / name, enabled_append_prop_crc=with_crc), store_host)
        for name in ("single", "batch")
    ]
    for store in stores:
        store.open()
    single, batched = stores
    queues = [store.queue("orders", 3) for store in stores]
    for store, queue in zip(stores, queues, strict=True):
        store.append(queue, 0, 0, 1, born_host, 0, b"first", b"", 0)
    places = [
        single.append(queues[0], flag, 1, 99, born_host, 2, body, properties, code).physical_offset
        for flag, body, properties, code in messages
    ]
    batch = batched.begin_batch(queues[1], 1, 99, born_host, 2)
    for message in messages:
        batch.add(*message)
    assert batched.append_batch(batch) == places
    assert queues[1].max_offset == queues[0].max_offset == COUNT + 1
    for n, place in enumerate(places):
        one, other = single.read_record(place), batched.read_record(place)
        unset = {"store_timestamp": 0, "properties": b""}
        assert other._replace(**unset) == one._replace(**unset)
        assert other.properties.startswith(messages[n][2])
        assert queues[1].unit(n + 1) == queues[0].unit(n + 1)
        assert not with_crc or has_right_crc(batched.record_bytes(place))
    for store in stores:
        store.close()


def test_a_record_that_is_none(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    batch = store.begin_batch(store.queue("orders", 0), 0, 0, HOSTS["IPv4"], 0)
    with pytest.raises(RecordError, match="orders"):
        batch.add(0, b"", bytes(32_768), 0)
    batch.add(0, bytes(65 * 1024), b"", 0)
    with pytest.raises(StoreError, match="doesn't fit"):
        store.append_batch(batch)
    assert store.queue("orders", 0).max_offset == 0
    store.close()
