"""The store against what memory and disk allow: appends, group commit, the index, restarts."""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from result_files import add_out, recorded

from gantrymq.protocol.record import encode_host
from gantrymq.store.config import ASYNC_FLUSH, SYNC_FLUSH, StoreConfig
from gantrymq.store.message_store import MessageStore

HOST = encode_host("127.0.0.1", 40000)
PRODUCERS = (1, 32, 256)
MIB = 1024 * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--size", type=int, default=128, help="bytes of a body (%(default)s)")
    parser.add_argument("--count", type=int, default=200_000, help="messages to append (%(default)s)")
    parser.add_argument("--commits", type=int, default=2_000, help="messages with SYNC_FLUSH (%(default)s)")
    parser.add_argument("--restart-mib", type=int, default=256, help="size of the log to start with (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions (%(default)s)")
    parser.add_argument("--directory", type=Path, help="where the stores go (the temporary directory)")
    add_out(parser)
    args = parser.parse_args()
    with recorded(args, "bench/store.py"), tempfile.TemporaryDirectory(dir=args.directory) as directory:
        root = Path(directory)
        appends(root / "append", args.size, args.count, args.repeat)
        commits(root / "commit", args.size, args.commits, args.repeat)
        restarts(root / "restart", args.size, args.restart_mib)
    return 0


# -- appends -------------------------------------------------------------------------------------------------------


def appends(root: Path, size: int, count: int, repeat: int) -> None:
    """Measures, in turn, the store and a plain copy of as many bytes into a mapped file."""
    stored, copied, indexed = [], [], []
    for number in range(repeat):
        store = open_store(root / str(number), ASYNC_FLUSH)
        queues = [store.queue("Bench", queue_id) for queue_id in range(8)]
        body = bytes(size)
        keys = [unique_key(n) for n in range(count)]

        def append(store=store, queues=queues, body=body, keys=keys) -> None:
            for n, properties in enumerate(keys):
                store.append(queues[n % 8], 0, 0, 0, HOST, 0, body, properties, 0)

        stored.append(seconds(append))
        record = bytes(store.max_physical_offset // count)

        def build(store=store) -> None:
            while not store.keys.build_index(0.005):
                pass

        indexed.append(seconds(build))
        store.close()
        shutil.rmtree(root)
        copied.append(copy_seconds(root, record, count))
    report("append, messages/s", [count / taken for taken in stored])
    report("bare copy into a mapping, records/s", [count / taken for taken in copied])
    report("append / bare copy, times as long", [one / other for one, other in zip(stored, copied, strict=True)])
    report("index (not in append), messages/s", [count / taken for taken in indexed])


def copy_seconds(root: Path, record: bytes, count: int) -> float:
    root.mkdir(parents=True)
    length = len(record)
    with (root / "raw").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, length * count)
        mapping = mmap.mmap(file.fileno(), length * count)

    def copy() -> None:
        for at in range(0, length * count, length):
            mapping[at : at + length] = record

    taken = seconds(copy)
    mapping.close()
    shutil.rmtree(root)
    return taken


# -- group commit --------------------------------------------------------------------------------------------------


def commits(root: Path, size: int, count: int, repeat: int) -> None:
    """Measures acknowledged messages per second, and plain fdatasync calls per second.

    Each producer waits for the acknowledgement of its last message.
    """
    rates: dict[int, list[float]] = {producers: [] for producers in PRODUCERS}
    syncs = []
    for number in range(repeat):
        syncs.append(sync_rate(root, size, min(count, 300)))
        for producers in PRODUCERS:
            store = open_store(root / f"{number}-{producers}", SYNC_FLUSH)
            rates[producers].append(commit_rate(store, size, count if producers > 1 else min(count, 300), producers))
            store.close()
    report("fdatasync after each write, writes/s", syncs)
    for producers in PRODUCERS:
        report(f"SYNC_FLUSH, {producers} producers, messages/s", rates[producers])
        ratios = [rate / sync for rate, sync in zip(rates[producers], syncs, strict=True)]
        report(f"SYNC_FLUSH, {producers} producers / fdatasync", ratios)
    shutil.rmtree(root)


def commit_rate(store: MessageStore, size: int, count: int, producers: int) -> float:
    """Returns messages per second.

    One thread appends, as in a broker. A producer sends again after the flusher's callback.
    """
    queue = store.queue("Bench", 0)
    body = bytes(size)
    ready = threading.Semaphore(producers)

    def flushed(error: Exception | None) -> None:
        ready.release()

    began = time.perf_counter()
    for n in range(count):
        ready.acquire()
        result = store.append(queue, 0, 0, 0, HOST, 0, body, unique_key(n), 0)
        store.when_flushed(result.physical_offset, flushed)
    for _ in range(producers):
        ready.acquire()
    return count / (time.perf_counter() - began)


def sync_rate(root: Path, size: int, count: int) -> float:
    root.mkdir(parents=True, exist_ok=True)
    path = root / "raw"
    with path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, 64 * MIB)
        mapping = mmap.mmap(file.fileno(), 64 * MIB)
        os.fsync(file.fileno())
        began = time.perf_counter()
        for n in range(count):
            mapping[n * size : (n + 1) * size] = bytes(size)
            os.fdatasync(file.fileno())
        taken = time.perf_counter() - began
    mapping.close()
    path.unlink()
    return count / taken


# -- restarts ------------------------------------------------------------------------------------------------------


def restarts(root: Path, size: int, mib: int) -> None:
    """Measures the time from open to ready: after a clean close, after a crash, and with a rebuild of all queues."""
    store = open_store(root, ASYNC_FLUSH)
    queues = [store.queue("Bench", queue_id) for queue_id in range(8)]
    n = 0
    while store.max_physical_offset < mib * MIB:
        store.append(queues[n % 8], 0, 0, 0, HOST, 0, bytes(size), unique_key(n), 0)
        n += 1
    while not store.keys.build_index(0.1):
        pass
    store.close()
    print(f"restarts with {mib} MiB, {n} messages:")
    report("  after a clean close, s", [open_seconds(root)])
    (root / "abort").touch()
    report("  after a crash, s", [open_seconds(root)])
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    shutil.rmtree(root / "consumequeue")
    taken = open_seconds(root)
    report("  queues made anew from the log, s", [taken])
    report("  queues made anew, messages/s", [n / taken])


def open_seconds(root: Path) -> float:
    began = time.perf_counter()
    store = open_store(root, ASYNC_FLUSH)
    taken = time.perf_counter() - began
    store.close()
    return taken


# ------------------------------------------------------------------------------------------------------------------


def open_store(root: Path, flush_disk_type: str) -> MessageStore:
    store = MessageStore(StoreConfig(root, flush_disk_type=flush_disk_type), HOST)
    store.open()
    return store


def unique_key(number: int) -> bytes:
    return b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02" % number


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def report(what: str, values: list[float]) -> None:
    text = f"{statistics.median(values):12,.4g}"
    if len(values) > 1:
        text += f"  ({min(values):,.4g} to {max(values):,.4g})"
    print(f"{what:42} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
