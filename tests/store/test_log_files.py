"""Files of the log that are created and deleted.

The tests cover the threads that do it, the fsyncs, and the state after a power failure.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from store_support import LOG_FILE, crash, finish, flush_queues_soon, flushed, log_files, open_store, put, read_all
from wait_until import wait_until

from gantrymq.errors import StoreError
from gantrymq.store import retention
from gantrymq.store.checkpoint import load_checkpoint, save_checkpoint
from gantrymq.store.key_lookup import by_key
from gantrymq.system import files


@pytest.fixture
def syncs(monkeypatch):
    """Returns the names of the threads that called fsync."""
    threads: set[str] = set()

    def recorded(sync):
        def record(fd: int) -> None:
            threads.add(threading.current_thread().name)
            sync(fd)

        return record

    for module, name in ((files, "fdatasync"), (files, "sync_entries"), (files, "fsync")):
        monkeypatch.setattr(module, name, recorded(getattr(module, name)))
    return threads


def test_who_writes_never_waits_for_fsync(tmp_path, syncs, monkeypatch):
    """The caller never calls fsync itself.

    It creates topics and all kinds of files, deletes them, and searches.
    """
    store = open_store(tmp_path)
    here = threading.current_thread().name
    assert syncs == {here}
    syncs.clear()
    for n in range(600):
        properties = b"KEYS\x01k%d\x02UNIQ_KEY\x01u%d\x02" % (n, n)
        put(store, store.queue(f"T{n % 50}", n % 3), bytes(1000), properties=properties)
    while not store.keys.build_index(1):
        pass
    assert len(finish(store.keys.find(by_key("T0", "k0", 0, 1 << 62, 10)))) == 1
    flushed(store)
    store.delete_topic("T1")
    monkeypatch.setattr(retention, "used_percent", lambda path: 86.0)
    wait_until(lambda: not store.clean(0))
    assert store.min_physical_offset > LOG_FILE
    assert sum(store.delete_expired_queues()) > 10
    assert len(list((tmp_path / "index").iterdir())) == 1
    # A message for the deleted topic.
    put(store, store.queue("T1", 0), b"x")
    flushed(store)
    flush_queues_soon(store)
    wait_until(lambda: load_checkpoint(tmp_path / "checkpoint").confirm_phy_offset == store.max_physical_offset)
    assert syncs == {"gantry-log-flusher", "gantry-queue-flusher"}
    store.close()


def test_who_writes_waits_for_nobody_who_waits_for_fsync(tmp_path, monkeypatch):
    """The caller waits neither for the flusher's lock nor for the next file."""
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    put(store, queue, b"first")
    waiting, go_on = threading.Event(), threading.Event()
    with monkeypatch.context() as patch:
        for name in ("fdatasync", "sync_entries"):
            patch.setattr(files, name, lambda fd: (waiting.set(), go_on.wait(10)))
        put(store, queue, bytes(40_000))
        assert waiting.wait(10)
        for n in range(100):
            put(store, queue, bytes([n]) * 10_000)
        assert not go_on.is_set()
        assert len(read_all(store, queue)) == 102
        assert store.flushed_offset < LOG_FILE
        go_on.set()
        flushed(store)
    assert store.flushed_offset == store.max_physical_offset
    store.close()


# -- after a power failure -------------------------------------------------------------------------------------------


def fill_and_crash(root, files: int = 5) -> list[bytes]:
    """Stores messages in several log files, crashes, and returns the bodies.

    No message counts as flushed.
    """
    store = open_store(root, flush_interval_commit_log_ms=600_000, flush_interval_consume_queue_ms=600_000)
    queue = store.queue("T", 0)
    bodies = []
    while store.max_physical_offset < (files - 1) * LOG_FILE:
        bodies.append(b"%d" % len(bodies) + bytes(1000))
        put(store, queue, bodies[-1])
    crash(store)
    return bodies


def open_and_read(root) -> list[bytes]:
    store = open_store(root)
    bodies = [record.body for record in read_all(store, store.queue("T", 0))]
    assert put(store, store.queue("T", 0), b"next").queue_offset == len(bodies)
    store.close()
    return bodies


@pytest.mark.parametrize("how", ["missing", "empty"])
@pytest.mark.parametrize("place", [1, 2, 4])
def test_a_file_whose_entry_was_not_on_the_disk(tmp_path, how, place):
    """The log ends before this file, whatever later files are left after the failure."""
    bodies = fill_and_crash(tmp_path)
    lost = log_files(tmp_path)[place]
    lost.unlink()
    if how == "empty":
        lost.touch()
    found = open_and_read(tmp_path)
    assert found == bodies[: len(found)]
    assert place * LOG_FILE // 1200 < len(found) <= place * LOG_FILE // 1000
    names = [int(path.name) for path in log_files(tmp_path)]
    assert names == [n * LOG_FILE for n in range(len(names))]
    assert place <= len(names) <= place + 1


@pytest.mark.parametrize("why", ["closed", "confirmed", "timestamp"])
def test_a_file_that_somebody_took_away(tmp_path, why):
    """If a log file is missing, the other files are not changed, because an administrator can restore it."""
    bodies = fill_and_crash(tmp_path)
    if why == "closed":
        open_store(tmp_path).close()
    else:
        checkpoint = load_checkpoint(tmp_path / "checkpoint")
        if why == "confirmed":
            checkpoint.confirm_phy_offset = 3 * LOG_FILE
        else:
            # As Java's broker leaves it.
            checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = 1 << 45
        save_checkpoint(tmp_path / "checkpoint", checkpoint)
    files = log_files(tmp_path)
    taken = files[2].rename(tmp_path / "taken")
    with pytest.raises(StoreError, match=f"lacks the file before {files[3].name}: bring it back"):
        open_store(tmp_path)
    assert log_files(tmp_path) == [*files[:2], *files[3:]]
    taken.rename(files[2])
    assert open_and_read(tmp_path) == bodies


def test_a_store_that_was_never_used_takes_another_size(tmp_path):
    open_store(tmp_path).close()
    assert [path.stat().st_size for path in log_files(tmp_path)] == [LOG_FILE]
    for size in (8192, 4 * LOG_FILE):
        open_store(tmp_path, mapped_file_size_commit_log=size).close()
        assert [path.stat().st_size for path in log_files(tmp_path)] == [size]
    store = open_store(tmp_path, mapped_file_size_commit_log=8192)
    put(store, store.queue("T", 0), b"x")
    store.close()
    with pytest.raises(StoreError, match="has 8192 bytes, mappedFileSizeCommitLog is 4096"):
        open_store(tmp_path, mapped_file_size_commit_log=4096)


def advice(file: Path) -> dict[int, list[str]]:
    """Returns the kernel's flags of a mapped file, by the address of each mapping."""
    found, at = {}, -1
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if str(file) in line:
            at = int(line.split()[2], 16)
        elif line.startswith("VmFlags") and at >= 0:
            found[at] = line.split()[1:]
            at = -1
        elif "-" in line.split()[0]:
            at = -1
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells it")
def test_nothing_is_read_ahead_where_the_log_will_be_written(tmp_path: Path) -> None:
    size = 1024 * 1024
    store = open_store(tmp_path, mapped_file_size_commit_log=size)
    queue = store.queue("T", 0)
    while store.max_physical_offset < size // 2:
        put(store, queue, bytes(10_000))
    store.close()
    store = open_store(tmp_path, mapped_file_size_commit_log=size)
    queue = store.queue("T", 0)
    put(store, queue, b"x")
    first, written = log_files(tmp_path)[0], store.max_physical_offset
    for at, of_these in advice(first).items():
        assert ("rr" in of_these) == (at > 0)
        assert at == 0 or written - 20_000 < at < written
    while store.max_physical_offset < size:
        put(store, queue, bytes(10_000))
    first, second, *_ = log_files(tmp_path)
    assert ["rr" in of_these for of_these in advice(first).values()] == [False]
    assert ["rr" in of_these for of_these in advice(second).values()] == [True]
    store.close()


def test_a_system_that_takes_no_advice_takes_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MADV_NORMAL", "MADV_RANDOM"):
        monkeypatch.setattr(files, name, 9999)
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    while store.max_physical_offset < 2 * LOG_FILE:
        put(store, queue, bytes(10_000))
    store.close()
    assert len(log_files(tmp_path)) >= 3
