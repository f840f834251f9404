"""A batch of records is stored like the same records one by one."""

from __future__ import annotations

import mmap
from pathlib import Path
from threading import Event

import pytest
from native_code import BOTH, use_python
from store_support import (
    LOG_FILE,
    UNITS_PER_FILE,
    commit_log,
    crash,
    open_store,
    put,
    queue_files,
    read_all,
    small_config,
)

from gantrymq.errors import RecordError, StoreBusy, StoreError, StoreFull
from gantrymq.protocol.record import encode_host
from gantrymq.store import record_batch
from gantrymq.store.mapped_file import MappedFile
from gantrymq.store.message_store import MessageStore
from gantrymq.store.record_batch import RecordBatch
from gantrymq.store.record_crc import has_right_crc
from gantrymq.store.verify import verify
from gantrymq.system import files

HOSTS = {"IPv4": encode_host("127.0.0.1", 10911), "IPv6": encode_host("::1", 10911)}
#: More units than a queue file can contain.
COUNT = 400


@pytest.fixture(
    autouse=True,
    params=BOTH,
)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs every test with native code and with Python."""
    if request.param == "python":
        use_python(monkeypatch, record_batch)


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


# -- all or none -----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Simulates the end of the process."""


class Dying:
    """The log file in use. The process is killed after `after` more bytes are written."""

    def __init__(self, mapping: mmap.mmap, after: int) -> None:
        self._mapping = mapping
        self._left = after

    def __setitem__(self, place: slice, data: memoryview) -> None:
        self.pwrite(0, data, place.start)

    def pwrite(self, fd: int, data: memoryview, at: int) -> int:
        written = data[: self._left]
        self._mapping[at : at + len(written)] = bytes(written)
        self._left -= len(written)
        if len(written) < len(data):
            raise Killed
        return len(data)


def batch_of(store: MessageStore, count: int, *, body_size: int = 100) -> RecordBatch:
    batch = store.begin_batch(store.queue("orders", 0), 0, 0, HOSTS["IPv4"], 0)
    for n in range(count):
        batch.add(0, b"%d" % n + bytes(body_size), b"", 0)
    return batch


@pytest.mark.parametrize("used", [0, LOG_FILE // 2, LOG_FILE - 8000, LOG_FILE - 3000], ids=str)
def test_stands_in_one_file(tmp_path: Path, used: int) -> None:
    """If the rest of a file is too short, the whole batch goes into the next one (`END_OF_FILE`)."""
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    while store.max_physical_offset < used:
        put(store, queue, bytes(900))
    before = queue.max_offset
    batch = batch_of(store, 2 * UNITS_PER_FILE + 3)
    places = store.append_batch(batch)
    assert len({place // LOG_FILE for place in [*places, store.max_physical_offset - 1]}) == 1
    assert [one + size for one, size in zip(places, batch.sizes, strict=True)][:-1] == places[1:]
    put(store, queue, b"last")
    assert [record.queue_offset for record in read_all(store, queue)] == list(range(before + len(places) + 1))
    store.close()


@pytest.mark.parametrize("used", [0, LOG_FILE - 3000], ids=str)
@pytest.mark.parametrize("written", [0, 1, 700, 6000, 10**5, "all"], ids=str)
def test_a_process_that_is_killed_leaves_all_or_none(
    tmp_path: Path, used: int, written: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    put(store, queue, b"first")
    while store.max_physical_offset < used:
        put(store, queue, bytes(900))
    before = queue.max_offset
    batch = batch_of(store, 2 * UNITS_PER_FILE)
    size = sum(batch.sizes)
    log = commit_log(store)
    log.preallocate(size)
    if written != "all":
        assert log.mapping is not None
        dying = Dying(log.mapping, min(int(written), size - 1))
        log.mapping = dying  # type: ignore[assignment]
        with monkeypatch.context() as patch:
            patch.setattr(files, "pwrite", dying.pwrite)
            with pytest.raises(Killed):
                store.append_batch(batch)
    else:
        store.append_batch(batch)
    crash(store)
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    assert queue.max_offset == before + (len(batch) if written == "all" else 0)
    put(store, queue, b"next")
    assert [record.queue_offset for record in read_all(store, queue)] == list(range(queue.max_offset))
    store.close()


@pytest.mark.parametrize("written", [0, 4, 8, 100, 150, 250, 299], ids=str)
def test_a_process_that_is_killed_leaves_no_part_of_a_message(tmp_path: Path, written: int) -> None:
    """The checksum covers only the body, so a record without the end of its properties would look complete."""
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    put(store, queue, b"first")
    log = commit_log(store)
    assert log.mapping is not None
    log.mapping = Dying(log.mapping, written)  # type: ignore[assignment]
    with pytest.raises(Killed):
        put(store, queue, b"second", properties=b"KEYS\x01%b\x02" % (b"k" * 200))
    crash(store)
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    assert [record.body for record in read_all(store, queue)] == [b"first"]
    put(store, queue, b"next")
    assert [record.queue_offset for record in read_all(store, queue)] == [0, 1]
    store.close()


@pytest.mark.parametrize("directory", ["commitlog", "consumequeue"])
def test_no_room_for_a_part_of_it(tmp_path: Path, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at the second file. Nothing is stored, and a retry can succeed when space is free."""
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    put(store, queue, bytes(30_000))
    batch = batch_of(store, 4 * UNITS_PER_FILE)
    reserve = MappedFile.reserve

    def full(self: MappedFile, start: int, end: int) -> None:
        if directory in str(self.path) and self.base:
            raise StoreFull("no room")
        reserve(self, start, end)

    position = store.max_physical_offset
    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "reserve", full)
        with pytest.raises(StoreFull):
            store.append_batch(batch)
        assert queue.max_offset == 1
        assert [record.body for record in read_all(store, queue)] == [bytes(30_000)]
    assert position <= store.max_physical_offset <= LOG_FILE
    store.append_batch(batch)
    crash(store)
    store = open_store(tmp_path)
    assert len(read_all(store, store.queue("orders", 0))) == 1 + len(batch)
    store.close()


def test_one_that_waits_for_room_is_placed_when_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many batches wait at once, and each is tried whenever a file has grown."""
    placed = []
    place = record_batch.place_records

    def counted(batch: RecordBatch, places: list[int], now: int) -> bytearray:
        placed.append(batch)
        return place(batch, places, now)

    monkeypatch.setattr(record_batch, "place_records", counted)
    store = MessageStore(small_config(tmp_path), HOSTS["IPv4"], waits=False)
    store.open()
    tries, stored = 0, []
    while len(stored) < 4:
        batch, made = batch_of(store, UNITS_PER_FILE), Event()
        tries += 1
        try:
            store.append_batch(batch)
        except StoreBusy:
            store.when_preallocated(made.set)
            assert made.wait(10)
        else:
            stored.append(batch)
    assert tries > len(stored)
    assert len(placed) == len(stored)
    store.close()


def test_a_batch_that_no_file_holds(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreError, match=r"a batch of \d+ bytes doesn't fit into a file of 65536 bytes"):
        store.append_batch(batch_of(store, 600))
    assert store.max_physical_offset == 0
    store.close()


def test_a_file_of_the_queue_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No unit stays in the previous file: it would point to a later record in the log."""
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    put(store, queue, b"first")
    batch = batch_of(store, 2 * UNITS_PER_FILE)
    store.append_batch(batch)
    store.close()
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    before = queue.max_offset
    batch = batch_of(store, UNITS_PER_FILE)
    map_it = MappedFile.map

    def no_descriptor(self: MappedFile) -> files.Mapping:
        if "consumequeue" in str(self.path) and str(self.path) == str(queue_files(tmp_path, "orders", 0)[-1]):
            raise StoreError("too many open files")
        return map_it(self)

    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "map", no_descriptor)
        with pytest.raises(StoreError, match="too many"):
            store.append_batch(batch)
    assert queue.max_offset == before
    put(store, queue, b"other")
    store.close()
    assert verify(small_config(tmp_path)).problems == []
