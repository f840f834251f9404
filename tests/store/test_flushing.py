"""Group commit, the checkpoint, failing disks, and flushers that cannot flush or that die."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from store_support import BORN_HOST, flush_queues, flush_queues_soon, open_store, put, read_all, small_config
from wait_until import wait_until

from gantrymq.background.jobs import Jobs
from gantrymq.background.report import JobReport
from gantrymq.errors import StoreError, SyncFailed
from gantrymq.protocol.record import encode_host
from gantrymq.store.checkpoint import load_checkpoint
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.mapped_file import MappedFile
from gantrymq.store.message_store import MessageStore
from gantrymq.system import files

TIMEOUT_S = 10


class Answers:
    """Records the results of `when_flushed` and the threads that report them."""

    def __init__(self) -> None:
        self.errors: list[Exception | None] = []
        self.threads: set[str] = set()

    def __call__(self, error: Exception | None) -> None:
        self.threads.add(threading.current_thread().name)
        self.errors.append(error)

    def wait(self, count: int = 1) -> list[Exception | None]:
        wait_until(lambda: len(self.errors) >= count)
        return self.errors


def fails(error: BaseException) -> Callable[..., None]:
    def fail(*args: object, **options: object) -> None:
        raise error

    return fail


def test_many_waiters_share_one_flush(tmp_path, monkeypatch):
    sync = files.fdatasync
    started, go_on = threading.Event(), threading.Event()
    calls = []

    def slow(fd: int) -> None:
        calls.append(fd)
        started.set()
        assert go_on.wait(TIMEOUT_S)
        sync(fd)

    store = open_store(
        tmp_path,
        flush_disk_type="SYNC_FLUSH",
        flush_interval_commit_log_ms=60_000,
        flush_interval_consume_queue_ms=60_000,
    )
    queue = store.queue("T", 0)
    answers = Answers()
    first = put(store, queue, b"first")
    monkeypatch.setattr(files, "fdatasync", slow)
    store.when_flushed(first.physical_offset, answers)
    assert started.wait(TIMEOUT_S)
    # The disk is busy, so all of these wait for the next flush.
    for _ in range(100):
        result = put(store, queue, b"next")
        store.when_flushed(result.physical_offset, answers)
    assert not answers.errors
    go_on.set()
    assert answers.wait(101) == [None] * 101
    assert len(calls) == 2
    assert answers.threads == {"gantry-log-flusher"}
    assert store.flushed_offset == store.max_physical_offset
    store.close()


def test_when_flushed_comes_from_close_too(tmp_path):
    store = open_store(tmp_path, flush_interval_commit_log_ms=60_000)
    answers = Answers()
    store.when_flushed(put(store, store.queue("T", 0), b"x").physical_offset, answers)
    store.close()
    assert answers.errors == [None]


def test_a_callback_that_fails_hurts_nobody(tmp_path, caplog):
    store = open_store(tmp_path)
    answers = Answers()
    queue = store.queue("T", 0)
    store.when_flushed(put(store, queue, b"x").physical_offset, fails(RuntimeError("Event loop is closed")))
    store.when_flushed(put(store, queue, b"x").physical_offset, answers)
    assert answers.wait() == [None]
    store.close()
    assert "Event loop is closed" in caplog.text


def test_close_has_many_queues_brought_to_the_disk_at_once(tmp_path, monkeypatch):
    sync = files.fdatasync
    four = threading.Barrier(4)

    def slow(fd: int) -> None:
        if "consumequeue" in os.readlink(f"/proc/self/fd/{fd}"):
            four.wait(TIMEOUT_S)
        sync(fd)

    store = open_store(tmp_path, flush_interval_consume_queue_ms=60_000)
    for number in range(40):
        put(store, store.queue(f"T{number}", 0), b"x")
    monkeypatch.setattr(files, "fdatasync", slow)
    store.close()
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    assert checkpoint.confirm_phy_offset == store.max_physical_offset


def test_close_brings_all_other_queues_to_the_disk(tmp_path, monkeypatch):
    sync = files.fdatasync
    synced = set()

    def fail_once(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if "/T7/" in path:
            raise OSError(errno.EIO, "Input/output error")
        sync(fd)
        synced.add(path.split("/")[-3])

    store = open_store(tmp_path, flush_interval_consume_queue_ms=60_000)
    for number in range(40):
        put(store, store.queue(f"T{number}", 0), b"x")
    monkeypatch.setattr(files, "fdatasync", fail_once)
    with pytest.raises(StoreError, match="T7"):
        store.close()
    assert synced >= {f"T{number}" for number in range(40) if number != 7}
    assert (tmp_path / "abort").exists()


def test_what_a_dying_round_had_before_it_is_flushed_by_close(tmp_path, monkeypatch):
    synced = set()
    sync = files.fdatasync

    def note(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}").split("/")[-3])
        sync(fd)

    store = open_store(tmp_path, flush_interval_consume_queue_ms=60_000)
    for number in range(5):
        put(store, store.queue(f"T{number}", 0), b"x")
    with monkeypatch.context() as dying:
        dying.setattr(files, "fdatasync", fails(SystemExit()))
        with pytest.raises(SystemExit):
            flush_queues(store)
    monkeypatch.setattr(files, "fdatasync", note)
    store.close()
    assert synced >= {f"T{number}" for number in range(5)}


# -- a disk that fails -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["fdatasync", "sync_entries"])
def test_a_disk_that_fails_stops_the_store(tmp_path, monkeypatch, which):
    """After a failed fsync, no message is acknowledged.

    The kernel drops the pages that it could not write, so a later fsync can succeed without them.
    """
    store = open_store(tmp_path, flush_interval_commit_log_ms=60_000, mapped_file_size_commit_log=8192)
    queue = store.queue("T", 0)
    # The message goes into a new file whose directory entry is not on disk yet.
    put(store, queue, bytes(6000))
    result = put(store, queue, bytes(6000))
    answers = Answers()
    with monkeypatch.context() as patch:
        patch.setattr(files, which, fails(OSError(errno.EIO, "Input/output error")))
        store.when_flushed(result.physical_offset, answers)
        (error,) = answers.wait()
    assert isinstance(error, SyncFailed)
    assert "Input/output error; the last writes may be lost" in str(error)
    # The disk works again, but a successful fsync proves nothing about these messages.
    store.when_flushed(result.physical_offset, answers)
    assert isinstance(answers.wait(2)[1], SyncFailed)
    for _ in range(2):
        with pytest.raises(SyncFailed, match="until the broker is restarted"):
            put(store, queue, b"more")
    assert store.get(queue, 0, 1, 100).message_count == 1
    with pytest.raises(StoreError, match="Input/output error"):
        store.close()
    # The next start is a recovery, which finds the messages in the page cache.
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path, mapped_file_size_commit_log=8192)
    assert store.queue("T", 0).max_offset == 2
    store.close()


def test_a_disk_that_fails_for_a_queue_stops_the_store(tmp_path, monkeypatch):
    """After a failed fsync of a queue, the checkpoint does not advance.

    The recovery rebuilds the missing part of the queue.
    """
    store = open_store(tmp_path)
    queue, other = store.queue("T", 0), store.queue("Other", 0)
    before = load_checkpoint(tmp_path / "checkpoint").confirm_phy_offset
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "flush", fails(SyncFailed("its disk: Input/output error")))
        put(store, queue, b"x")
        flush_queues_soon(store)
        wait_until(lambda: not _takes(store, other))
    answers = Answers()
    store.when_flushed(0, answers)
    assert answers.wait() == [None]
    with pytest.raises(SyncFailed, match="its disk: Input/output error; messages are rejected"):
        put(store, other, b"x")
    with pytest.raises(SyncFailed, match="its disk"):
        store.close()
    assert (tmp_path / "abort").exists()
    assert load_checkpoint(tmp_path / "checkpoint").confirm_phy_offset == before
    store = open_store(tmp_path)
    assert [record.body for record in read_all(store, store.queue("T", 0))] == [b"x"]
    store.close()


def _takes(store: MessageStore, queue: ConsumeQueue) -> bool:
    try:
        put(store, queue, b"?")
    except StoreError:
        return False
    return True


# -- flushers that cannot flush --------------------------------------------------------------------------------------


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def store(tmp_path, jobs: Jobs):
    store = MessageStore(small_config(tmp_path), encode_host("127.0.0.1", 1), jobs=jobs)
    store.open()
    yield store
    store.close()


def report(jobs: Jobs, name: str) -> JobReport:
    (found,) = [report for report in jobs if report.name == name]
    return found


@pytest.mark.parametrize(
    "error",
    [OSError(number, "what may pass") for number in (errno.EMFILE, errno.ENFILE, errno.EINTR, errno.ENOSPC, errno.EIO)]
    + [StoreError("what may pass"), RuntimeError("what may pass"), MemoryError("what may pass")],
    ids=repr,
)
def test_what_may_pass_is_tried_again(store, jobs, monkeypatch, error):
    """A flush that fails is tried again. Meanwhile messages are refused, because they could not be made durable."""
    queue = store.queue("T", 0)
    answers = Answers()
    result = put(store, queue, b"first")
    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "sync", fails(error))
        # Data that was flushed before is not flushed again, so its callers get no error.
        wait_until(lambda: not _takes(store, queue))
        with pytest.raises(
            StoreError, match=r"cannot be flushed: messages are rejected until a flush succeeds: .*may pass"
        ):
            put(store, queue, b"refused")
        store.when_flushed(result.physical_offset, answers)
        assert "what may pass" in str(answers.wait()[0])
        flushing = report(jobs, "flush the commit log")
        wait_until(lambda: flushing.failures > 2)
        assert flushing.failing_since is not None
        assert "what may pass" in flushing.last_error
        count = queue.max_offset
    wait_until(lambda: _takes(store, queue))
    assert queue.max_offset == count + 1
    store.when_flushed(0, answers)
    assert answers.wait(2)[1] is None
    wait_until(lambda: flushing.failing_since is None)


def test_a_file_that_can_neither_be_mapped_nor_deleted(store, monkeypatch):
    """The next file is created when the error is over.

    Here, memory and the permission to delete the file are missing.
    """
    queue = store.queue("T", 0)
    put(store, queue, bytes(30_000))
    put(store, queue, bytes(20_000))
    with monkeypatch.context() as patch:
        patch.setattr(files, "map_file", fails(OSError(errno.ENOMEM, "Cannot allocate memory")))
        patch.setattr("pathlib.Path.unlink", fails(PermissionError(errno.EPERM, "Operation not permitted")))
        with pytest.raises(StoreError, match="Cannot allocate memory"):
            put(store, queue, bytes(30_000))
        answers = Answers()
        store.when_flushed(0, answers)
        assert answers.wait() == [None]
    assert put(store, queue, bytes(30_000)).queue_offset == 2


def test_a_queue_that_cannot_be_flushed(tmp_path, store, jobs, monkeypatch):
    """One queue that cannot be flushed does not affect the others.

    Messages are accepted, and the flush is tried again. The checkpoint does not advance meanwhile.
    """
    bad, good = store.queue("Bad", 0), store.queue("Good", 0)
    flushing = report(jobs, "flush the consume queues")
    flush = ConsumeQueue.flush

    def some(queue: ConsumeQueue) -> None:
        if queue is bad:
            raise OSError(errno.EMFILE, "Too many open files")
        flush(queue)

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "flush", some)
        for _ in range(3):
            put(store, bad, b"x")
            put(store, good, b"x")
            flush_queues_soon(store)
            wait_until(lambda: not good.unflushed)
            wait_until(lambda: flushing.failing_since is not None)
        assert bad.unflushed
        assert load_checkpoint(tmp_path / "checkpoint").confirm_phy_offset == 0
    flush_queues_soon(store)
    wait_until(lambda: load_checkpoint(tmp_path / "checkpoint").confirm_phy_offset == store.max_physical_offset)
    assert not bad.unflushed
    wait_until(lambda: flushing.failing_since is None)


# -- flushers that die -----------------------------------------------------------------------------------------------


def test_death_of_the_log_flusher(tmp_path, monkeypatch, caplog):
    """If the log flusher dies, pending and later callers get an error, and messages are refused.

    The stored messages are flushed when the store closes.
    """
    jobs = Jobs()
    store = MessageStore(small_config(tmp_path), encode_host("127.0.0.1", 1), jobs=jobs)
    store.open()
    queue = store.queue("T", 0)
    answers = Answers()
    blocked, go_on = threading.Event(), threading.Event()

    def die(log: CommitLog) -> None:
        blocked.set()
        assert go_on.wait(TIMEOUT_S)
        sys.exit(3)

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "flush", die)
        store.when_flushed(put(store, queue, b"x").physical_offset, answers)
        assert blocked.wait(TIMEOUT_S)
        store.when_flushed(put(store, queue, b"x").physical_offset, answers)
        go_on.set()
        told = answers.wait(2)
    assert [str(error) for error in told] == [
        "the thread log flusher died of SystemExit(3): nobody brings the commit log to the disk"
    ] * 2
    assert told[0] is not told[1]
    with pytest.raises(StoreError, match="log flusher died of SystemExit"):
        put(store, queue, b"refused")
    store.when_flushed(0, answers)
    assert isinstance(answers.errors[2], StoreError)
    assert [report.name for report in jobs.failing()] == ["flush the commit log"]
    assert "log flusher died" in caplog.text
    store.close()
    assert not (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    assert store.queue("T", 0).max_offset == 2
    store.close()


def test_death_of_the_queue_flusher(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "flush", fails(SystemExit(3)))
        put(store, queue, b"x")
        flush_queues_soon(store)
        wait_until(lambda: not _takes(store, queue))
    with pytest.raises(StoreError, match="queue flusher died of SystemExit"):
        put(store, queue, b"refused")
    answers = Answers()
    store.when_flushed(0, answers)
    assert answers.wait() == [None]
    count = queue.max_offset
    store.close()
    store = open_store(tmp_path)
    assert store.queue("T", 0).max_offset == count
    store.close()


# -- refused messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["full", "failed", "can't flush"])
def test_refused_messages_are_not_kept(store, why, monkeypatch):
    """A shared exception that is raised repeatedly would keep a reference to the body of each refused message."""
    queue = store.queue("T", 0)
    put(store, queue, b"x")
    if why == "full":
        monkeypatch.setattr("gantrymq.store.retention.used_percent", lambda path: 99.0)
        store.clean(0)
    else:
        error = OSError(errno.EMFILE, "Too many open files") if why == "can't flush" else SyncFailed("failed")
        monkeypatch.setattr(MappedFile, "sync", fails(error))
        wait_until(lambda: not _takes(store, queue))
    errors = []
    for number in range(50):
        body = bytes(1000 + number)
        before = sys.getrefcount(body)
        with pytest.raises(StoreError) as refused:
            put(store, queue, body)
        errors.append(refused.value)
        depth, traceback = 0, refused.value.__traceback__
        while traceback is not None:
            depth, traceback = depth + 1, traceback.tb_next
        assert depth < 10
        refused.value.__traceback__ = None
        del refused
        assert sys.getrefcount(body) == before
    assert len(set(map(id, errors))) == 50
    monkeypatch.undo()
    if why == "failed":
        with pytest.raises(SyncFailed):
            store.close()


# -- the checkpoint --------------------------------------------------------------------------------------------------


def test_checkpoint_tells_what_is_on_disk(tmp_path):
    store = open_store(tmp_path)
    result = put(store, store.queue("T", 0), b"x")
    store.close()
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    assert checkpoint.confirm_phy_offset == result.physical_offset + result.size
    assert checkpoint.physic_msg_timestamp == checkpoint.logics_msg_timestamp == result.store_timestamp
    assert (tmp_path / "checkpoint").stat().st_size == 4096


def test_checkpoint_advances_while_running(tmp_path):
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    path = tmp_path / "checkpoint"
    for _ in range(3):
        store.append(queue, 0, 0, 0, BORN_HOST, 0, b"x", b"", 0)
        wait_until(lambda: load_checkpoint(path).confirm_phy_offset == store.max_physical_offset)
    store.close()


def test_a_new_queues_directories_are_on_the_disk_with_it(tmp_path, monkeypatch):
    """The directories of a new queue are flushed with it.

    Otherwise a power failure could remove the queue although the checkpoint says that it is on disk.
    """
    synced: dict[Path, set[str]] = {}
    sync_entries = files.sync_entries

    def remember(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        synced[path] = {entry.name for entry in path.iterdir()}
        sync_entries(fd)

    monkeypatch.setattr(files, "sync_entries", remember)
    store = open_store(tmp_path)
    put(store, store.queue("topic", 3), b"one")
    store.close()
    queues = store.config.consume_queue_directory
    assert synced[queues / "topic" / "3"] == {f"{0:020d}"}
    assert synced[queues / "topic"] == {"3"}
    assert synced[queues] == {"topic"}
