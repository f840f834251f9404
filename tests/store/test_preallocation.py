"""Preallocation of files and blocks in a thread.

Callers that must not block do not create files themselves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from constants import change_constant
from store_support import (
    LOG_FILE,
    STORE_HOST,
    UNITS_PER_FILE,
    commit_log,
    finish,
    log_files,
    put,
    read_all,
    small_config,
)
from wait_until import wait_until

from gantrymq.background.jobs import Jobs
from gantrymq.background.report import JobReport
from gantrymq.errors import StoreBusy, StoreError, StoreFull
from gantrymq.store import mapped_file, message_index, message_writer, preallocation
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.key_lookup import by_key
from gantrymq.store.log_preallocation import LogPreallocation
from gantrymq.store.message_store import MessageStore, PutResult
from gantrymq.system import files


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def store(tmp_path: Path, jobs: Jobs) -> Iterator[MessageStore]:
    """A store that never waits for a file, as in a broker."""
    store = MessageStore(small_config(tmp_path), STORE_HOST, jobs=jobs, waits=False)
    store.open()
    yield store
    store.close()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the thread repeat a failed operation almost at once."""
    change_constant(monkeypatch, "preallocation._RETRY_S", 0.01)


def report_of(jobs: Jobs) -> JobReport:
    """Returns the report of the thread that preallocates files."""
    (report,) = (report for report in jobs if report.name == "make files of the store")
    return report


def until_preallocated(store: MessageStore) -> None:
    """Waits until all current requests of the thread are done or have failed."""
    made = threading.Event()
    store.when_preallocated(made.set)
    assert made.wait(10)


def put_patiently(store: MessageStore, queue: ConsumeQueue, body: bytes, *, properties: bytes = b"") -> PutResult:
    for _ in range(10):
        try:
            return put(store, queue, body, properties=properties)
        except StoreBusy:
            until_preallocated(store)
    raise AssertionError("there is never room")


def test_who_builds_the_index_makes_no_file(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Building the index creates no file and reserves no blocks in the calling thread.

    A search for a new message waits until the message is in the index.
    """
    allocating: set[str] = set()
    go_on = threading.Event()
    allocate, make = files.allocate, mapped_file.MappedFile.make

    def slowly(*args: Any) -> None:
        allocating.add(threading.current_thread().name)
        if threading.current_thread() is not threading.main_thread():
            assert go_on.wait(10)
        allocate(*args)

    queue = store.queue("T", 0)
    put_patiently(store, queue, b"first")
    change_constant(monkeypatch, "index_file._RESERVE", 1024)
    monkeypatch.setattr(files, "allocate", slowly)
    monkeypatch.setattr(
        mapped_file.MappedFile, "make", lambda *args: (allocating.add(threading.current_thread().name), make(*args))
    )
    assert not store.keys.build_index(10)
    search = store.keys.find(by_key("T", "k299", 0, 1 << 62, 10))
    go_on.set()
    for n in range(300):
        result = put_patiently(store, queue, b"%d" % n, properties=b"KEYS\x01k%d\x02" % n)
    assert finish(search) == [result.physical_offset]
    assert allocating == {"gantry-preallocation"}


class SlowDisk:
    """Makes the creation of files and the reservation of blocks slow, and records the threads that wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.threads: set[str] = set()
        self.took_too_long = False
        for module, name in ((mapped_file, "_open_sized"), (files, "allocate")):
            monkeypatch.setattr(module, name, self._slow(getattr(module, name)))

    def _slow(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any) -> Any:
            self.threads.add(threading.current_thread().name)
            if threading.current_thread() is not threading.main_thread() and not self.go_on.wait(10):
                self.took_too_long = True
            return call(*args)

        return slow


def test_who_writes_makes_no_file(tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller creates no log or queue file and reserves no blocks. It only opens and maps existing files."""
    allocating: set[str] = set()
    allocate, make = files.allocate, mapped_file.MappedFile.make
    monkeypatch.setattr(
        files, "allocate", lambda *args: (allocating.add(threading.current_thread().name), allocate(*args))
    )
    monkeypatch.setattr(
        mapped_file.MappedFile, "make", lambda *args: (allocating.add(threading.current_thread().name), make(*args))
    )
    queue = store.queue("T", 0)
    bodies = [b"%d " % n + bytes(500) for n in range(8 * UNITS_PER_FILE)]
    for body in bodies:
        put_patiently(store, queue, body)
    assert [record.body for record in read_all(store, queue)] == bodies
    assert len(log_files(tmp_path)) > 3
    assert allocating == {"gantry-preallocation"}


def test_what_has_room_waits_for_nobody_who_makes_it(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current file is filled to its end, however long the next one takes."""
    queue = store.queue("T", 0)
    put_patiently(store, queue, bytes(20_000))
    until_preallocated(store)
    disk = SlowDisk(monkeypatch)
    put(store, queue, bytes(20_000))
    wait_until(lambda: "gantry-preallocation" in disk.threads)
    put(store, queue, bytes(20_000))
    encoded: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(message_writer, "encode_record", lambda *args: encoded.append(args))
        with pytest.raises(StoreBusy, match="try again at once"):
            put(store, queue, bytes(20_000))
    # Encoding a large message takes milliseconds, so it must not be repeated with each attempt.
    assert not encoded
    with pytest.raises(StoreBusy):
        put(store, store.queue("Other", 0), b"x")
    assert queue.max_offset == 3
    assert disk.threads == {"gantry-preallocation"}
    disk.go_on.set()
    assert put_patiently(store, queue, bytes(20_000)).physical_offset == LOG_FILE
    assert put_patiently(store, store.queue("Other", 0), b"x").queue_offset == 0


def test_who_waits_for_a_queue_does_not_wait_for_the_log(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A background write creates a queue file itself.

    The thread is busy with a log file meanwhile.
    """
    put_patiently(store, store.queue("T", 0), bytes(20_000))
    until_preallocated(store)
    disk = SlowDisk(monkeypatch)
    put(store, store.queue("T", 0), bytes(20_000))
    wait_until(lambda: "gantry-preallocation" in disk.threads)
    with store.waiting():
        assert put(store, store.queue("Other", 0), b"x").queue_offset == 0
    # The thread is still waiting.
    assert not disk.took_too_long
    disk.go_on.set()


def test_who_may_wait_does(store: MessageStore) -> None:
    with pytest.raises(StoreBusy):
        put(store, store.queue("T", 0), b"x")
    with store.waiting():
        assert put(store, store.queue("Other", 0), b"x").queue_offset == 0


def test_a_line_is_for_what_those_in_it_need(store: MessageStore) -> None:
    """The wait queue depends on the files that its members need, and not on those of earlier callers."""
    other, queue = store.queue("Other", 0), store.queue("T", 0)
    for place in (other, queue):
        with pytest.raises(StoreBusy):
            put(store, place, b"x")
    store.close_wait_queue()
    until_preallocated(store)
    put_patiently(store, other, b"x")
    with pytest.raises(StoreBusy):
        put(store, queue, b"x")
    store.end_wait_queue()


def test_nobody_is_served_before_who_waits(store: MessageStore) -> None:
    queue = store.queue("T", 0)
    with pytest.raises(StoreBusy):
        put(store, queue, b"x")
    store.close_wait_queue()
    until_preallocated(store)
    with pytest.raises(StoreBusy):
        put(store, queue, b"x")
    store.end_wait_queue()
    put_patiently(store, queue, b"x")


def test_nobody_is_served_between_two_turns_of_who_waits(store: MessageStore) -> None:
    queue = store.queue("T", 0)
    # The log has free space from here on, so the others wait for this queue only.
    put_patiently(store, store.queue("Other", 0), b"x")
    with pytest.raises(StoreBusy):
        put(store, queue, b"x")
    store.close_wait_queue()
    until_preallocated(store)
    store.end_wait_queue(anew=True)
    store.close_wait_queue(has_file=True)
    store.open_wait_queue()
    assert put(store, queue, b"first").queue_offset == 0
    store.close_wait_queue(has_file=True)
    with pytest.raises(StoreBusy):
        put(store, queue, b"third")
    store.open_wait_queue()
    assert put(store, queue, b"second").queue_offset == 1
    store.end_wait_queue()
    assert [put(store, queue, b"x").queue_offset for _ in range(2)] == [2, 3]


@pytest.mark.usefixtures("quick_retries")
def test_no_room(store: MessageStore, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiting caller gets the error, and the preallocation is retried automatically."""
    queue = store.queue("T", 0)
    with monkeypatch.context() as patch:

        def full(fd: int, start: int, length: int) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(files, "allocate", full)
        for _ in range(2):
            with pytest.raises(StoreFull, match="the disk is full"):
                put_patiently(store, queue, b"x")
    wait_until(lambda: report_of(jobs).failing_since is None)
    assert put_patiently(store, queue, b"x").queue_offset == 0


@pytest.mark.usefixtures("quick_retries")
def test_no_room_for_the_index(
    tmp_path: Path, store: MessageStore, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk is logged once, and not as an error.

    The preallocation is retried from time to time, and the reserved space is freed.
    """
    making = report_of(jobs)
    result = put_patiently(store, store.queue("T", 0), b"x", properties=b"KEYS\x01k\x02")
    until_preallocated(store)
    caplog.set_level(logging.INFO)
    tried: list[Path] = []
    with monkeypatch.context() as patch:

        def full(fd: int, start: int, length: int) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(files, "allocate", full)
        make = mapped_file.MappedFile.make
        patch.setattr(mapped_file.MappedFile, "make", lambda file, *args: (tried.append(file.path), make(file, *args)))

        def has_been_tried() -> bool:
            assert not store.keys.build_index(10)
            return making.failures >= 5

        wait_until(has_been_tried)
    wait_until(lambda: store.keys.build_index(10))
    wait_until(lambda: making.failing_since is None)
    assert finish(store.keys.find(by_key("T", "k", 0, 1 << 62, 10))) == [result.physical_offset]
    said = [record for record in caplog.records if record.name in (preallocation.__name__, message_index.__name__)]
    assert [record.levelname for record in said if "the disk is full" in record.getMessage()] == ["WARNING", "WARNING"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert caplog.text.count("works again") == 1
    # Each attempt uses the same file, and not a new one for each caller.
    assert list((tmp_path / "index").iterdir()) == [*set(tried)]


@pytest.mark.usefixtures("quick_retries")
def test_making_fails(tmp_path: Path, store: MessageStore, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread retries after any error. Messages that need no new file are stored meanwhile."""
    queue = store.queue("T", 0)
    put_patiently(store, queue, bytes(40_000))
    making = report_of(jobs)
    for error in (OSError(1, "Operation not permitted"), RuntimeError("surprise"), StoreFull("no room")):

        def fail(*args: object, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(LogPreallocation, "_reserve", fail)
            commit_log(store).make_soon()
            wait_until(lambda: making.failing_since is not None)
            put(store, queue, b"x")
        wait_until(lambda: making.failing_since is None)
    assert queue.max_offset == 4
    assert log_files(tmp_path)[-1].name == f"{LOG_FILE:020}"


def test_the_thread_dies(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the thread dies, current and pending callers get an error."""
    monkeypatch.setattr(preallocation.Preallocation, "_do_first", lambda self: 1 / 0)
    with pytest.raises(StoreError, match=r"the preallocation thread died of ZeroDivisionError"):
        put_patiently(store, store.queue("T", 0), b"x")


def test_a_queue_that_is_deleted_meanwhile(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue is deleted while its file is being created.

    The file is deleted too, and nothing of the queue is restored.
    """
    queue = store.queue("T", 0)
    disk = SlowDisk(monkeypatch)
    with pytest.raises(StoreBusy):
        put(store, queue, b"x")
    wait_until(lambda: "gantry-preallocation" in disk.threads)
    store.delete_topic("T")
    disk.go_on.set()
    until_preallocated(store)
    assert not (tmp_path / "consumequeue" / "T").exists()
    assert put_patiently(store, store.queue("T", 0), b"x").queue_offset == 0
