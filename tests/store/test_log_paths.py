"""A commit log in several directories: where new files go, what a failing disk changes, and all that reads the log."""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from replica_support import append, assert_equal, log_bytes, open_slave
from store_support import LOG_FILE, crash, flushed, open_store, put, read_all, small_config
from wait_until import wait_until

from gantrymq.errors import StoreError, StoreFull, StoreLocked
from gantrymq.store.dump import MessageFilter, dump
from gantrymq.store.log_paths import PathState
from gantrymq.store.message_store import MessageStore
from gantrymq.store.offline import inspect
from gantrymq.store.rebuild import rebuild
from gantrymq.store.verify import verify
from gantrymq.system import files
from gantrymq.system.files import DiskUse

#: Three of these bodies fit into a file, and fallocate or pwrite is called for each file.
BODY = 20_000


def disks(root: Path, names: str = "abc") -> dict[str, Any]:
    return {"store_path_commit_log": [root / name for name in names]}


def fill(store: MessageStore, count: int, *, first: int = 0) -> None:
    for n in range(first, first + count):
        put(store, store.queue("T", 0), b"%05d" % n + bytes(BODY))


def numbers(store: MessageStore) -> list[int]:
    return [int(record.body[:5]) for record in read_all(store, store.queue("T", 0))]


def where(root: Path, names: str = "abc") -> dict[int, str]:
    """Returns {index of a log file: name of its directory}, in order."""
    found = [(int(path.name) // LOG_FILE, name) for name in names for path in (root / name).glob("0*")]
    assert len(found) == len(dict(found))
    return dict(sorted(found))


@contextmanager
def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, directory: Path, number: int = errno.ENOSPC
) -> Iterator[Callable[[], int]]:
    """Makes a function of `files` fail for descriptors of files in a directory. Yields the number of failures."""
    original, count = getattr(files, name), 0

    def fails(fd: int, *args: Any) -> Any:
        nonlocal count
        if Path(os.readlink(f"/proc/self/fd/{fd}")).parent == directory:
            count += 1
            raise OSError(number, os.strerror(number))
        return original(fd, *args)

    with monkeypatch.context() as patch:
        patch.setattr(files, name, fails)
        yield lambda: count


@contextmanager
def used(monkeypatch: pytest.MonkeyPatch, percent: dict[Path, int]) -> Iterator[None]:
    """Lets the disks of these directories be used to this percentage, all others to 10."""
    with monkeypatch.context() as patch:
        patch.setattr(files, "disk_use", lambda path: DiskUse(100, percent.get(path, 10), 100 - percent.get(path, 10)))
        yield


def test_new_files_are_in_turn_in_each_directory(tmp_path):
    options = disks(tmp_path)
    store = open_store(tmp_path / "store", **options)
    fill(store, 15)
    placed = where(tmp_path)
    assert len(placed) >= 5
    assert all(name == "abc"[index % 3] for index, name in placed.items())
    assert not (tmp_path / "store" / "commitlog").exists()
    store.close()
    store = open_store(tmp_path / "store", **options)
    assert numbers(store) == list(range(15))
    fill(store, 5, first=15)
    crash(store)
    store = open_store(tmp_path / "store", **options)
    assert numbers(store) == list(range(20))
    store.close()


def test_a_read_only_directory_gets_no_file_but_is_read_and_expires(tmp_path, monkeypatch):
    store = open_store(tmp_path / "store", **disks(tmp_path))
    fill(store, 9)
    before = where(tmp_path)
    # As UPDATE_BROKER_CONFIG does.
    store.config.read_only_commit_log_store_paths = [tmp_path / "b"]
    fill(store, 9, first=9)
    new = {index: name for index, name in where(tmp_path).items() if index > max(before)}
    assert set(new.values()) == {"a", "c"}
    flushed(store)
    store.close()
    store = open_store(tmp_path / "store", **disks(tmp_path, "ac"), read_only_commit_log_store_paths=[tmp_path / "b"])
    assert numbers(store) == list(range(18))
    assert store.log_paths.states()[tmp_path / "b"] == (PathState.READ_ONLY, "")
    with used(monkeypatch, {tmp_path / "store" / "consumequeue": 89}):
        wait_until(lambda: not store.clean(0))
    assert "b" not in where(tmp_path).values()
    assert numbers(store)[-1] == 17
    store.close()


def test_a_full_disk_gets_no_file_while_another_one_has_space(tmp_path, monkeypatch, caplog):
    store = open_store(tmp_path / "store", **disks(tmp_path))
    a, b, c = (tmp_path / name for name in "abc")
    with used(monkeypatch, {a: 86, b: 95}):
        assert not store.clean(0)
        assert store.log_paths.states()[b] == (PathState.FULL, "")
        first = max(where(tmp_path))
        fill(store, 9)
        assert {name for index, name in where(tmp_path).items() if index > first + 1} == {"c"}
    assert f"the disk of {b} is 95.0 % full, diskSpaceCleanForciblyRatio is 85" in caplog.text
    with used(monkeypatch, {a: 86, b: 95, c: 88}):
        # All are full: the oldest files are deleted, and all directories get files.
        flushed(store)
        wait_until(lambda: not store.clean(0))
        assert numbers(store)[0] > 0
        fill(store, 9, first=9)
        assert set(where(tmp_path).values()) == set("abc")
    with used(monkeypatch, {a: 91, b: 95, c: 92}):
        store.clean(0)
        with pytest.raises(StoreFull, match=r"the disk is 91\.0 % full"):
            fill(store, 1)
    with used(monkeypatch, {}):
        store.clean(0)
    assert {state for state, _ in store.log_paths.states().values()} == {PathState.WRITABLE}
    fill(store, 1, first=18)
    store.close()


@pytest.mark.parametrize("function", ["allocate", "ftruncate"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO], ids=errno.errorcode.get)
def test_a_disk_that_takes_no_file(tmp_path, monkeypatch, caplog, function, number):
    store = open_store(tmp_path / "store", **disks(tmp_path))
    fill(store, 15)
    before = where(tmp_path)
    held = sorted(index * LOG_FILE for index, name in before.items() if name == "b")
    caplog.set_level(logging.ERROR)
    with failing(monkeypatch, function, tmp_path / "b", number) as failures:
        fill(store, 12, first=15)
        assert failures() == 1
    new = {index: name for index, name in where(tmp_path).items() if index > max(before)}
    assert set(new.values()) == {"a", "c"}
    state, text = store.log_paths.states()[tmp_path / "b"]
    assert state is PathState.FAILED
    assert f"this directory has {len(held)} log files (from {held[0]:020d} to {held[-1]:020d})" in text
    assert [text in line for line in caplog.messages] == [True]
    assert numbers(store) == list(range(27))
    store.close()
    store = open_store(tmp_path / "store", **disks(tmp_path))
    assert numbers(store) == list(range(27))
    assert store.log_paths.states()[tmp_path / "b"] == (PathState.WRITABLE, "")
    store.close()
    assert verify(store.config).problems == []


def test_a_directory_that_is_away(tmp_path):
    """A file is in the place of the directory: no function of this project is replaced."""
    store = open_store(tmp_path / "store", **disks(tmp_path))
    fill(store, 9)
    (tmp_path / "b").rename(tmp_path / "away")
    (tmp_path / "b").touch()
    fill(store, 12, first=9)
    assert "Not a directory" in store.log_paths.states()[tmp_path / "b"][1]
    assert len(where(tmp_path, "ac")) >= 5
    # The files of `b` are still mapped.
    assert numbers(store) == list(range(21))
    (tmp_path / "b").unlink()
    (tmp_path / "away").rename(tmp_path / "b")
    store.close()


def test_files_may_not_grow(tmp_path):
    """A small RLIMIT_FSIZE affects all disks: messages are refused while it lasts, and accepted after it."""
    store = open_store(tmp_path / "store", **disks(tmp_path))
    fill(store, 3)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StoreError, match="File too large"):
            fill(store, 9, first=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    stored = store.queue("T", 0).max_offset
    fill(store, 9, first=stored)
    assert numbers(store) == list(range(stored + 9))
    store.close()


def test_too_many_open_files_say_nothing_about_a_disk(tmp_path, monkeypatch):
    store = open_store(tmp_path / "store", **disks(tmp_path))
    with failing(monkeypatch, "fstat", tmp_path / "b", errno.EMFILE), pytest.raises(StoreError, match="open files"):
        fill(store, 9)
    assert {state for state, _ in store.log_paths.states().values()} == {PathState.WRITABLE}
    store.close()


def test_a_disk_that_is_full_in_the_middle_of_a_file(tmp_path, monkeypatch):
    """After a restart, the rest of the current file has no blocks. It gets a blank, and the next file is elsewhere."""
    store = open_store(tmp_path / "store", **disks(tmp_path, "ab"))
    fill(store, 1)
    store.close()
    store = open_store(tmp_path / "store", **disks(tmp_path, "ab"))
    with failing(monkeypatch, "allocate", tmp_path / "a") as failures:
        with pytest.raises(StoreFull):
            # Not even a blank has a block in this file system.
            fill(store, 1, first=1)
        assert failures() > 0
    original = files.allocate

    def nearly_full(fd: int, start: int, count: int) -> None:
        if count > 8 and Path(os.readlink(f"/proc/self/fd/{fd}")).parent == tmp_path / "a":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(fd, start, count)

    monkeypatch.setattr(files, "allocate", nearly_full)
    fill(store, 2, first=1)
    assert where(tmp_path, "ab") == {0: "a", 1: "b"}
    assert store.max_physical_offset > LOG_FILE
    assert numbers(store) == [0, 1, 2]
    flushed(store)
    slave = open_slave(tmp_path / "slave", **disks(tmp_path, "cd"))
    append(slave, log_bytes(store, slave.max_physical_offset))
    assert numbers(slave) == [0, 1, 2]
    slave.close()
    store.close()
    store = open_store(tmp_path / "store", **disks(tmp_path, "ab"))
    assert numbers(store) == [0, 1, 2]
    store.close()
    assert verify(store.config).problems == []


def test_a_write_that_fails_moves_on_to_the_next_file(tmp_path, monkeypatch):
    store = open_store(tmp_path / "store", **disks(tmp_path, "ab"))
    fill(store, 1)
    with failing(monkeypatch, "pwrite", tmp_path / "a", errno.EIO), pytest.raises(StoreError, match="Input/output"):
        fill(store, 1, first=1)
    fill(store, 3, first=1)
    assert store.max_physical_offset > LOG_FILE
    assert numbers(store) == [0, 1, 2, 3]
    assert store.log_paths.states()[tmp_path / "a"][0] is PathState.FAILED
    store.close()
    store = open_store(tmp_path / "store", **disks(tmp_path, "ab"))
    assert numbers(store) == [0, 1, 2, 3]
    store.close()


@pytest.mark.parametrize("aborted", [False, True])
def test_a_disk_that_is_not_mounted_cuts_nothing(tmp_path, aborted):
    """Its files may be the last ones of the log, without a gap before them."""
    options = disks(tmp_path, "ab")
    store = open_store(tmp_path / "store", **options)
    fill(store, 5)
    wait_until(lambda: store.flushed_offset == store.max_physical_offset)
    store.close()
    assert where(tmp_path, "ab") == {0: "a", 1: "b"}
    if aborted:
        (tmp_path / "store" / "abort").touch()
    (tmp_path / "b").rename(tmp_path / "away")
    problem = rf"ends at {LOG_FILE}, but had messages after it: .* the file {LOG_FILE:020d} \({tmp_path}/b has none\)"
    with pytest.raises(StoreError, match=problem):
        open_store(tmp_path / "store", **options)
    assert not (tmp_path / "b").exists()
    (tmp_path / "away").rename(tmp_path / "b")
    store = open_store(tmp_path / "store", **options)
    assert numbers(store) == list(range(5))
    store.close()


@pytest.mark.parametrize("left", ["ab", "a"])
def test_a_directory_that_is_no_longer_configured_cuts_nothing(tmp_path, left):
    store = open_store(tmp_path / "store", **disks(tmp_path))
    while len(where(tmp_path)) < 3:
        fill(store, 1)
    end = store.max_physical_offset
    store.close()
    with pytest.raises(StoreError, match="but had messages after it"):
        open_store(tmp_path / "store", **disks(tmp_path, left))
    store = open_store(tmp_path / "store", **disks(tmp_path))
    assert store.max_physical_offset == end
    store.close()
    # The remedy for a directory that is lost.
    (tmp_path / "store" / "checkpoint").unlink()
    store = open_store(tmp_path / "store", **disks(tmp_path, left))
    assert 0 < store.max_physical_offset < end
    store.close()


def test_a_gap_is_an_error(tmp_path):
    store = open_store(tmp_path / "store", **disks(tmp_path))
    fill(store, 9)
    store.close()
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(StoreError, match=rf"{tmp_path}/a,{tmp_path}/b,{tmp_path}/c lack the file before"):
        open_store(tmp_path / "store", **disks(tmp_path))


def test_two_files_of_one_name(tmp_path):
    """A failing disk can keep a file without messages. Of two files with messages, none is dropped."""
    store = open_store(tmp_path / "store", **disks(tmp_path, "ab"))
    fill(store, 9)
    last = max(where(tmp_path, "ab"))
    store.close()
    name = f"{LOG_FILE:020d}"
    (tmp_path / "a" / name).write_bytes(bytes(LOG_FILE))
    assert verify(store.config).problems == []
    store = open_store(tmp_path / "store", **disks(tmp_path, "ab"))
    assert numbers(store) == list(range(9))
    assert max(where(tmp_path, "ab")) == last
    store.close()
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    with pytest.raises(StoreError, match=f"{name} both have messages: move one of them away"):
        open_store(tmp_path / "store", **disks(tmp_path, "ab"))


def test_a_file_that_a_failing_disk_kept(tmp_path, monkeypatch):
    """Its creation failed, and so did its deletion. It is ignored when the log begins after it."""
    store = open_store(tmp_path / "store", **disks(tmp_path, "ab"))
    fill(store, 12)
    flushed(store)
    with used(monkeypatch, {tmp_path / "store" / "consumequeue": 89}):
        wait_until(lambda: not store.clean(0))
    first = min(where(tmp_path, "ab"))
    assert first > 1
    store.close()
    (tmp_path / "b" / f"{0:020d}").write_bytes(bytes(LOG_FILE))
    store = open_store(tmp_path / "store", **disks(tmp_path, "ab"))
    assert store.min_physical_offset == first * LOG_FILE
    fill(store, 1, first=12)
    assert numbers(store)[-2:] == [11, 12]
    store.close()


def test_a_shared_directory_is_locked(tmp_path):
    store = open_store(tmp_path / "one", **disks(tmp_path, "ab"))
    with pytest.raises(StoreLocked, match=f"{tmp_path}/b is in use by another broker"):
        open_store(tmp_path / "two", **disks(tmp_path, "cb"))
    store.close()
    open_store(tmp_path / "two", **disks(tmp_path, "cb")).close()


def test_a_slave_with_other_directories(tmp_path):
    """It has the same bytes as its master, and can start anew."""
    master = open_store(tmp_path / "master", **disks(tmp_path))
    slave = open_slave(tmp_path / "slave", **disks(tmp_path, "de"))
    fill(master, 9)
    append(slave, log_bytes(master, slave.max_physical_offset))
    assert_equal(master, slave)
    assert set(where(tmp_path, "de").values()) == {"d", "e"}
    slave.replica.begin_anew(LOG_FILE)
    assert where(tmp_path, "de") == {1: "e"}
    for store in (master, slave):
        store.close()


def test_the_tools_read_all_directories(tmp_path):
    store = open_store(tmp_path / "store", **disks(tmp_path))
    fill(store, 9)
    store.close()
    config = small_config(tmp_path / "store", **disks(tmp_path))
    summary = inspect(config)
    assert [file.path.parent.name for file in summary.log_files] == list(where(tmp_path).values())
    assert [int(message.body[:5]) for message in dump(config, MessageFilter())] == list(range(9))
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    assert verify(config).without_unit == 9
    rebuild(config, cut=False)
    report = verify(config)
    assert (report.problems, report.records, report.without_unit) == ([], 9, 0)
