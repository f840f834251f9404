"""Deleted topics and queues.

They are invisible at once. The flusher thread deletes their files soon after.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from constants import change_constant
from store_support import crash, open_store, put, read_all
from wait_until import wait_until

from gantrymq.store import trash
from gantrymq.store.message_store import MessageStore
from gantrymq.system import files

QUEUES = 100


def fill(store: MessageStore) -> None:
    for n in range(QUEUES):
        put(store, store.queue("Many", n), b"x")
    put(store, store.queue("Other", 0), b"other")


def left(root: Path) -> list[Path]:
    return list((root / "consumequeue.deleted").iterdir())


def test_files_go_in_the_background_and_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    fill(store)
    deleting: set[str] = set()
    unlink = files.unlink

    def noted(path: Path, *, missing_ok: bool = False) -> None:
        deleting.add(threading.current_thread().name)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(files, "unlink", noted)
    change_constant(monkeypatch, "trash._STEP_S", 0.005)
    queue = store.queue("Many", 0)
    store.delete_topic("Many")
    assert not (tmp_path / "consumequeue" / "Many").exists()
    assert list(store.topics()) == ["Other"]
    assert not queue.exists
    assert put(store, store.queue("Many", 0), b"anew").queue_offset == 0
    wait_until(lambda: not left(tmp_path))
    assert deleting == {"gantry-queue-flusher"}
    assert [record.body for record in read_all(store, store.queue("Many", 0))] == [b"anew"]
    store.close()


def test_what_a_killed_process_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    fill(store)
    with monkeypatch.context() as patch:
        patch.setattr(trash.Trash, "empty", lambda self: None)
        store.delete_topic("Many")
        assert len(left(tmp_path)) == 1
        crash(store)
    store = open_store(tmp_path)
    wait_until(lambda: not left(tmp_path))
    assert [record.body for record in read_all(store, store.queue("Other", 0))] == [b"other"]
    store.close()


def test_a_directory_that_cannot_be_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the directory cannot be renamed, its files are deleted in place, at once."""
    store = open_store(tmp_path)
    fill(store)
    (tmp_path / "consumequeue.deleted").write_text("a stranger's")
    store.delete_topic("Many")
    assert list(store.topics()) == ["Other"]
    assert not (tmp_path / "consumequeue" / "Many").exists()
    store.close()


def test_a_deleted_topic_stays_away_when_the_store_was_closed(tmp_path: Path) -> None:
    """A deleted topic does not reappear after a restart, although its messages are the last ones of the log.

    A topic that is created again has none of the old messages.
    """
    store = open_store(tmp_path)
    put(store, store.queue("Other", 0), b"before")
    for topic in ("Deleted", "Anew"):
        for number in range(10):
            put(store, store.queue(topic, 0), b"%d" % number)
        store.delete_topic(topic)
    store.queue("Anew", 0)
    store.close()
    store = open_store(tmp_path)
    assert list(store.topics()) == ["Other"]
    assert store.queue("Anew", 0).max_offset == 0
    assert put(store, store.queue("Anew", 0), b"new").queue_offset == 0
    assert [record.body for record in read_all(store, store.queue("Anew", 0))] == [b"new"]
    store.close()


def test_a_topic_is_gone_from_the_disk_before_its_queues_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is removed from the disk before its queue files.

    Otherwise a power failure meanwhile could restore the topic with some of its queues.
    """
    store = open_store(tmp_path)
    fill(store)
    done: list[str] = []
    unlink, sync = files.unlink, trash.sync_directory

    def noted_unlink(path: Path, *, missing_ok: bool = False) -> None:
        done.append("unlink")
        unlink(path, missing_ok=missing_ok)

    def noted_sync(path: Path) -> None:
        sync(path)
        if path == tmp_path / "consumequeue":
            done.append("sync")

    monkeypatch.setattr(files, "unlink", noted_unlink)
    monkeypatch.setattr(trash, "sync_directory", noted_sync)
    store.delete_topic("Many")
    wait_until(lambda: not left(tmp_path))
    store.close()
    assert done[:2] == ["sync", "unlink"]
