"""Power cuts: all messages that were reported as flushed are on disk. See `power_cut`."""

from __future__ import annotations

import random
import threading

import pytest
from power_cut import Disk
from store_support import finish, flush_queues, open_store, put, read_all, release, stop_flushers

from gantrymq.store.key_lookup import by_unique_key
from gantrymq.store.message_store import MessageStore
from gantrymq.store.verify import verify

CUTS = 3


@pytest.mark.parametrize("seed", [*range(20), None])
def test_nothing_acknowledged_is_lost(tmp_path, monkeypatch, seed):
    if seed is None:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
    rng = random.Random(seed)
    root = tmp_path / "store"
    # Odd seeds have the log in several directories.
    log = [root / f"log{n}" for n in range(2 + seed % 3)] if seed % 2 else None
    disk = Disk(root, rng)
    disk.patch(monkeypatch)
    acknowledged: dict[tuple[str, int], dict[int, bytes]] = {}
    for turn in range(CUTS):
        store = open_store(
            root,
            store_path_commit_log=log,
            flush_disk_type="SYNC_FLUSH",
            flush_interval_commit_log_ms=600_000,
            flush_interval_consume_queue_ms=600_000,
        )
        check(store, acknowledged)
        write(store, rng, acknowledged, turn)
        stop_flushers(store)
        disk.cut()
        release(store)
    store = open_store(root, store_path_commit_log=log)
    check(store, acknowledged)
    config = store.config
    store.close()
    assert verify(config).problems == []


def write(
    store: MessageStore, rng: random.Random, acknowledged: dict[tuple[str, int], dict[int, bytes]], turn: int
) -> None:
    waiting: list[tuple[tuple[str, int], int, bytes]] = []
    for n in range(rng.randrange(1, 400)):
        queue = store.queue(rng.choice("AB"), rng.randrange(2))
        key = b"%d-%d" % (turn, n)
        body = key + b" " + rng.randbytes(rng.choice((0, 20, 500, 5000)))
        result = put(store, queue, body, properties=b"UNIQ_KEY\x01%s\x02" % key)
        waiting.append(((queue.topic, queue.queue_id), result.queue_offset, body))
        if rng.random() < 0.05:
            done = threading.Event()
            store.when_flushed(result.physical_offset, lambda error, done=done: error or done.set())
            assert done.wait(10)
            for key_, offset, body in waiting:
                acknowledged.setdefault(key_, {})[offset] = body
            waiting.clear()
        if rng.random() < 0.03:
            flush_queues(store, thorough=rng.random() < 0.7)
        if rng.random() < 0.1:
            store.keys.build_index(rng.choice((0, 1)))


def check(store: MessageStore, acknowledged: dict[tuple[str, int], dict[int, bytes]]) -> None:
    for (topic, queue_id), messages in acknowledged.items():
        records = read_all(store, store.queue(topic, queue_id))
        assert [record.queue_offset for record in records] == list(range(len(records)))
        for offset, body in messages.items():
            assert records[offset].body == body
    while not store.keys.build_index(1):
        pass
    for (topic, _), messages in acknowledged.items():
        for body in list(messages.values())[::7]:
            key = body.split(b" ", 1)[0].decode()
            found = [store.read_record(at).body for at in finish(store.keys.find(by_unique_key(topic, key)))]
            assert body in found
