"""A small store for tests, and functions to write to it and read from it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.protocol.record import Record, decode_records, encode_host
from gantrymq.store import message_index
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import StoreConfig
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetStatus
from gantrymq.store.key_lookup import Search
from gantrymq.store.message_store import MessageStore, PutResult
from gantrymq.store.store_threads import StoreThreads
from gantrymq.system import files

STORE_HOST = encode_host("127.0.0.1", 10911)
BORN_HOST = encode_host("10.1.2.3", 54321)
LOG_FILE = 64 * 1024
UNITS_PER_FILE = 50


def small_config(root: Path, **options: Any) -> StoreConfig:
    """Returns a configuration with small files, so that a test fills several."""
    return StoreConfig(
        **{
            "store_path_root_dir": root,
            "mapped_file_size_commit_log": LOG_FILE,
            "mapped_file_size_consume_queue": UNITS_PER_FILE * 20,
            "flush_interval_commit_log_ms": 10,
            "flush_interval_consume_queue_ms": 10,
            "max_hash_slot_num": 64,
            "max_index_num": 256,
            **options,
        }
    )


def open_store(root: Path, **options: Any) -> MessageStore:
    store = MessageStore(small_config(root, **options), STORE_HOST)
    store.open()
    return store


def put(
    store: MessageStore,
    queue: ConsumeQueue,
    body: bytes,
    *,
    properties: bytes = b"",
    tags_code: int = 0,
    sys_flag: int = 0,
    born_host: bytes = BORN_HOST,
) -> PutResult:
    return store.append(queue, 7, sys_flag, 1_700_000_000_000, born_host, 0, body, properties, tags_code)


def read_all(store: MessageStore, queue: ConsumeQueue) -> list[Record]:
    """Reads all records of a queue, 32 at a time. Raises RecordError if a record is damaged."""
    records: list[Record] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        result = store.get(queue, offset, 32, 1 << 20)
        found = [record for buffer in result.buffers for record in decode_records(buffer)]
        assert len(found) == result.message_count
        assert (result.status is GetStatus.FOUND) == bool(found)
        assert result.next_begin_offset > offset
        records += found
        offset = result.next_begin_offset
    return records


def finish(search: Search) -> list[int]:
    """Runs a search to its end and returns the offsets that it finds."""
    while True:
        try:
            next(search)
        except StopIteration as e:
            return e.value


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def queue_files(root: Path, topic: str, queue_id: int = 0) -> list[Path]:
    return sorted((root / "consumequeue" / topic / str(queue_id)).iterdir())


def commit_log(store: MessageStore) -> CommitLog:
    return store._log


def store_threads(store: MessageStore) -> StoreThreads:
    """Returns the threads of an open store."""
    assert store._threads is not None
    return store._threads


def flush_queues(store: MessageStore, *, thorough: bool = True) -> None:
    """Runs one round of the queue flusher in this thread."""
    store_threads(store).queue_flusher.flush(thorough=thorough)


def flush_queues_soon(store: MessageStore) -> None:
    """Requests a thorough round of the queue flusher's thread."""
    store_threads(store).queue_flusher.flush_soon()


def lose_file(queue: ConsumeQueue, base: int) -> None:
    """Makes a queue continue without the file that starts at this position."""
    del queue._files[base]


def stop_flushers(store: MessageStore) -> None:
    """Stops the flusher threads without a further flush."""
    threads = store_threads(store)
    for flusher in (threads.log_flusher, threads.queue_flusher):
        flusher._round = lambda: None  # type: ignore[method-assign]
        flusher.stop()
    store._threads = None


def release(store: MessageStore) -> None:
    """Closes the files of a store whose flushers are stopped, and unlocks its directory. The file `abort` stays."""
    store._open.close()


def crash(store: MessageStore) -> None:
    """Ends the store as SIGKILL would: without a flush, and with the file `abort`."""
    stop_flushers(store)
    release(store)


def mapped_files(directory: Path) -> list[Path]:
    """Returns the files below a directory that this process has mapped into its memory, in order."""
    paths = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(path for path in map(Path, paths) if directory in path.parents)


def limit_entries_read(patch: pytest.MonkeyPatch, count: int) -> None:
    """Makes a search by key give up after this many entries of the index."""
    patch.setattr(message_index, "_MAX_STEPS", count)


def flushed(store: MessageStore) -> None:
    """Waits until all stored messages are on disk."""
    done = threading.Event()
    store.when_flushed(store.max_physical_offset, lambda error: done.set())
    assert done.wait(10)


def pwrite_that_fails(after: int) -> Callable[[int, memoryview, int], int]:
    """Returns a replacement of `files.pwrite` that raises OSError after `after` bytes."""
    pwrite, left = files.pwrite, after

    def fails(fd: int, data: memoryview, offset: int) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.EIO, "planted")
        count = pwrite(fd, data[:left], offset)
        left -= count
        return count

    return fails
