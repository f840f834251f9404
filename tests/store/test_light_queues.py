"""Light queues: dispatch, the database of their units, and the ways back from the log."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from replica_support import append, follow, open_slave
from store_support import BORN_HOST, LOG_FILE, log_files, open_store, put, read_all

from gantrymq.protocol.multi_dispatch import dispatch_problem, named_queues, queue_offsets, with_queue_offsets
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH, decode_properties
from gantrymq.protocol.record import decode_records
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED
from gantrymq.store.get_result import GetStatus
from gantrymq.store.message_store import MessageStore, PutResult

A, B = "%LMQ%a", "%LMQ%b"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def open_light(root: Path, **options: Any) -> MessageStore:
    return open_store(root, enable_lmq=True, **options)


def send(store: MessageStore, body: bytes, *names: str, topic: str = "T", **options: Any) -> PutResult:
    properties = b"INNER_MULTI_DISPATCH\x01%b\x02" % ",".join(names).encode()
    return put(store, store.queue(topic, 0), body, properties=properties, **options)


def bodies(store: MessageStore, name: str) -> list[bytes]:
    return [record.body for record in read_all(store, store.queue(name, 0))]


def offsets(store: MessageStore, result: PutResult) -> str | None:
    record = store.read_record(result.physical_offset)
    return decode_properties(record.properties).get("INNER_MULTI_QUEUE_OFFSET")


def flush(store: MessageStore) -> None:
    assert store.light is not None
    store.light.flush()


def database(root: Path) -> Path:
    return root / "lightqueue" / "units.db"


# -- properties -------------------------------------------------------------------------------------------------------


def test_properties() -> None:
    properties = with_queue_offsets(b"KEYS\x01k\x02INNER_MULTI_DISPATCH\x01%LMQ%a,x,%LMQ%b", [3, None, 5])
    assert decode_properties(properties)["INNER_MULTI_QUEUE_OFFSET"] == "3,,5"
    assert queue_offsets(properties) == {A: 3, B: 5}
    # A client can't choose the offsets.
    assert queue_offsets(with_queue_offsets(properties, [0, None, 0])) == {A: 0, B: 0}
    assert named_queues(b"INNER_MULTI_DISPATCH\x01 \x02") == []


@pytest.mark.parametrize("value", ["1", "1,2,3", "x,1", "-1,1", "1" * 20 + ",1", "²,1"])
def test_illegal_offsets(value: str) -> None:
    encoded = f"INNER_MULTI_DISPATCH\x01{A},{B}\x02INNER_MULTI_QUEUE_OFFSET\x01{value}\x02".encode()
    assert A not in queue_offsets(encoded)


def test_dispatch_problems() -> None:
    def problem(names: str, other: bytes = b"") -> str | None:
        return dispatch_problem(b"INNER_MULTI_DISPATCH\x01%b\x02%b" % (names.encode(), other), 2)

    assert problem(f"{A},{B}") is None
    assert "3 queues" in (problem("a,b,c") or "")
    assert "256 bytes" in (problem("x" * 256) or "")
    assert "no space" in (problem(A, b"x\x01" + b"y" * (MAX_PROPERTIES_LENGTH - 60)) or "")


# -- dispatch ---------------------------------------------------------------------------------------------------------


def test_dispatch(root: Path) -> None:
    store = open_light(root)
    assert offsets(store, send(store, b"one", A, B)) == "0,0"
    assert offsets(store, send(store, b"two", "other", A)) == ",1"
    assert offsets(store, send(store, b"three", B, A, A)) == "1,2,2"
    put(store, store.queue("T", 0), b"to no light queue")
    for _ in range(2):
        assert bodies(store, A) == [b"one", b"two", b"three"]
        assert bodies(store, B) == [b"one", b"three"]
        # The units come from memory, then from the database.
        flush(store)
    assert len(read_all(store, store.queue("T", 0))) == 4
    assert store.topics() == {"T": [0]}
    store.close()


def test_dispatch_is_off_by_default(root: Path) -> None:
    store = open_store(root)
    assert offsets(store, send(store, b"one", A)) is None
    assert store.find_queue(A, 0) is None
    store.close()
    assert not database(root).exists()


@pytest.mark.parametrize(
    "topic", ["%RETRY%g", "%DLQ%g", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"]
)
def test_topics_without_dispatch(root: Path, topic: str) -> None:
    store = open_light(root)
    assert offsets(store, send(store, b"one", A, topic=topic)) is None
    assert offsets(store, send(store, b"half", A, sys_flag=TRANSACTION_PREPARED)) is None
    assert bodies(store, A) == []
    store.close()


def test_reads(root: Path) -> None:
    store = open_light(root, max_transfer_count_on_message_in_memory=10)
    for n in range(100):
        send(store, b"%d" % n, A, tags_code=n % 2)
        if n == 60:
            flush(store)
    queue = store.queue(A, 0)
    found = store.get(queue, 0, 32, 1 << 20)
    assert (found.status, found.message_count, found.next_begin_offset) == (GetStatus.FOUND, 10, 10)
    assert store.get(queue, 100, 32, 1 << 20).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.get(queue, 101, 32, 1 << 20).next_begin_offset == 100
    odd = store.get(queue, 0, 3, 1 << 20, frozenset([1]))
    assert [record.body for buffer in odd.buffers for record in decode_records(buffer)] == [b"1", b"3", b"5"]
    assert odd.next_begin_offset == 6
    none = store.get(queue, 0, 3, 1 << 20, frozenset([7]))
    assert (none.status, none.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 61)
    matching = store.get(queue, 98, 3, 1 << 20, None, lambda record: b"99" in bytes(record))
    assert matching.message_count == 1
    assert store.get(queue, 0, 10, 300).message_count == 2
    assert store.store_time(queue, 99) > 0
    assert store.offset_by_time(queue, 0) == 0
    store.close()


def test_queues_leave_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.store.light.light_queues.MAX_CACHED", 3)
    store = open_light(root)
    names = [f"%LMQ%{n}" for n in range(10)]
    for n in range(30):
        send(store, b"%d" % n, names[n % 10])
        flush(store)
    kept = store.queue(names[0], 0)
    for number, name in enumerate(names):
        assert bodies(store, name) == [b"%d" % (number + 10 * n) for n in range(3)]
    assert store.queue(names[0], 0) is kept, "a pull that waits must find its queue"
    store.close()


# -- opening ----------------------------------------------------------------------------------------------------------


def test_reopening(root: Path) -> None:
    store = open_light(root)
    send(store, b"one", A, B)
    store.close()
    again = open_light(root)
    assert offsets(again, send(again, b"two", A)) == "1"
    assert bodies(again, A) == [b"one", b"two"]
    assert bodies(again, B) == [b"one"]
    again.close()


def write_in_two_parts(root: Path) -> Path:
    """Returns a copy of the store without the second part."""
    store = open_light(root)
    for n in range(200):
        send(store, b"%d" % n, A, f"%LMQ%{n % 7}")
    store.close()
    early = root.with_name("early")
    shutil.copytree(root, early)
    store = open_light(root)
    for n in range(200, 400):
        send(store, b"%d" % n, A, f"%LMQ%{n % 9}")
    store.close()
    return early


def check_all(root: Path) -> None:
    store = open_light(root)
    assert bodies(store, A) == [b"%d" % n for n in range(400)]
    assert bodies(store, "%LMQ%8") == [b"%d" % n for n in range(200, 400) if n % 9 == 8]
    assert offsets(store, send(store, b"next", A)) == "400"
    store.close()


def test_units_that_a_crash_lost_come_from_the_log(root: Path) -> None:
    early = write_in_two_parts(root)
    shutil.rmtree(root / "lightqueue")
    shutil.copytree(early / "lightqueue", root / "lightqueue")
    check_all(root)


@pytest.mark.parametrize("damage", ["missing", "no database", "page", "version", "other log"])
def test_an_unusable_database_is_built_anew(root: Path, tmp_path: Path, damage: str) -> None:
    write_in_two_parts(root)
    path = database(root)
    if damage == "missing":
        shutil.rmtree(path.parent)
    elif damage == "no database":
        path.write_bytes(b"x" * 5000)
    elif damage == "page":
        content = path.read_bytes()
        path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    elif damage == "version":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 77")
        connection.close()
    else:
        other = open_light(tmp_path / "other")
        for _ in range(100):
            send(other, b"of another log", B)
        other.close()
        shutil.copy(database(tmp_path / "other"), path)
    check_all(root)


def test_units_of_lost_records_go(root: Path) -> None:
    early = write_in_two_parts(root)
    shutil.copytree(root / "lightqueue", early / "lightqueue", dirs_exist_ok=True)
    store = open_light(early)
    assert bodies(store, A) == [b"%d" % n for n in range(200)]
    assert bodies(store, "%LMQ%8") == []
    assert offsets(store, send(store, b"next", A, "%LMQ%8")) == "200,0"
    store.close()
    again = open_light(early)
    assert bodies(again, A)[-1] == bodies(again, "%LMQ%8")[-1] == b"next"
    again.close()


def test_switched_off_for_some_time(root: Path) -> None:
    store = open_light(root)
    send(store, b"one", A)
    store.close()
    store = open_store(root)
    send(store, b"not dispatched", A)
    store.close()
    store = open_light(root)
    send(store, b"two", A)
    assert bodies(store, A) == [b"one", b"two"]
    store.close()


# -- slaves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [50, 1000, 1 << 20])
def test_a_slave_dispatches(tmp_path: Path, piece: int) -> None:
    master, slave = open_light(tmp_path / "master"), open_slave(tmp_path / "slave", enable_lmq=True)
    for n in range(300):
        send(master, b"%d" % n, A, f"%LMQ%{n % 5}")
    follow(master, slave, lambda: piece)
    for name in (A, "%LMQ%3"):
        assert bodies(slave, name) == bodies(master, name)
    slave.close()
    slave = open_slave(tmp_path / "slave", enable_lmq=True)
    send(master, b"last", A)
    changed = append(slave, master.log_slice(slave.replica.received, 1 << 20) or b"")
    assert {queue.topic for queue in changed} == {"T", A}
    assert bodies(slave, A) == bodies(master, A)
    slave.set_slave(False)
    assert offsets(slave, send(slave, b"own", A)) == "301"
    slave.set_slave(True)
    slave.close()
    again = open_light(tmp_path / "slave")
    assert bodies(again, A)[-2:] == [b"last", b"own"]
    again.close()
    master.close()


@pytest.mark.parametrize("forged", [0, 3, 5, 7, (1 << 63) - 2])
def test_forged_offsets(tmp_path: Path, forged: int) -> None:
    """The messages of a batch are not dispatched, but they can contain the property. The next message is right."""
    master, slave = open_light(tmp_path / "master"), open_slave(tmp_path / "slave", enable_lmq=True)
    for n in range(5):
        send(master, b"%d" % n, A)
    properties = b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x01"
    batch = master.begin_batch(master.queue("T", 0), 0, 1, BORN_HOST, 0)
    batch.add(0, b"forged", properties + b"%d,%d\x02" % (forged, forged), 0)
    master.append_batch(batch)
    send(master, b"5", A, B)
    send(master, b"6", A, B)
    follow(master, slave, lambda: 1 << 20)
    slave.close()
    slave = open_slave(tmp_path / "slave", enable_lmq=True)
    assert (slave.queue(A, 0).max_offset, slave.queue(B, 0).max_offset) == (7, 2)
    assert bodies(slave, A)[forged if forged < 5 else 5 :][-2:] == [b"5", b"6"]
    assert bodies(slave, B) == [b"5", b"6"]
    slave.set_slave(False)
    assert offsets(slave, send(slave, b"7", A, B)) == "7,2"
    slave.close()
    master.close()


def test_unconfirmed_messages_are_invisible(tmp_path: Path) -> None:
    master, slave = open_light(tmp_path / "master"), open_slave(tmp_path / "slave", enable_lmq=True)
    slave.replica.confirm(0)
    first = send(master, b"one", A)
    send(master, b"two", A)
    follow(master, slave, lambda: 1 << 20)
    assert bodies(slave, A) == []
    slave.replica.confirm(first.physical_offset + first.size)
    assert bodies(slave, A) == [b"one"]
    slave.set_slave(False)
    assert bodies(slave, A) == [b"one", b"two"]
    assert offsets(slave, send(slave, b"three", A)) == "2"
    slave.close()
    master.close()


def test_truncation(tmp_path: Path) -> None:
    master, slave = open_light(tmp_path / "master"), open_slave(tmp_path / "slave", enable_lmq=True)
    results = [send(master, b"%d" % n, A, f"%LMQ%{n}") for n in range(20)]
    follow(master, slave, lambda: 1 << 20)
    flush(slave)
    queue = slave.queue(A, 0)
    slave.replica.truncate(results[10].physical_offset)
    assert queue.max_offset == 10
    assert bodies(slave, A) == [b"%d" % n for n in range(10)]
    assert bodies(slave, "%LMQ%15") == []
    follow(master, slave, lambda: 1 << 20)
    assert bodies(slave, A) == bodies(master, A)
    slave.close()
    master.close()


# -- retention --------------------------------------------------------------------------------------------------------


def test_expired_units_go(root: Path) -> None:
    store = open_light(root, disk_max_used_space_ratio=10, file_reserved_time=0)
    send(store, b"old", B)
    n = 0
    while len(log_files(root)) < 5:
        send(store, b"%d" % n + bytes(1000), A)
        n += 1
    begin = 2 * LOG_FILE
    store.delete_expired_soon()
    while store.min_physical_offset < begin:
        store.clean(1 << 60)
    queue = store.queue(A, 0)
    assert 0 < queue.min_offset < n == queue.max_offset
    assert store.get(queue, 0, 32, 1 << 20).status is GetStatus.OFFSET_TOO_SMALL
    assert bodies(store, A)[-1].startswith(b"%d" % (n - 1))
    flush(store)
    while store.clean(1):
        pass
    with sqlite3.connect(database(root)) as connection:
        (oldest,) = connection.execute("SELECT min(physical_offset) FROM unit").fetchone()
    connection.close()
    assert oldest >= store.min_physical_offset
    for _ in range(2):
        # The offsets go on, although no message is left.
        assert (store.queue(B, 0).min_offset, store.queue(B, 0).max_offset) == (1, 1)
        store.close()
        store = open_light(root)
    assert offsets(store, send(store, b"new", B)) == "1"
    assert bodies(store, B) == [b"new"]
    store.close()


def test_a_slave_without_the_beginning(tmp_path: Path) -> None:
    master = open_light(tmp_path / "master")
    n = 0
    while master.max_physical_offset < 3 * LOG_FILE:
        send(master, b"%d" % n + bytes(1000), A)
        n += 1
    slave = open_slave(tmp_path / "slave", enable_lmq=True)
    slave.replica.begin_at(LOG_FILE)
    follow(master, slave, lambda: 5000)
    queue = slave.queue(A, 0)
    assert 0 < queue.min_offset < queue.max_offset == n
    assert bodies(slave, A) == bodies(master, A)[queue.min_offset :]
    slave.close()
    master.close()
