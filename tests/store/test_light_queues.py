"""Light queues: dispatch, the database of their units, and the ways back from the log."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from replica_support import append, follow, open_slave
from store_support import BORN_HOST, LOG_FILE, STORE_HOST, crash, log_files, open_store, put, read_all, small_config

from gantrymq.errors import StoreError, StoreFull
from gantrymq.protocol.multi_dispatch import dispatch_problem, named_queues, queue_offsets, with_queue_offsets
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH, decode_properties
from gantrymq.protocol.record import decode_records
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED
from gantrymq.store.get_result import GetStatus
from gantrymq.store.light.unit_database import UnitDatabase
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


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lets all writes to the database fail."""
    connection = sqlite3.connect(database(root), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.close()


def catch_up(store: MessageStore) -> None:
    assert store.light is not None
    while store.light.catch_up() is not None:
        pass


def rebuild(store: MessageStore) -> None:
    """Lets the next commit find the database damaged, so that it is built anew from the log."""

    def fails(database: UnitDatabase, *new: object) -> None:
        database.is_damaged = True
        database.path.unlink()
        raise StoreError("damaged")

    assert store.light is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnitDatabase, "commit", fails)
        with pytest.raises(StoreError, match="damaged"):
            store.light.catch_up()
    catch_up(store)


# -- properties -------------------------------------------------------------------------------------------------------


def test_properties() -> None:
    properties = with_queue_offsets(b"KEYS\x01k\x02INNER_MULTI_DISPATCH\x01%LMQ%a,x,%LMQ%b", [3, None, 5])
    assert decode_properties(properties)["INNER_MULTI_QUEUE_OFFSET"] == "3,,5"
    assert queue_offsets(properties) == {A: 3, B: 5}
    # A client can't choose the offsets.
    assert queue_offsets(with_queue_offsets(properties, [0, None, 0])) == {A: 0, B: 0}
    assert named_queues(b"INNER_MULTI_DISPATCH\x01 \x02") == ()


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
    assert "control character" in (problem("%LMQ%a\0b") or "")
    assert "no UTF-8" in (dispatch_problem(b"INNER_MULTI_DISPATCH\x01%LMQ%\xff", 2) or "")
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


def test_names_with_nul(root: Path) -> None:
    store = open_light(root)
    for name in ("%LMQ%a\0b", "%LMQ%a\0c", A):
        send(store, name.encode(), name)
    flush(store)
    store.close()
    for _ in range(2):
        store = open_light(root)
        assert bodies(store, A) == [A.encode()]
        store.close()
        shutil.rmtree(root / "lightqueue")


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


def test_a_crash_leaves_the_recovered_end(root: Path) -> None:
    store = open_light(root)
    send(store, b"0", A)
    flush(store)
    send(store, b"1", A)
    assert store.queue(A, 0).recovered_end is None
    crash(store)
    store = open_light(root)
    send(store, b"2", A, B)
    flush(store)
    assert store.get(store.queue(A, 0), 9, 1, 1 << 20).next_begin_offset == 2
    assert store.queue(B, 0).recovered_end == 0
    store.close()
    store = open_light(root)
    assert store.queue(A, 0).recovered_end is None
    store.close()


def test_a_deletion_resets_the_recovered_end(root: Path) -> None:
    """Otherwise, groups could keep their offsets of the old queue, because these do not exceed the recovered end."""
    store = open_light(root)
    results = [send(store, b"old", A) for _ in range(3)]
    crash(store)
    store = open_light(root)
    queue = store.queue(A, 0)
    assert queue.recovered_end == 3
    assert store.light is not None
    assert store.light.delete(A, results[-1].physical_offset + 1)
    assert (queue.recovered_end, queue.min_offset, queue.max_offset) == (0, 0, 0)
    assert offsets(store, send(store, b"new", A)) == "0"
    assert store.get(queue, 3, 1, 1 << 20).next_begin_offset == 0
    assert bodies(store, A) == [b"new"]
    store.close()


def test_a_truncation_leaves_the_recovered_end(tmp_path: Path) -> None:
    master, slave = open_light(tmp_path / "master"), open_slave(tmp_path / "slave", enable_lmq=True)
    results = [send(master, b"%d" % n, A) for n in range(4)]
    follow(master, slave, lambda: 1 << 20)
    slave.replica.truncate(results[2].physical_offset)
    slave.set_slave(False)
    assert slave.queue(A, 0).recovered_end == 2
    slave.set_slave(True)
    follow(master, slave, lambda: 1 << 20)
    # The lost records are back.
    slave.set_slave(False)
    assert (slave.queue(A, 0).recovered_end, slave.queue(A, 0).max_offset) == (None, 4)
    slave.close()
    master.close()


@pytest.mark.parametrize("shift", [-7, 3])
def test_a_position_inside_a_record_rebuilds(root: Path, shift: int) -> None:
    store = open_light(root)
    results = [send(store, b"%d" % n, A) for n in range(5)]
    store.close()
    with sqlite3.connect(database(root)) as connection:
        connection.execute("DELETE FROM unit WHERE queue_offset >= 3")
        connection.execute("UPDATE state SET position = ?", (results[3].physical_offset + shift,))
    connection.close()
    store = open_light(root)
    assert bodies(store, A) == [b"%d" % n for n in range(5)]
    store.close()


# -- a database that can't be used ------------------------------------------------------------------------------------


def test_a_database_that_cannot_be_written(root: Path) -> None:
    store = open_light(root)
    send(store, b"0", A)
    flush(store)
    with locked(root):
        for n in range(1, 1200):
            send(store, b"%d" % n, A)
        put(store, store.queue("T", 0), b"ordinary")
        with pytest.raises(StoreError):
            catch_up(store)
        assert len(bodies(store, A)) == 1200
        store.close()
        store = open_light(root)
        # The units come from the log.
        assert offsets(store, send(store, b"1200", A)) == "1200"
        assert len(read_all(store, store.queue("T", 0))) == 1202
    catch_up(store)
    assert bodies(store, A) == [b"%d" % n for n in range(1201)]
    store.close()


def test_pending_units_are_committed_in_parts(root: Path) -> None:
    store = open_light(root)
    names = [f"%LMQ%{n}" for n in range(7)]
    with locked(root):
        send(store, b"0", A)
        flush_fails(store)
        for n in range(1, 1500):
            send(store, b"%d" % n, A, *names[: n % 7])
    for n in range(1500, 1510):
        # Only `catch_up` ends the pause after an error.
        send(store, b"%d" % n, A)
    catch_up(store)
    for _ in range(2):
        assert bodies(store, A) == [b"%d" % n for n in range(1510)]
        assert bodies(store, "%LMQ%5") == [b"%d" % n for n in range(1500) if n % 7 > 5]
        store.close()
        store = open_light(root)
    store.close()


def flush_fails(store: MessageStore) -> None:
    with pytest.raises(StoreError, match="locked"):
        flush(store)


def test_pending_units_have_a_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantrymq.store.light.light_queues._MOST_PENDING", 600)
    store = open_light(root)
    with locked(root):
        for n in range(600):
            send(store, b"%d" % n, A)
        with pytest.raises(StoreFull) as caught:
            send(store, b"refused", A)
        assert str(root) not in str(caught.value)
        put(store, store.queue("T", 0), b"ordinary")
    catch_up(store)
    send(store, b"600", A)
    assert len(bodies(store, A)) == 601
    store.close()


def test_a_database_that_cannot_be_opened(root: Path) -> None:
    store = open_light(root)
    send(store, b"0", A)
    store.close()
    shutil.rmtree(root / "lightqueue")
    (root / "lightqueue").write_text("not a directory")
    store = open_light(root)
    put(store, store.queue("T", 0), b"ordinary")
    # Units are missing: a consumer must not take its offset for an illegal one.
    with pytest.raises(StoreError):
        store.queue(A, 0)
    with pytest.raises(StoreFull, match="unavailable"):
        send(store, b"refused", A)
    store.close()
    store = open_light(root)
    (root / "lightqueue").unlink()
    catch_up(store)
    send(store, b"1", A)
    assert bodies(store, A) == [b"0", b"1"]
    store.close()


def test_a_database_that_is_damaged_later_is_rebuilt(root: Path) -> None:
    store = open_light(root)
    for n in range(2000):
        send(store, b"%d" % n, A, f"%LMQ%{n}")
    flush(store)
    store.close()
    content = database(root).read_bytes()
    pages = len(content) // 4096
    # The schema is in the first page.
    database(root).write_bytes(content[: 8 * 4096] + b"\xff" * 4096 * (pages - 8))
    store = open_light(root)
    for name in (A, "%LMQ%1999", "%LMQ%3"):
        try:
            store.queue(name, 0)
        except StoreError:
            break
    catch_up(store)
    assert bodies(store, A) == [b"%d" % n for n in range(2000)]
    assert offsets(store, send(store, b"new", A, "%LMQ%1999")) == "2000,1"
    store.close()


def test_a_role_change_without_the_database(tmp_path: Path) -> None:
    master, slave = open_light(tmp_path / "master"), open_slave(tmp_path / "slave", enable_lmq=True)
    for n in range(1000):
        send(master, b"%d" % n, A, f"%LMQ%{n}")
    with locked(tmp_path / "slave"):
        follow(master, slave, lambda: 1 << 20)
        slave.set_slave(False)
        put(slave, slave.queue("T", 0), b"ordinary")
        slave.set_slave(True)
        slave.set_slave(False)
    catch_up(slave)
    assert offsets(slave, send(slave, b"own", A)) == "1000"
    assert bodies(slave, A) == [*bodies(master, A), b"own"]
    slave.close()
    master.close()


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


def test_a_slave_reports_queues_that_begin_anew(tmp_path: Path) -> None:
    """It reports each one once, also if the database is built anew."""
    master, slave = open_light(tmp_path / "master"), open_slave(tmp_path / "slave", enable_lmq=True)
    assert master.light is not None
    assert slave.light is not None
    reported: list[tuple[str, int]] = []
    slave.light.restart_listeners.append(lambda queue, at: reported.append((queue.topic, at)))
    for n in range(3):
        send(master, b"%d" % n, A, B)
    follow(master, slave, lambda: 1 << 20)
    assert not reported
    assert master.light.delete(A, master.max_physical_offset)
    first = send(master, b"new", A, B)
    send(master, b"newer", A, B)
    follow(master, slave, lambda: 1 << 20)
    assert reported == [(A, first.physical_offset)]
    rebuild(slave)
    assert bodies(slave, A) == [b"new", b"newer"]
    assert len(reported) == 1
    # The record becomes visible with the change to a master.
    slave.replica.confirm(slave.max_physical_offset)
    assert master.light.delete(A, master.max_physical_offset)
    last = send(master, b"last", A)
    follow(master, slave, lambda: 1 << 20)
    assert len(reported) == 1
    slave.set_slave(False)
    assert reported[1:] == [(A, last.physical_offset)]
    # A master's own records are no news.
    assert slave.light.delete(A, slave.max_physical_offset)
    send(slave, b"own", A)
    rebuild(slave)
    assert bodies(slave, A) == [b"own"]
    slave.close()
    database(tmp_path / "slave").unlink()
    slave = MessageStore(small_config(tmp_path / "slave", enable_lmq=True), STORE_HOST)
    assert slave.light is not None
    slave.light.restart_listeners.append(lambda queue, at: reported.append((queue.topic, at)))
    slave.open()
    assert bodies(slave, A) == [b"own"]
    assert len(reported) == 2
    slave.close()
    master.close()


def test_a_slave_whose_log_was_cut_reports_queues_that_begin_anew(tmp_path: Path) -> None:
    masters = [open_light(tmp_path / f"master-{number}") for number in range(2)]
    slave = open_slave(tmp_path / "slave", enable_lmq=True)
    for master in masters:
        send(master, b"0", A)
    last = send(masters[0], b"1", A)
    follow(masters[0], slave, lambda: 1 << 20)
    rebuild(slave)
    slave.replica.truncate(last.physical_offset)
    reported: list[tuple[str, int]] = []
    assert slave.light is not None
    slave.light.restart_listeners.append(lambda queue, at: reported.append((queue.topic, at)))
    assert masters[1].light is not None
    assert masters[1].light.delete(A, last.physical_offset)
    send(masters[1], b"new", A)
    follow(masters[1], slave, lambda: 1 << 20)
    assert reported == [(A, last.physical_offset)]
    assert bodies(slave, A) == [b"new"]
    for store in (*masters, slave):
        store.close()


@pytest.mark.parametrize("shift", [-5, 5])
def test_a_confirm_offset_inside_a_record(tmp_path: Path, shift: int) -> None:
    master, slave = open_light(tmp_path / "master"), open_slave(tmp_path / "slave", enable_lmq=True)
    results = [send(master, b"%d" % n, A) for n in range(4)]
    slave.replica.confirm(results[2].physical_offset + shift)
    follow(master, slave, lambda: 1 << 20)
    assert bodies(slave, A) == [b"0", b"1"][: 2 if shift > 0 else 1]
    slave.replica.confirm(results[3].physical_offset)
    assert bodies(slave, A) == [b"0", b"1", b"2"]
    slave.set_slave(False)
    assert offsets(slave, send(slave, b"own", A)) == "4"
    slave.close()
    master.close()


def test_a_truncation_without_the_database(tmp_path: Path) -> None:
    master, slave = open_light(tmp_path / "master"), open_slave(tmp_path / "slave", enable_lmq=True)
    results = [send(master, b"of A", A) for n in range(4)]
    follow(master, slave, lambda: 1 << 20)
    flush(slave)
    calls: list[int] = []
    slave.replica.cut_listeners.append(lambda: calls.append(1))
    with locked(tmp_path / "slave"):
        slave.replica.truncate(results[1].physical_offset)
        assert calls == [1]
        with pytest.raises(StoreError):
            slave.queue(A, 0)
    other = open_light(tmp_path / "other")
    send(other, b"of A", A)
    for _ in range(3):
        send(other, b"of B", B)
    follow(other, slave, lambda: 1 << 20)
    assert bodies(slave, A) == [b"of A"]
    assert bodies(slave, B) == [b"of B"] * 3
    for store in (master, slave, other):
        store.close()


def test_a_unit_of_another_record_shows_nothing(root: Path) -> None:
    store = open_light(root)
    first, second = send(store, b"of A", A), send(store, b"of B", B)
    flush(store)
    with sqlite3.connect(database(root)) as connection:
        connection.execute(
            "UPDATE unit SET physical_offset = ? WHERE physical_offset = ?",
            (second.physical_offset, first.physical_offset),
        )
    connection.close()
    assert bodies(store, A) == []
    store.close()


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
