"""Retention: the files that expire, the results of reads in deleted parts, and a disk that is too full."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from constants import change_constant
from store_support import (
    LOG_FILE,
    UNITS_PER_FILE,
    finish,
    flushed,
    log_files,
    open_store,
    put,
    queue_files,
    read_all,
)
from wait_until import wait_until

from gantrymq.errors import ConfigError, StoreError, StoreFull
from gantrymq.protocol.record import FIXED_SIZE_V4, decode_records
from gantrymq.store import message_store, message_writer, retention
from gantrymq.store.config import StoreConfig
from gantrymq.store.get_result import GetStatus
from gantrymq.store.key_lookup import by_key, by_unique_key
from gantrymq.store.message_store import MessageStore
from gantrymq.store.retention import Cleaning, Retention, used_percent
from gantrymq.store.trash import Trash

HOUR_MS = 3_600_000
NEVER, ALWAYS = float("-inf"), float("inf")


def at_hour(hour: int) -> int:
    """Returns a local time in milliseconds since the epoch."""
    return int(time.mktime((2026, 11, 21, hour, 30, 0, 0, 0, -1))) * 1000


# -- schedule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hour", "used", "is_due"),
    [(3, 10.0, False), (4, 10.0, True), (5, 10.0, False), (16, 75.0, True), (9, 75.0, False), (9, 75.1, True)],
)
def test_due(hour, used, is_due):
    now = at_hour(hour)
    cleaning = Retention(StoreConfig(Path(), delete_when="04; 16")).plan(now, used)
    assert cleaning == Cleaning(now - 72 * HOUR_MS if is_due else NEVER, is_full=False)


def test_urgent():
    retention = Retention(StoreConfig(Path()))
    now = at_hour(9)
    assert retention.plan(now, 85) == Cleaning(now - 72 * HOUR_MS, is_full=False)
    assert retention.plan(now, 85.1) == Cleaning(ALWAYS, is_full=False)
    assert retention.plan(now, 90.1) == Cleaning(ALWAYS, is_full=True)
    careful = Retention(StoreConfig(Path(), clean_file_forcibly_enable=False, file_reserved_time=1))
    assert careful.plan(now, 90.1) == Cleaning(now - HOUR_MS, is_full=True)


def test_asked():
    retention = Retention(StoreConfig(Path(), file_reserved_time=2))
    now = at_hour(9)
    retention.is_asked = True
    assert retention.plan(now, 1) == Cleaning(now - 2 * HOUR_MS, is_full=False)


def test_configuration():
    config = StoreConfig(
        Path(), disk_max_used_space_ratio=99, disk_space_clean_forcibly_ratio=1, disk_space_warning_level_ratio=100
    )
    assert config.disk_max_used_space_ratio == 95
    assert config.disk_space_clean_forcibly_ratio == 30
    assert config.disk_space_warning_level_ratio == 100
    for delete_when in ("", "24", "4;x", "-1"):
        with pytest.raises(ConfigError, match="deleteWhen"):
            StoreConfig(Path(), delete_when=delete_when)


def test_used_percent(tmp_path):
    usage = shutil.disk_usage(tmp_path)
    assert used_percent(tmp_path / "not" / "yet") == pytest.approx(100 * usage.used / (usage.used + usage.free), abs=2)


# -- deleted files ---------------------------------------------------------------------------------------------------


class Disk:
    """A simulated disk whose usage the test sets."""

    used = 10.0

    def __call__(self, path: Path) -> float:
        return self.used


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(retention, "used_percent", disk)
    return disk


class RoundTime:
    """The time that a round of cleaning has to update queues. Enough unless the test sets another value, in seconds."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.set(10)

    def set(self, seconds: float) -> None:
        change_constant(self._patch, "cleaner._SLICE_S", seconds)


@pytest.fixture
def round_time(monkeypatch: pytest.MonkeyPatch) -> RoundTime:
    return RoundTime(monkeypatch)


@pytest.fixture
def store(tmp_path: Path, disk: Disk):
    store = open_store(tmp_path, flush_interval_commit_log_ms=1)
    yield store
    store.close()


def fill(store: MessageStore, days: int = 5) -> int:
    """Fills one log file per day with messages of 3 queues.

    Returns the start of the first day in milliseconds, at one hour past midnight.
    """
    begin = at_hour(1)
    per_file = (LOG_FILE - 8) // 1100
    with pytest.MonkeyPatch.context() as patch:
        # A record that does not fit into the file is stored on the next day.
        patch.setattr(message_writer, "time", lambda: begin / 1000 + n // per_file * 86400)
        n = 0
        while store.max_physical_offset < days * LOG_FILE:
            day, number = divmod(n, per_file)
            body = b"%d %d " % (day, number)
            properties = b"UNIQ_KEY\x01k%d-%d\x02KEYS\x01all\x02" % (day, number)
            size = 1100 - FIXED_SIZE_V4 - len(body) - len(properties) - 1
            put(store, store.queue("T", n % 3), body + bytes(size), properties=properties)
            n += 1
    flushed(store)
    assert store.keys.build_index(60)
    return begin


def clean_all(store: MessageStore, now_ms: int) -> int:
    """Deletes all files that have expired at `now_ms`, and returns the number of deleted log files."""
    first = store.min_physical_offset
    wait_until(lambda: not store.clean(now_ms))
    return (store.min_physical_offset - first) // LOG_FILE


def test_expired_files_go(tmp_path, store):
    begin = fill(store)
    first = log_files(tmp_path)[0]
    store.queue("T", 0)
    # The first file is complete when the second day begins, so it expires on the fifth day. It is deleted in hour 4.
    assert clean_all(store, begin + 3 * 86_400_000 + 3 * HOUR_MS) == 0
    expired = begin + 4 * 86_400_000
    assert clean_all(store, expired + HOUR_MS) == 0
    assert clean_all(store, expired + 3 * HOUR_MS) == 1
    assert not first.exists()
    assert store.min_physical_offset == LOG_FILE
    assert clean_all(store, expired + 9 * 86_400_000 + 3 * HOUR_MS) == 4
    # The current file stays, however old it is.
    assert store.min_physical_offset == 5 * LOG_FILE
    assert int(log_files(tmp_path)[0].name) == 5 * LOG_FILE


def test_readers_are_told(tmp_path, store, disk):
    fill(store)
    queue, idle = store.queue("T", 1), store.queue("T", 2)
    before = read_all(store, queue)
    offset_before = queue.max_offset
    disk.used = 86.0
    while store.min_physical_offset < 3 * LOG_FILE:
        store.clean(at_hour(9))
    kept = [record for record in before if record.physical_offset >= 3 * LOG_FILE]
    # A round can end before it has checked all queues.
    disk.used = 10.0
    assert clean_all(store, at_hour(9)) == 0
    assert queue.min_offset == kept[0].queue_offset > 0
    assert queue.max_offset == offset_before
    assert read_all(store, queue) == kept
    result = store.get(queue, 0, 32, 1 << 20)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, queue.min_offset)
    assert result.min_offset == queue.min_offset
    assert store.offset_by_time(queue, 0) == queue.min_offset
    # The same part of the queue files is left.
    assert int(queue_files(tmp_path, "T", 1)[0].name) == queue.min_offset // UNITS_PER_FILE * UNITS_PER_FILE * 20
    assert put(store, idle, b"next").queue_offset == idle.max_offset - 1
    store.close()
    store = open_store(tmp_path)
    assert read_all(store, store.queue("T", 1)) == kept
    assert store.queue("T", 1).min_offset == kept[0].queue_offset
    store.close()


def test_a_reader_who_comes_first_is_told_too(store, disk, round_time):
    """Thousands of queues take several rounds. A read in between gets the correct result."""
    fill(store)
    round_time.set(-1)
    disk.used = 86.0
    while store.min_physical_offset < 2 * LOG_FILE:
        store.clean(at_hour(9))
    queue = store.queue("T", 1)
    assert queue.min_offset == 0
    result = store.get(queue, 0, 32, 1 << 20)
    assert result.status is GetStatus.OFFSET_TOO_SMALL
    assert result.next_begin_offset == result.min_offset == queue.min_offset > 0
    round_time.set(10)
    disk.used = 10.0
    store.clean(at_hour(9))
    assert store.queue("T", 2).min_offset > 0


def test_a_round_that_waits_for_the_thread_is_followed_by_another(tmp_path, disk, monkeypatch):
    """A round that waits for the thread is followed by another one, however fast the thread deletes the files."""
    emptied = []
    here = threading.current_thread()

    class Emptied(Trash):
        """Empties the trash between the first check and the next one."""

        def __bool__(self) -> bool:
            waits = super().__bool__()
            if waits:
                self.empty()
                emptied.append(True)
            return waits

        def empty(self) -> None:
            """Does nothing in the flusher's thread, which would be too early or too late."""
            if threading.current_thread() is here:
                super().empty()

    monkeypatch.setattr(message_store, "Trash", Emptied)
    store = open_store(tmp_path, flush_interval_commit_log_ms=1)
    fill(store)
    disk.used = 86.0
    before = store.min_physical_offset
    while store.clean(at_hour(9)):
        pass
    assert emptied
    assert store.min_physical_offset > before + LOG_FILE
    store.close()


def test_a_topic_deleted_between_two_rounds(store, disk, round_time):
    fill(store)
    put(store, store.queue("Other", 0), b"x")
    round_time.set(-1)
    disk.used = 86.0
    assert store.clean(at_hour(9))
    store.delete_topic("T")
    round_time.set(10)
    clean_all(store, at_hour(9))
    assert list(store.topics()) == ["Other"]


def test_the_index_follows(tmp_path, store, disk):
    fill(store)
    files = sorted((tmp_path / "index").iterdir())
    assert len(files) > 2
    assert len(finish(store.keys.find(by_unique_key("T", "k0-1")))) == 1
    disk.used = 86.0
    clean_all(store, at_hour(9))
    assert finish(store.keys.find(by_unique_key("T", "k0-1"))) == []
    assert finish(store.keys.find(by_key("T", "all", 0, 1 << 62, 64))) == [5 * LOG_FILE]
    assert sorted((tmp_path / "index").iterdir()) == files[-1:]
    put(store, store.queue("T", 0), b"new", properties=b"KEYS\x01all\x02")
    assert len(finish(store.keys.find(by_key("T", "all", 0, 1 << 62, 64)))) == 2


def test_an_index_that_is_behind_goes_on_where_the_log_begins(tmp_path, disk):
    store = open_store(tmp_path, flush_interval_commit_log_ms=1)
    for n in range(200):
        put(store, store.queue("T", 0), b"%d" % n + bytes(900), properties=b"UNIQ_KEY\x01k%d\x02" % n)
    flushed(store)
    disk.used = 86.0
    clean_all(store, at_hour(9))
    assert store.keys.index_behind_bytes == store.max_physical_offset - store.min_physical_offset
    assert len(finish(store.keys.find(by_unique_key("T", "k199")))) == 1
    assert store.keys.index_behind_bytes == 0
    store.close()


def test_buffers_outlive_their_file(tmp_path, store, disk):
    fill(store)
    (buffer, *_) = store.get(store.queue("T", 1), 0, 5, 1 << 20).buffers
    disk.used = 86.0
    clean_all(store, at_hour(9))
    assert not (tmp_path / "commitlog" / ("0" * 20)).exists()
    assert next(decode_records(buffer)).body.startswith(b"0 1 ")


def test_what_is_not_flushed_stays(tmp_path, disk, monkeypatch):
    store = open_store(tmp_path, flush_interval_commit_log_ms=600_000)
    for _ in range(200):
        put(store, store.queue("T", 0), bytes(900))
    disk.used = 86.0
    assert not store.clean(at_hour(9))
    assert store.min_physical_offset == 0
    store.close()


def test_a_full_disk_takes_no_messages(store, disk, caplog):
    queue = store.queue("T", 0)
    put(store, queue, b"before")
    disk.used = 90.5
    for _ in range(2):
        store.clean(at_hour(9))
        with pytest.raises(StoreFull, match=r"90\.5 % full, diskSpaceWarningLevelRatio is 90"):
            put(store, queue, b"refused")
    assert caplog.text.count("messages are rejected") == 1
    assert read_all(store, queue)[0].body == b"before"
    disk.used = 89.0
    store.clean(at_hour(9))
    assert put(store, queue, b"after").queue_offset == 1


def test_delete_expired_soon(store):
    begin = fill(store)
    now = begin + 5 * 86_400_000 + 8 * HOUR_MS
    assert clean_all(store, now) == 0
    store.delete_expired_soon()
    assert clean_all(store, now) == 2
    store.queue("T", 0)
    assert clean_all(store, now + 86_400_000) == 0


def test_delete_expired_queues(tmp_path, store, disk):
    for topic in ("Old", "SCHEDULE_TOPIC_XXXX", "Both"):
        put(store, store.queue(topic, 0), b"x")
    silent = store.queue("Silent", 0)
    fill(store, 2)
    put(store, store.queue("Both", 1), b"x")
    flushed(store)
    assert sum(store.delete_expired_queues()) == 0
    disk.used = 86.0
    clean_all(store, at_hour(9))
    old = store.queue("Old", 0)
    assert (old.min_offset, old.max_offset) == (1, 1)
    assert sum(store.delete_expired_queues()) >= 2
    topics = store.topics()
    assert "Old" not in topics
    assert topics["Both"] == [1]
    assert topics["SCHEDULE_TOPIC_XXXX"] == [0]
    assert store.find_queue("Silent", 0) is silent
    assert not (tmp_path / "consumequeue" / "Old").exists()
    with pytest.raises(StoreError, match="deleted"):
        put(store, old, b"x")
    assert put(store, store.queue("Old", 0), b"again").queue_offset == 0


def test_delete_unused_topics(store):
    for topic in ("Used", "Unused", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_REVIVE_LOG_x"):
        put(store, store.queue(topic, 0), b"x")
    assert store.delete_unused_topics({"Used", "Other"}) == 1
    assert sorted(store.topics()) == ["RMQ_SYS_TRANS_HALF_TOPIC", "Used", "rmq_sys_REVIVE_LOG_x"]


def test_a_file_that_cannot_be_deleted(tmp_path, store, disk, monkeypatch):
    """If a log file cannot be deleted, the later ones wait and it is tried again. A request to clean gets the error."""
    fill(store, 3)
    first = log_files(tmp_path)[0]
    unlink = Path.unlink

    def refuse(self, missing_ok=False):
        if self == first:
            raise PermissionError(1, "Operation not permitted")
        unlink(self, missing_ok)

    disk.used = 86.0
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"can't delete .*0000: Operation not permitted"):
                wait_until(lambda: not store.clean(at_hour(9)))
        assert first.exists()
        assert store.min_physical_offset == LOG_FILE
        assert min(record.physical_offset for record in read_all(store, store.queue("T", 1))) > LOG_FILE
    wait_until(lambda: not first.exists())
    # The error is reported until the thread has finished the deletion.
    wait_until(lambda: cleaned_in_spite_of_errors(store) == 3 * LOG_FILE)
    assert clean_all(store, at_hour(9)) == 0
    assert log_files(tmp_path)[0].name == f"{3 * LOG_FILE:020d}"


def test_a_queue_file_that_cannot_be_deleted(tmp_path, store, disk, monkeypatch):
    """If a queue file cannot be deleted, it is tried again. The files of other queues are deleted."""
    fill(store)
    first = queue_files(tmp_path, "T", 1)[0]
    unlink = Path.unlink

    def refuse(self, missing_ok=False):
        if self == first:
            raise OSError(5, "Input/output error")
        unlink(self, missing_ok)

    disk.used = 86.0
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(StoreError, match=r"can't delete .*T/1/0.*: Input/output error"):
            wait_until(lambda: not store.clean(at_hour(9)))
        wait_until(lambda: cleaned_in_spite_of_errors(store) == 5 * LOG_FILE)
        assert first.exists()
        assert not (first.parent.parent / "0" / first.name).exists()
        assert [record.physical_offset for record in read_all(store, store.queue("T", 1))] == [5 * LOG_FILE]
    clean_all(store, at_hour(9))
    assert not first.exists()


def cleaned_in_spite_of_errors(store: MessageStore) -> int:
    with suppress(StoreError):
        store.clean(at_hour(9))
    return store.min_physical_offset


def test_a_disk_that_cannot_tell_how_full_it_is(store, disk, round_time, monkeypatch):
    """Without the disk usage, no deletion starts, but those in progress are completed."""
    fill(store)
    round_time.set(-1)
    disk.used = 86.0
    assert store.clean(at_hour(9))
    round_time.set(10)

    def fails(path: Path) -> float:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(retention, "used_percent", fails)
        with pytest.raises(StoreError, match="Input/output error"):
            store.clean(at_hour(9))
    assert store.queue("T", 2).min_offset > 0
    assert store.min_physical_offset == LOG_FILE
    assert clean_all(store, at_hour(9)) == 4
