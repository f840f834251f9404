"""Group commit, the checkpoint, and a disk that fails."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from store_support import BORN_HOST, open_store, put
from waiting import wait_until

from gantrymq.errors import StoreError
from gantrymq.store import commit_log
from gantrymq.store.checkpoint import load_checkpoint

TIMEOUT_S = 10


def test_many_waiters_share_one_flush(tmp_path, monkeypatch):
    sync_file = commit_log.sync_file
    started, go_on = threading.Event(), threading.Event()
    calls = []

    def slow(path: Path) -> None:
        calls.append(path)
        started.set()
        assert go_on.wait(TIMEOUT_S)
        sync_file(path)

    store = open_store(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log_ms=60_000)
    queue = store.queue("T", 0)
    done = threading.Event()
    answers: list[tuple[Exception | None, str, int]] = []

    def flushed(error: Exception | None) -> None:
        answers.append((error, threading.current_thread().name, store.flushed_offset))
        if len(answers) == 101:
            done.set()

    first = put(store, queue, b"first")
    monkeypatch.setattr(commit_log, "sync_file", slow)
    store.when_flushed(first.physical_offset, flushed)
    assert started.wait(TIMEOUT_S)
    # The disk is busy; all of these wait for the next flush.
    for _ in range(100):
        result = put(store, queue, b"next")
        store.when_flushed(result.physical_offset, flushed)
    assert not answers
    go_on.set()
    assert done.wait(TIMEOUT_S)
    assert len(calls) == 2
    assert {error for error, _, _ in answers} == {None}
    assert {name for _, name, _ in answers} == {"gantry-log-flusher"}
    assert answers[-1][2] == store.max_physical_offset
    store.close()


def test_when_flushed_comes_from_close_too(tmp_path):
    store = open_store(tmp_path, flush_interval_commit_log_ms=60_000)
    answers: list[Exception | None] = []
    store.when_flushed(put(store, store.queue("T", 0), b"x").physical_offset, answers.append)
    store.close()
    assert answers == [None]


def test_a_callback_that_fails_hurts_nobody(tmp_path, caplog):
    store = open_store(tmp_path)

    def fails(error: Exception | None) -> None:
        raise RuntimeError("Event loop is closed")

    done = threading.Event()
    queue = store.queue("T", 0)
    store.when_flushed(put(store, queue, b"x").physical_offset, fails)
    store.when_flushed(put(store, queue, b"x").physical_offset, lambda error: done.set())
    assert done.wait(TIMEOUT_S)
    store.close()
    assert "Event loop is closed" in caplog.text


def test_failing_disk_stops_the_store(tmp_path, monkeypatch):
    """After a failed fdatasync nothing is acknowledged any more: the kernel forgets what it couldn't write."""

    def fails(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = open_store(tmp_path, flush_interval_commit_log_ms=60_000)
    queue = store.queue("T", 0)
    answered = threading.Event()
    answers: list[Exception | None] = []

    def flushed(error: Exception | None) -> None:
        answers.append(error)
        answered.set()

    result = put(store, queue, b"lost?")
    with monkeypatch.context() as patch:
        patch.setattr(commit_log, "sync_file", fails)
        store.when_flushed(result.physical_offset, flushed)
        assert answered.wait(TIMEOUT_S)
    assert isinstance(answers[0], StoreError)
    assert "Input/output error" in str(answers[0])
    with pytest.raises(StoreError, match="Input/output error"):
        put(store, queue, b"more")
    assert store.get(queue, 0, 1, 100).message_count == 1
    with pytest.raises(StoreError, match="Input/output error"):
        store.close()
    # The next one to open it takes it for crashed, and finds what the page cache has.
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    assert store.queue("T", 0).max_offset == 1
    store.close()


def test_a_new_file_that_cannot_be_synced_takes_nothing(tmp_path, monkeypatch):
    """Its name and size must be on the disk before it is used; it may be tried again."""

    def fails(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    with monkeypatch.context() as patch:
        patch.setattr(commit_log, "sync_directory", fails)
        with pytest.raises(StoreError, match="to the disk: Input/output error"):
            put(store, queue, b"refused")
    assert not list((tmp_path / "commitlog").iterdir())
    assert put(store, queue, b"taken").queue_offset == 0
    store.close()


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
