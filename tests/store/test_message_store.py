"""Appending and reading.

The tests cover offsets, the byte layout, full files, results of pulls, and errors that store nothing.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
import zlib
from functools import partial
from pathlib import Path

import pytest
from store_support import (
    BORN_HOST,
    LOG_FILE,
    STORE_HOST,
    UNITS_PER_FILE,
    log_files,
    lose_file,
    open_store,
    put,
    pwrite_that_fails,
    queue_files,
    read_all,
    small_config,
)

from gantrymq.errors import RecordError, StoreError, StoreFull, StoreLocked
from gantrymq.kernels import native
from gantrymq.protocol.record import decode_record, decode_records, encode_host
from gantrymq.store import collect, message_writer
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetStatus
from gantrymq.store.message_store import MessageStore
from gantrymq.store.offline import is_in_use
from gantrymq.store.verify import verify
from gantrymq.system import files


@pytest.fixture
def store(tmp_path: Path):
    store = open_store(tmp_path / "store")
    yield store
    store.close()


# -- written records -------------------------------------------------------------------------------------------------


def test_round_trip(store):
    queue = store.queue("Fruit", 3)
    first = store.append(queue, 5, 1, 1234, BORN_HOST, 2, b"apple", b"TAGS\x01a\x02", 97, 4711)
    second = put(store, queue, b"")
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert second.physical_offset == first.physical_offset + first.size
    record = store.read_record(first.physical_offset)
    assert record.topic == b"Fruit"
    assert record.queue_id == 3
    assert (record.body, record.properties) == (b"apple", b"TAGS\x01a\x02")
    assert (record.flag, record.sys_flag, record.reconsume_times) == (5, 1, 2)
    assert (record.born_timestamp, record.born_host, record.store_host) == (1234, BORN_HOST, STORE_HOST)
    assert record.store_timestamp == first.store_timestamp == store.store_time(queue, 0)
    assert record.prepared_transaction_offset == 4711
    assert [record.body for record in read_all(store, queue)] == [b"apple", b""]
    assert store.max_physical_offset == second.physical_offset + second.size
    assert store.find_queue("Fruit", 3) is queue
    assert store.find_queue("Fruit", 4) is None
    assert store.find_queue("Nut", 0) is None


def test_bytes_on_disk(tmp_path, store):
    """Compares with a record and a unit packed by hand, following `MessageExtEncoder` and `ConsumeQueue`."""
    queue = store.queue("TopicTest", 2)
    put(store, queue, b"first")
    at = store.max_physical_offset
    result = store.append(queue, 9, 0, 1_111, BORN_HOST, 3, b"hello", b"KEYS\x01k\x02", -2, 0)
    expected = (
        struct.pack(">iIiiiqq", 91 + 5 + 9 + 7, 0xDAA320A7, zlib.crc32(b"hello") & 0x7FFFFFFF, 2, 9, 1, at)
        + struct.pack(">iq", 0, 1_111)
        + bytes([10, 1, 2, 3])
        + struct.pack(">iq", 54321, result.store_timestamp)
        + bytes([127, 0, 0, 1])
        + struct.pack(">iiqi5sb9sh7s", 10911, 3, 0, 5, b"hello", 9, b"TopicTest", 7, b"KEYS\x01k\x02")
    )
    root = tmp_path / "store"
    assert log_files(root)[0].read_bytes()[at : at + result.size + 8] == expected + bytes(8)
    (file,) = queue_files(root, "TopicTest", 2)
    assert file.name == "0" * 20
    assert file.stat().st_size == UNITS_PER_FILE * 20
    assert file.read_bytes()[20:60] == struct.pack(">qiq", at, result.size, -2) + bytes(20)


def test_files_roll_over_with_a_blank(tmp_path, store):
    queue = store.queue("Roll", 0)
    bodies = [bytes([n]) * 10_000 for n in range(20)]
    results = [put(store, queue, body) for body in bodies]
    assert [result.queue_offset for result in results] == list(range(20))
    files = log_files(tmp_path / "store")
    last = results[-1].physical_offset // LOG_FILE
    assert {f"{n * LOG_FILE:020d}" for n in range(last + 1)} <= {file.name for file in files}
    size = results[0].size
    per_file = (LOG_FILE - 8) // size
    assert results[per_file].physical_offset == LOG_FILE
    first = files[0].read_bytes()
    assert len(first) == LOG_FILE
    blank = LOG_FILE - per_file * size
    assert struct.unpack_from(">iI", first, per_file * size) == (blank, 0xCBD43194)
    assert [record.body for record in read_all(store, queue)] == bodies


def test_a_record_leaves_room_for_a_blank(store):
    """A record that would leave 7 bytes goes to the next file, and one that leaves 8 does not.

    Source: `CommitLog.doAppend`.
    """
    queue = store.queue("Edge", 0)
    overhead = put(store, queue, b"").size
    put(store, queue, bytes(LOG_FILE - 2 * overhead - 7))
    assert store.max_physical_offset == LOG_FILE + LOG_FILE - overhead - 7
    put(store, queue, b"")
    assert store.read_record(2 * LOG_FILE).body == b""
    result = put(store, queue, bytes(LOG_FILE - 2 * overhead - 8))
    assert result.physical_offset == 2 * LOG_FILE + overhead
    assert len(read_all(store, queue)) == 4


def test_queue_files_roll_over(tmp_path, store):
    queue = store.queue("Many", 1)
    count = 2 * UNITS_PER_FILE + 1
    for n in range(count):
        assert put(store, queue, b"%d" % n).queue_offset == n
    files = queue_files(tmp_path / "store", "Many", 1)
    assert [file.name for file in files] == [f"{n * UNITS_PER_FILE * 20:020d}" for n in range(3)]
    assert [record.body for record in read_all(store, queue)] == [b"%d" % n for n in range(count)]


def test_transactions(store):
    queue = store.queue("Tx", 0)
    prepared, committed, rolled_back = (put(store, queue, b"x", sys_flag=flag) for flag in (4, 8, 12))
    assert (prepared.queue_offset, committed.queue_offset, rolled_back.queue_offset) == (0, 0, 0)
    assert queue.max_offset == 1
    (record,) = read_all(store, queue)
    assert record.physical_offset == committed.physical_offset
    assert store.read_record(prepared.physical_offset).queue_offset == 0


def test_hosts_set_their_flags(tmp_path):
    v6 = encode_host("2001:db8::1", 1)
    for store_host, born_host, bits in ((STORE_HOST, v6, 16), (v6, BORN_HOST, 32), (v6, v6, 48)):
        store = MessageStore(small_config(tmp_path / str(bits)), store_host)
        store.open()
        queue = store.queue("Six", 0)
        # The client's flags must not change the layout, which depends on the hosts.
        put(store, queue, b"body", sys_flag=48 ^ bits, born_host=born_host)
        (record,) = read_all(store, queue)
        assert (record.sys_flag, record.born_host, record.store_host) == (bits, born_host, store_host)
        assert store.store_time(queue, 0) == record.store_timestamp
        store.close()


def test_long_topic(store):
    queue = store.queue("%RETRY%" + "g" * 200, 0)
    put(store, queue, b"body")
    assert read_all(store, queue)[0].topic == queue.topic_bytes


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../../etc", "a\0b", "x" * 256])
def test_impossible_topics(tmp_path, store, topic):
    with pytest.raises(StoreError):
        store.queue(topic, 0)
    store.delete_topic(topic)
    with pytest.raises(StoreError):
        store.queue("T", -1)
    assert not (tmp_path / "store" / "consumequeue").exists()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"body": bytes(70_000)}, StoreError),
        ({"properties": bytes(40_000)}, RecordError),
        ({"flag": 1 << 40}, RecordError),
        ({"tags_code": 1 << 63}, RecordError),
    ],
)
def test_refused_messages_store_nothing(tmp_path, changes, error):
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    put(store, queue, b"before")
    end = store.max_physical_offset
    message = {
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": 0,
        "born_host": BORN_HOST,
        "reconsume_times": 0,
        "body": b"",
        "properties": b"",
        "tags_code": 0,
    }
    with pytest.raises(error):
        store.append(queue, **(message | changes))
    assert (store.max_physical_offset, queue.max_offset) == (end, 1)
    assert put(store, queue, b"after").queue_offset == 1
    assert [record.body for record in read_all(store, queue)] == [b"before", b"after"]
    store.close()


def test_record_larger_than_a_file(store):
    queue = store.queue("T", 0)
    with pytest.raises(StoreError, match="doesn't fit"):
        put(store, queue, bytes(LOG_FILE))
    assert put(store, queue, b"small").physical_offset == 0


# -- pulls -----------------------------------------------------------------------------------------------------------


def test_neighbours_are_one_buffer(store):
    alone, one, two = (store.queue(topic, 0) for topic in ("Alone", "One", "Two"))
    for n in range(10):
        put(store, alone, b"%d" % n)
    for n in range(10):
        put(store, one, b"%d" % n)
        put(store, two, b"%d" % n)
    assert len(store.get(alone, 0, 32, 1 << 20).buffers) == 1
    # Native code copies small records that are not adjacent.
    assert len(store.get(one, 0, 32, 1 << 20).buffers) == (10 if native is None else 1)
    result = store.get(alone, 2, 3, 1 << 20)
    assert (result.status, result.message_count, result.next_begin_offset) == (GetStatus.FOUND, 3, 5)
    assert result.size == sum(len(buffer) for buffer in result.buffers)
    assert [record.body for record in decode_records(result.buffers[0])] == [b"2", b"3", b"4"]
    assert memoryview(result.buffers[0]).readonly


def test_one_pull_over_two_log_files(store):
    queue = store.queue("T", 0)
    for n in range(12):
        put(store, queue, bytes([n]) * 10_000)
    result = store.get(queue, 4, 4, 1 << 20)
    assert len(result.buffers) == 2
    bodies = [record.body[0] for buffer in result.buffers for record in decode_records(buffer)]
    assert bodies == [4, 5, 6, 7]


def test_statuses(store):
    def pull(queue, offset, tags_codes=None):
        result = store.get(queue, offset, 10, 1 << 20, tags_codes)
        return result.status, result.next_begin_offset, result.min_offset, result.max_offset

    queue = store.queue("T", 0)
    assert pull(None, 7) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    assert pull(queue, 7) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    for _ in range(3):
        put(store, queue, b"x", tags_code=1)
    assert pull(queue, -1) == (GetStatus.OFFSET_TOO_SMALL, 0, 0, 3)
    assert pull(queue, 3) == (GetStatus.OFFSET_OVERFLOW_ONE, 3, 0, 3)
    assert pull(queue, 4) == (GetStatus.OFFSET_OVERFLOW_BADLY, 3, 0, 3)
    assert pull(queue, 1) == (GetStatus.FOUND, 3, 0, 3)
    assert pull(queue, 1, frozenset()) == (GetStatus.NO_MATCHED_MESSAGE, 3, 0, 3)


def test_statuses_when_the_log_was_cut_at_its_beginning(tmp_path):
    """The state after retention: the first log file and the first queue file are deleted."""
    store = open_store(tmp_path)
    queue, quiet = store.queue("T", 0), store.queue("Quiet", 0)
    put(store, quiet, b"long ago")
    for n in range(150):
        put(store, queue, bytes([n]) * 900)
    store.close()
    log_files(tmp_path)[0].unlink()
    queue_files(tmp_path, "T")[0].unlink()
    store = open_store(tmp_path)
    queue, quiet = store.queue("T", 0), store.queue("Quiet", 0)
    assert store.min_physical_offset == LOG_FILE
    assert queue.max_offset == 150
    bodies = [record.body[0] for record in read_all(store, queue)]
    assert bodies == list(range(queue.min_offset, 150))
    assert store.get(queue, queue.min_offset - 1, 1, 100).status is GetStatus.OFFSET_TOO_SMALL
    # A queue without messages keeps its largest offset.
    assert (quiet.min_offset, quiet.max_offset) == (1, 1)
    assert put(store, quiet, b"now").queue_offset == 1
    store.close()
    store = open_store(tmp_path)
    assert [record.body for record in read_all(store, store.queue("Quiet", 0))] == [b"now"]
    store.close()


def test_missing_queue_file_is_offset_found_null(tmp_path, store):
    queue = store.queue("T", 0)
    for n in range(120):
        put(store, queue, b"%d" % n)
    lose_file(queue, UNITS_PER_FILE * 20)
    result = store.get(queue, 60, 10, 1 << 20)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_FOUND_NULL, 100)


def test_unit_that_points_to_another_record(store, caplog):
    queue, other = store.queue("T", 0), store.queue("Other", 0)
    for n in range(4):
        put(store, queue, b"%d" % n)
    wrong = put(store, other, b"secret")
    struct.pack_into(">qi", queue.mapping, 20, wrong.physical_offset, wrong.size)
    assert [record.body for record in read_all(store, queue)] == [b"0", b"2", b"3"]
    assert store.get(queue, 1, 1, 100).status is GetStatus.FOUND
    struct.pack_into(">qi", queue.mapping, 60, 1 << 60, 1 << 30)
    result = store.get(queue, 3, 1, 100)
    assert (result.status, result.next_begin_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 4)
    assert "points to no record" in caplog.text


@pytest.mark.parametrize("damaged", [0, 2, 5, 8, 9])
@pytest.mark.parametrize("unit", [(0, 0), (-200, 100), (1 << 60, 1 << 30), None], ids=["empty", "neg", "far", "other"])
def test_a_damaged_unit_among_records_side_by_side(store, damaged, unit):
    queue, other = store.queue("T", 0), store.queue("Other", 0)
    for n in range(10):
        put(store, queue, b"%d" % n)
    put(store, other, b"")
    secret = put(store, other, b"secret")
    struct.pack_into(">qi", queue.mapping, 20 * damaged, *(unit or (secret.physical_offset, secret.size)))
    expected = [b"%d" % n for n in range(10) if n != damaged]
    assert [record.body for record in read_all(store, queue)] == expected
    result = store.get(queue, 0, 32, 1 << 20)
    assert result.size == sum(map(len, result.buffers))


def test_filter_sees_the_tags_code(store):
    queue = store.queue("T", 0)
    for n in range(100):
        put(store, queue, b"%d" % n, tags_code=n % 10 - 5)
    result = store.get(queue, 0, 32, 1 << 20, frozenset({-5}))
    # A result never extends beyond a queue file.
    assert (result.message_count, result.next_begin_offset) == (5, 50)
    bodies = [record.body for buffer in result.buffers for record in decode_records(buffer)]
    assert bodies == [b"0", b"10", b"20", b"30", b"40"]
    result = store.get(queue, 91, 32, 1 << 20, frozenset({-5}))
    assert (result.status, result.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 100)


def test_limits_of_a_pull(tmp_path):
    store = open_store(tmp_path / "memory", max_transfer_bytes_on_message_in_memory=5000)
    queue = store.queue("T", 0)
    for _ in range(49):
        size = put(store, queue, bytes(900)).size
    assert store.get(queue, 0, 100, 1 << 20).message_count == 5000 // size
    assert store.get(queue, 0, 2, 1 << 20).message_count == 2
    assert store.get(queue, 0, 100, 3 * size).message_count == 3
    assert store.get(queue, 0, 0, 0).message_count == 1
    assert not store.get(queue, 0, 1, 100).suggest_pulling_from_slave
    store.close()

    store = open_store(tmp_path / "disk", access_message_in_memory_max_ratio=0, max_transfer_count_on_message_in_disk=8)
    queue = store.queue("T", 0)
    for _ in range(49):
        put(store, queue, bytes(900))
    result = store.get(queue, 0, 100, 1 << 20)
    assert (result.message_count, result.suggest_pulling_from_slave) == (8, True)
    store.close()


def test_bulk_readers(tmp_path, monkeypatch):
    """One pull returns thousands of messages, but reads only as many units as it can return."""
    store = open_store(tmp_path, mapped_file_size_consume_queue=3000 * 20, max_filter_message_size=0)
    queue = store.queue("T", 0)
    for _ in range(2500):
        put(store, queue, b"")
    asked = []
    units = ConsumeQueue.units
    monkeypatch.setattr(ConsumeQueue, "units", lambda self, at, count: asked.append(count) or units(self, at, count))
    assert store.get(queue, 0, 2000, 1 << 20, bulk=True).message_count == 2000
    assert store.get(queue, 0, 1 << 30, 1 << 20, bulk=True).message_count == 2500
    assert store.get(queue, 0, 0, 1 << 20, bulk=True).message_count == 1
    assert store.get(queue, 0, 1 << 30, 1 << 20).message_count == 32
    assert asked == [2000, store.config.max_bulk_transfer_count, 1, 32]
    store.config.max_bulk_transfer_bytes = 1000
    assert store.get(queue, 0, 2000, 1 << 20, bulk=True).size <= 1000
    store.close()


def test_limits_are_those_of_java(tmp_path):
    store = open_store(tmp_path)
    config = store.config
    assert (config.max_transfer_count_on_message_in_memory, config.max_transfer_count_on_message_in_disk) == (32, 8)
    assert config.max_transfer_bytes_on_message_in_memory == 256 * 1024
    assert config.max_transfer_bytes_on_message_in_disk == 64 * 1024
    store.close()


def test_a_filter_that_takes_long_ends_a_result(tmp_path, monkeypatch):
    """A slow filter ends a result early, and the next pull continues there.

    Each result advances by at least one message.
    """
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    for n in range(40):
        put(store, queue, b"%d" % n)
    now, step_s = 0.0, 0.001
    monkeypatch.setattr(collect, "monotonic", lambda: now)

    def matches(record, wanted=()):
        nonlocal now
        now += step_s
        return decode_record(record).body in wanted

    result = store.get(queue, 5, 32, 1 << 20, None, matches)
    assert (result.status, result.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 8)
    result = store.get(queue, 5, 32, 1 << 20, None, partial(matches, wanted={b"6", b"9"}))
    assert (result.status, result.message_count, result.next_begin_offset) == (GetStatus.FOUND, 1, 8)
    step_s = 1.0
    result = store.get(queue, 5, 32, 1 << 20, None, matches)
    assert (result.status, result.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 6)
    store.close()


@pytest.mark.parametrize("upper", [False, True])
def test_offset_by_time(store, monkeypatch, upper):
    times = [10, 10, 20, 20, 20, 40, 50] * 1
    queue = store.queue("T", 0)
    assert store.offset_by_time(queue, 5, upper) == 0
    for ms in times:
        monkeypatch.setattr(message_writer, "time", lambda ms=ms: ms / 1000)
        put(store, queue, b"")
    for ms in range(60):
        if upper:
            expected = max([n for n, stored in enumerate(times) if stored <= ms], default=0)
        else:
            expected = min([n for n, stored in enumerate(times) if stored >= ms], default=len(times))
        assert store.offset_by_time(queue, ms, upper) == expected, ms
    assert store.store_time(queue, 6) == 50
    assert store.store_time(queue, 7) == -1


def test_read_record_refuses_what_is_none(store):
    queue = store.queue("T", 0)
    result = put(store, queue, b"hello world")
    for offset in (result.physical_offset + 1, result.physical_offset + 4):
        with pytest.raises(RecordError):
            store.read_record(offset)
    for offset in (-1, store.max_physical_offset, 1 << 62):
        with pytest.raises(StoreError):
            store.read_record(offset)


# -- files, locks, open and close -------------------------------------------------------------------------------------


def test_topics_and_delete(tmp_path, store):
    for queue_id in (2, 0):
        put(store, store.queue("Kept", queue_id), b"x")
    deleted = store.queue("Deleted", 0)
    put(store, deleted, b"x")
    store.queue("Silent", 0)
    assert store.topics() == {"Kept": [0, 2], "Deleted": [0]}
    store.delete_topic("Deleted")
    assert store.topics() == {"Kept": [0, 2]}
    assert not (tmp_path / "store/consumequeue/Deleted").exists()
    with pytest.raises(StoreError, match="deleted"):
        put(store, deleted, b"x")
    again = store.queue("Deleted", 0)
    assert put(store, again, b"new").queue_offset == 0
    assert [record.body for record in read_all(store, again)] == [b"new"]


def test_buffers_outlive_the_store(tmp_path):
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    put(store, queue, b"still here")
    (buffer,) = store.get(queue, 0, 1, 100).buffers
    store.close()
    assert next(decode_records(buffer)).body == b"still here"


def test_closed_store(tmp_path):
    store = open_store(tmp_path)
    queue, mapped = store.queue("T", 0), store.queue("M", 0)
    result = put(store, mapped, b"x")
    store.close()
    store.close()
    for use in (
        lambda: put(store, queue, b"x"),
        lambda: put(store, mapped, b"x"),
        lambda: store.get(mapped, 0, 1, 100),
        lambda: store.read_record(result.physical_offset),
        lambda: store.when_flushed(0, print),
    ):
        with pytest.raises(StoreError, match="closed"):
            use()


def test_one_store_per_directory(tmp_path):
    store = open_store(tmp_path)
    with pytest.raises(StoreLocked, match=str(os.getpid())):
        open_store(tmp_path)
    script = (
        "import sys; from pathlib import Path; from gantrymq.errors import StoreLocked;"
        "from gantrymq.store.config import StoreConfig; from gantrymq.store.message_store import MessageStore\n"
        "try: MessageStore(StoreConfig(Path(sys.argv[1])), bytes(8)).open()\n"
        "except StoreLocked as e: sys.exit(7)"
    )
    assert subprocess.run([sys.executable, "-c", script, tmp_path], timeout=30).returncode == 7
    # The failed attempts did not disturb the open store.
    assert put(store, store.queue("T", 0), b"x").queue_offset == 0
    store.close()
    open_store(tmp_path).close()


def test_one_store_per_log(tmp_path):
    """Two stores cannot use the same log.

    Otherwise both would write to it, and at the next start acknowledged messages would be dropped.
    """
    shared = tmp_path / "shared"
    for of_first, of_second in (
        ({"store_path_commit_log": [shared]}, {"store_path_commit_log": [shared]}),
        ({}, {"store_path_commit_log": [tmp_path / "a" / "commitlog"]}),
        ({}, {"store_path_commit_log": [tmp_path / "a"]}),
    ):
        store = open_store(tmp_path / "a", **of_first)
        queue = store.queue("T", 0)
        count = queue.max_offset
        with pytest.raises(StoreLocked, match="in use by another broker: stop it, or use another storePathCommitLog"):
            open_store(tmp_path / "b", **of_second)
        assert put(store, queue, b"x").queue_offset == count
        store.close()
        shutil.rmtree(tmp_path / "a")
    open_store(tmp_path / "b", store_path_commit_log=[shared]).close()


def test_a_deleted_lock_keeps_the_store_locked(tmp_path, monkeypatch, caplog):
    """The directory is locked, too. If directories cannot be locked, only the file is."""
    script = (
        "import sys; from pathlib import Path; from gantrymq.errors import StoreLocked;"
        "from gantrymq.store.config import StoreConfig; from gantrymq.store.message_store import MessageStore\n"
        "try: MessageStore(StoreConfig(Path(sys.argv[1])), bytes(8)).open()\n"
        "except StoreLocked as e: sys.exit(7)"
    )
    store = open_store(tmp_path)
    assert is_in_use(tmp_path)
    (tmp_path / "lock").unlink()
    assert is_in_use(tmp_path)
    with pytest.raises(StoreLocked, match=str(os.getpid())):
        open_store(tmp_path)
    assert subprocess.run([sys.executable, "-c", script, tmp_path], timeout=30).returncode == 7
    assert put(store, store.queue("T", 0), b"x").queue_offset == 0
    store.close()
    assert not is_in_use(tmp_path)

    def none(fd: int, operation: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("fcntl.flock", none)
    store = open_store(tmp_path)
    assert "only the file `lock` in storePathRootDir is" in caplog.text
    with pytest.raises(StoreLocked):
        open_store(tmp_path)
    store.close()
    assert not is_in_use(tmp_path / "none")


def test_lock_keeps_javas_broker_out(tmp_path):
    """Java's `FileChannel.tryLock(0, 1)` is a POSIX record lock of the first byte."""
    script = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "except OSError: sys.exit(7)"
    )
    store = open_store(tmp_path)
    assert subprocess.run([sys.executable, "-c", script, tmp_path / "lock"], timeout=30).returncode == 7
    store.close()
    assert subprocess.run([sys.executable, "-c", script, tmp_path / "lock"], timeout=30).returncode == 0


def test_abort_file(tmp_path):
    store = open_store(tmp_path)
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    store.close()
    assert not (tmp_path / "abort").exists()


def test_full_disk(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    put(store, queue, bytes(30_000))
    with monkeypatch.context() as patch:

        def full(fd, start, length):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(files, "allocate", full)
        with pytest.raises(StoreFull, match="disk is full"):
            put(store, queue, bytes(40_000))
        with pytest.raises(StoreFull):
            put(store, store.queue("Other", 0), b"")
        assert queue.max_offset == 1
    assert put(store, queue, bytes(40_000)).queue_offset == 1
    assert put(store, store.queue("Other", 0), b"").queue_offset == 0
    assert len(read_all(store, queue)) == 2
    store.close()
    store = open_store(tmp_path)
    assert len(read_all(store, store.queue("T", 0))) == 2
    store.close()


@pytest.mark.parametrize("done", [0, 1, 2000])
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch, done, is_batch):
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    put(store, queue, b"before")
    end = store.max_physical_offset

    def write():
        if not is_batch:
            return put(store, queue, bytes([1]) * 20_000)
        batch = store.begin_batch(queue, 0, 0, BORN_HOST, 0)
        for _ in range(30):
            batch.add(0, bytes([1]) * 1000, b"", 0)
        return store.append_batch(batch)

    with monkeypatch.context() as patch:
        patch.setattr(files, "pwrite", pwrite_that_fails(done))
        with pytest.raises(StoreError, match="planted"):
            write()
    assert (store.max_physical_offset, queue.max_offset) == (end, 1)
    (log,), (units,) = log_files(tmp_path), queue_files(tmp_path, "T")
    assert not any(log.read_bytes()[end:])
    assert not any(units.read_bytes()[20:])
    write()
    assert len(read_all(store, queue)) == (31 if is_batch else 2)
    store.close()
    assert verify(store.config).problems == []
