"""Opening and closing a store when something raises.

The directory is unlocked, all threads end, and the file `abort` is correct.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_support import open_store, put, read_all, small_config
from wait_until import wait_until

from gantrymq.errors import StoreError
from gantrymq.protocol.record import encode_host
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.directory import StoreDirectory
from gantrymq.store.flusher import Flusher, QueueFlusher
from gantrymq.store.message_index import MessageIndex
from gantrymq.store.message_store import MessageStore
from gantrymq.store.queue_table import QueueTable
from gantrymq.store.recovery import Recovery

ERRORS = [OSError(5, "surprise"), StoreError("surprise"), RuntimeError("surprise"), KeyboardInterrupt("surprise")]


@contextmanager
def opened(root: Path) -> Iterator[MessageStore]:
    store = open_store(root)
    yield store
    store.close()


@pytest.fixture
def others() -> set[threading.Thread]:
    """Returns the threads that existed before the test, for example those of a cluster shared by client tests."""
    return set(threading.enumerate())


def flusher_threads(others: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in set(threading.enumerate()) - others if thread.name.startswith("gantry-")]


class Failure:
    """A method that raises when this thread first calls it after `arm`.

    It raises after its work is done, so its own resources are free. The later ones must be freed all the same.
    """

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str, error: BaseException) -> None:
        self._is_armed = False
        original, caller = getattr(owner, name), threading.current_thread()

        def fail(*args, **options):
            result = original(*args, **options)
            if self._is_armed and threading.current_thread() is caller:
                self._is_armed = False
                raise error
            return result

        patch.setattr(owner, name, fail)

    def arm(self) -> None:
        self._is_armed = True


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (CommitLog, "flush"),
        (CommitLog, "close"),
        (MessageIndex, "close"),
        (QueueFlusher, "flush"),
        (QueueTable, "close"),
        (Flusher, "stop"),
        (StoreDirectory, "mark_closed"),
        (StoreDirectory, "unlock"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_close_lets_go_whatever_raises(tmp_path, monkeypatch, others, owner, name, error):
    with monkeypatch.context() as patch:
        failure = Failure(patch, owner, name, error)
        store = open_store(tmp_path)
        queue = store.queue("T", 0)
        put(store, queue, b"x")
        failure.arm()
        with pytest.raises((StoreError, type(error)), match="surprise"):
            store.close()
    assert not flusher_threads(others)
    # If the error comes after the last flush, no recovery is needed.
    assert (tmp_path / "abort").exists() == (name in ("flush", "stop") or owner is MessageIndex)
    with pytest.raises(StoreError, match="closed"):
        put(store, queue, b"x")
    store.close()
    store = open_store(tmp_path)
    assert [record.body for record in read_all(store, store.queue("T", 0))] == [b"x"]
    store.close()


def test_who_waits_is_answered_though_nothing_can_be_flushed(tmp_path, monkeypatch):
    store = open_store(tmp_path, flush_interval_commit_log_ms=600_000)
    answers: list[Exception | None] = []
    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "flush", lambda log: os.fsync(1 << 30))
        # The log rejects messages after the first failure.
        places = [put(store, store.queue("T", 0), b"x").physical_offset for _ in range(3)]
        for n, place in enumerate(places[:2], 1):
            store.when_flushed(place, answers.append)
            wait_until(lambda n=n: len(answers) == n)
        store.when_flushed(places[2], answers.append)
        with pytest.raises(StoreError, match="Bad file descriptor"):
            store.close()
    assert len(answers) == 3
    assert all(isinstance(error, StoreError) for error in answers)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (CommitLog, "load"),
        (QueueTable, "load"),
        (Recovery, "run"),
        (MessageIndex, "open"),
        (StoreDirectory, "mark_in_use"),
        (Flusher, "start"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_an_open_that_fails_lets_go(tmp_path, monkeypatch, others, owner, name, error):
    with opened(tmp_path) as store:
        put(store, store.queue("T", 0), b"x")
    with monkeypatch.context() as patch:
        Failure(patch, owner, name, error).arm()
        store = MessageStore(small_config(tmp_path), encode_host("127.0.0.1", 1))
        with pytest.raises((StoreError, type(error)), match="surprise"):
            store.open()
    assert not flusher_threads(others)
    store.close()
    with opened(tmp_path) as store:
        assert [record.body for record in read_all(store, store.queue("T", 0))] == [b"x"]
