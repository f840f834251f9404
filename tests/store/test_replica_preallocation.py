"""Space for a slave's records.

The tests cover preallocation of files, a full disk, and a log that loses its first files.
"""

from __future__ import annotations

import errno
import random
import threading
import time
from pathlib import Path

import pytest
from replica_support import BEHIND, append, assert_equal, follow, log_bytes, open_slave, write
from store_support import (
    LOG_FILE,
    UNITS_PER_FILE,
    crash,
    flushed,
    log_files,
    open_store,
    put,
    pwrite_that_fails,
    read_all,
)

from gantrymq.errors import StoreBusy, StoreError, StoreFull, SyncFailed
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.mapped_file import MappedFile
from gantrymq.store.verify import verify
from gantrymq.system import files


def test_nobody_waits_for_a_file_that_is_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of all queues are requested at once, and not one after the other."""
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave", waits=False)
    for n in range(40):
        put(master, master.queue("T", n), b"%d" % n)
    data = log_bytes(master, 0)
    go_on = threading.Event()
    allocate = files.allocate

    def slowly(fd: int, start: int, count: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert go_on.wait(10)
        allocate(fd, start, count)

    with monkeypatch.context() as patch:
        patch.setattr(files, "allocate", slowly)
        for _ in range(3):
            with pytest.raises(StoreBusy):
                slave.replica.append(data)
            assert slave.max_physical_offset == 0
            assert slave.topics().keys() <= {"T"}
            assert all(slave.queue("T", n).max_offset == 0 for n in range(40))
        made = threading.Event()
        slave.when_preallocated(made.set)
        go_on.set()
        assert made.wait(10)
        told = slave.replica.append(data)
    assert {queue.queue_id for queue in told} == set(range(40))
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()


def test_half_of_what_came_is_taken_before_a_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes are received again, and the part that was stored is not stored twice."""
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave", waits=False)
    for n in range(3):
        put(master, master.queue("T", 0), bytes(LOG_FILE // 3) + b"%d" % n)
    append(slave, master.record_bytes(0))
    data = log_bytes(master, slave.max_physical_offset)
    go_on = threading.Event()
    make = MappedFile.open

    def slowly(self: MappedFile) -> None:
        if self.base and threading.current_thread() is not threading.main_thread():
            assert go_on.wait(10)
        make(self)

    monkeypatch.setattr(MappedFile, "open", slowly)
    for _ in range(2):
        with pytest.raises(StoreBusy):
            slave.replica.append(data)
        assert slave.queue("T", 0).max_offset == 2
    go_on.set()
    append(slave, data)
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "asks"])
@pytest.mark.parametrize("directory", ["commitlog", "consumequeue"])
def test_a_full_disk(tmp_path: Path, directory: str, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave", waits=waits)
    write(master, random.Random(3), 150)
    allocate = files.allocate

    def full(fd: int, start: int, count: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if directory in path.parts and int(path.name):
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(fd, start, count)

    with monkeypatch.context() as patch:
        patch.setattr(files, "allocate", full)
        with pytest.raises(StoreFull):
            follow(master, slave, lambda: 5000)
        end = slave.max_physical_offset
        assert log_bytes(slave, 0) == log_bytes(master, 0)[:end]
        with pytest.raises(StoreFull):
            slave.replica.append(master.log_slice(slave.replica.received, 5000) or b"")
        slave.replica.restart()
        assert slave.max_physical_offset == end
    deadline = time.monotonic() + 10
    while True:
        try:
            follow(master, slave, lambda: 5000)
            break
        except StoreFull:
            # A failed preallocation is retried every 0.5 s.
            assert time.monotonic() < deadline
            slave.replica.restart()
            made = threading.Event()
            slave.when_preallocated(made.set)
            made.wait(10)
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync, the slave stores nothing more, like a master.

    The content of the disk is unknown then.
    """
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    put(master, master.queue("T", 0), b"one")
    follow(master, slave, lambda: BEHIND)

    fdatasync = files.fdatasync

    def fails(fd: int) -> None:
        if "slave" in Path(f"/proc/self/fd/{fd}").readlink().parts:
            raise OSError(errno.EIO, "Input/output error")
        fdatasync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(files, "fdatasync", fails)
        put(master, master.queue("T", 0), b"two")
        follow(master, slave, lambda: BEHIND)
        told = threading.Event()
        slave.when_flushed(slave.max_physical_offset, lambda error: told.set())
        assert told.wait(10)
        put(master, master.queue("T", 0), b"three")
        with pytest.raises(SyncFailed):
            follow(master, slave, lambda: BEHIND)
        with pytest.raises(SyncFailed):
            slave.replica.truncate(0)
    crash(slave)
    slave = open_slave(tmp_path / "slave")
    follow(master, slave, lambda: BEHIND)
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()


def test_a_closed_store(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    put(master, master.queue("T", 0), b"one")
    follow(master, slave, lambda: BEHIND)
    put(master, master.queue("T", 0), b"two")
    data = log_bytes(master, slave.max_physical_offset)
    slave.close()
    for call in (
        lambda: slave.replica.append(data),
        lambda: slave.replica.truncate(0),
        lambda: slave.replica.begin_anew(0),
    ):
        with pytest.raises(StoreError, match="closed"):
            call()
    master.close()


def test_the_slave_deletes_its_first_files_by_itself(tmp_path: Path) -> None:
    """The slave deletes its files earlier than its master.

    Its queues without messages continue at their offsets.
    """
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave", file_reserved_time=0)
    for n in range(UNITS_PER_FILE + 5):
        put(master, master.queue("Early", 0), b"%d" % n)
    for _ in range(5):
        put(master, master.queue("Other", 0), bytes(LOG_FILE // 2))
    follow(master, slave, lambda: BEHIND)
    flushed(slave)
    slave.delete_expired_soon()
    while slave.clean(int(time.time() * 1000) + 1_000_000):
        pass
    first = slave.min_physical_offset
    assert first > LOG_FILE
    assert log_bytes(slave, first) == log_bytes(master, first)
    assert sum(slave.delete_expired_queues()) == 1
    put(master, master.queue("Early", 0), b"later")
    follow(master, slave, lambda: BEHIND)
    queue = slave.queue("Early", 0)
    assert (queue.min_offset, queue.max_offset) == (UNITS_PER_FILE + 5, UNITS_PER_FILE + 6)
    assert [record.body for record in read_all(slave, queue)] == [b"later"]
    with pytest.raises(StoreError, match="nothing at 0"):
        slave.log_slice(0, 100)
    for store in (master, slave):
        store.close()


def test_a_long_record_in_many_pieces(tmp_path: Path) -> None:
    """The received parts of a record are joined once, and not with each piece."""
    size = 4 << 20
    options = {"mapped_file_size_commit_log": 4 * size, "max_message_size": size}
    master, slave = open_store(tmp_path / "master", **options), open_slave(tmp_path / "slave", **options)
    body = random.Random(1).randbytes(size)
    for _ in range(2):
        put(master, master.queue("T", 0), body)
    began = time.process_time()
    follow(master, slave, lambda: 1024)
    # The record has 8,200 pieces of 1 KiB. Joining them each time would copy 16 GiB.
    assert time.process_time() - began < 2
    assert [record.body for record in read_all(slave, slave.queue("T", 0))] == [body, body]
    assert [path.name for path in log_files(tmp_path / "slave")] == [f"{0:020d}"]
    for store in (master, slave):
        store.close()


def test_a_queue_that_cant_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no descriptor to map the queue's file.

    The units of the other queues must match their ends.
    """
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    for n in range(9):
        put(master, master.queue("T", n % 3), b"%d" % n)
    append(slave, master.record_bytes(0))
    write_next = ConsumeQueue.write_next

    def fails(self: ConsumeQueue, units: bytes) -> None:
        if self.queue_id == 2:
            raise StoreError("no descriptor")
        write_next(self, units)

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "write_next", fails)
        with pytest.raises(StoreError, match="no descriptor"):
            slave.replica.append(log_bytes(master, slave.max_physical_offset))
    slave.close()
    assert verify(slave.config).problems == []
    slave = open_slave(tmp_path / "slave")
    follow(master, slave, lambda: BEHIND)
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()


@pytest.mark.parametrize("written", [0, 1, 1000])
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    """A failed write leaves no data behind.

    Otherwise complete records could remain after the end, and join the records of a later master.
    """
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    for n in range(40):
        put(master, master.queue("T", n % 2), b"%d" % n + bytes(1000))
    data = log_bytes(master, 0)
    append(slave, master.record_bytes(0))
    begin = slave.max_physical_offset

    with monkeypatch.context() as patch:
        patch.setattr(files, "pwrite", pwrite_that_fails(written))
        with pytest.raises(StoreError, match="planted"):
            slave.replica.append(data[begin:])
    assert slave.max_physical_offset == begin
    (file,) = (tmp_path / "slave" / "commitlog").iterdir()
    assert file.read_bytes().rstrip(b"\0") == data[:begin].rstrip(b"\0")
    (queue,) = (tmp_path / "slave" / "consumequeue" / "T" / "1").iterdir()
    assert not any(queue.read_bytes())
    slave.replica.restart()
    append(slave, data[begin:])
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()
    assert verify(slave.config).problems == []
