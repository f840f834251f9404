"""A message store without a broker, and helpers that damage it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gantrymq.background.jobs import Jobs
from gantrymq.broker.append.appender import Appender
from gantrymq.broker.pull.long_polling import LongPolling
from gantrymq.errors import StoreFull
from gantrymq.protocol.record import Record, decode_records, encode_host
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore
from gantrymq.store.refusal import Refusal
from gantrymq.store.store_threads import StoreThreads

HOST = encode_host("127.0.0.1", 10911)
#: Size of a record before its body, in bytes.
_BEFORE_BODY = 88


def nobody_waits() -> LongPolling:
    """Returns a long-polling service without pending pulls.

    The caller needs a running event loop.
    """
    return LongPolling(lambda pull, expired: None, Jobs())


def open_store(root: Path, polling: LongPolling, **options: object) -> Appender:
    """Opens the store in `root` and returns its appender."""
    config = StoreConfig(
        root,
        mapped_file_size_commit_log=4 * 1024 * 1024,
        message_index_enable=False,
        **options,  # type: ignore[arg-type]
    )
    store = MessageStore(config, HOST)
    store.open()
    return Appender(store, HOST, polling)


def commit_log(store: MessageStore) -> CommitLog:
    """Returns the commit log of a store. Tests use it as a faulty disk does: they make it fail, or change its bytes."""
    return store._log


def threads_of(store: MessageStore) -> StoreThreads:
    """Returns the threads of an open store."""
    threads = store._threads
    assert threads is not None
    return threads


@contextmanager
def full_disk(store: MessageStore) -> Iterator[None]:
    """Makes the store refuse messages, as if the disk were full."""
    commit_log(store).refuse("test", Refusal("the disk is too full", StoreFull))
    try:
        yield
    finally:
        commit_log(store).refuse("test", None)


def damage(store: MessageStore, physical_offset: int, at: int = _BEFORE_BODY) -> None:
    """Flips one byte of a record; by default the first byte of its body."""
    size = store.config.mapped_file_size_commit_log
    path = store.config.commit_log_directories[0] / f"{physical_offset // size * size:020d}"
    with path.open("r+b") as file:
        file.seek(physical_offset % size + at)
        byte = file.read(1)[0]
        file.seek(physical_offset % size + at)
        file.write(bytes([byte ^ 0xFF]))


def records(store: MessageStore, topic: str, queue_id: int = 0) -> list[Record]:
    """Returns all records of a queue."""
    queue = store.find_queue(topic, queue_id)
    found: list[Record] = []
    while queue is not None and len(found) < queue.max_offset:
        for buffer in store.get(queue, len(found), 1000, 1 << 24, bulk=True).buffers:
            found += decode_records(buffer)
    return found


def bodies(store: MessageStore, topic: str, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in records(store, topic, queue_id)]
