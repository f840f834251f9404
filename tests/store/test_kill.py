"""SIGKILL at random moments.

All acknowledged messages are stored once and in order, and the index agrees with them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import Nursery, nursery
from store_support import finish, open_store, read_all

from gantrymq.protocol.properties import find_property
from gantrymq.store.key_lookup import by_unique_key
from gantrymq.store.verify import verify

ROUNDS = 50
ROUNDS_PER_STORE = 5

WRITER = """
import os, random
from pathlib import Path
from store_support import open_store, put

def write(fd, root, mode, seed):
    rng = random.Random(seed)
    store = open_store(Path(root), flush_disk_type=mode, flush_interval_commit_log_ms=rng.choice((1, 5, 500)))
    for n in range(1_000_000):
        queue = store.queue(rng.choice("ABC"), rng.randrange(3))
        key = "%s-%d" % (seed, n)
        body = key.encode() + b" " + b"x" * rng.choice((0, 10, 300, 3000))
        result = put(store, queue, body, properties=b"UNIQ_KEY\\x01%s\\x02" % key.encode())
        line = ("%s %d %d %s\\n" % (queue.topic, queue.queue_id, result.queue_offset, key)).encode()
        if mode == "SYNC_FLUSH":
            store.when_flushed(result.physical_offset, lambda error, line=line: error or os.write(fd, line))
        else:
            os.write(fd, line)
        if n % 50 == 49:
            store.keys.build_index(rng.choice((0, 0.01)))
"""


@pytest.fixture(scope="module")
def writers() -> Iterator[Nursery]:
    with nursery(WRITER, Path(__file__).parent) as writers:
        yield writers


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_was_acknowledged_survives(writers, mode, tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    acknowledged: dict[tuple[str, int], dict[int, str]] = {}
    total = 0
    for number in range(ROUNDS):
        if number % ROUNDS_PER_STORE == 0:
            acknowledged = {}
        root = tmp_path / str(number // ROUNDS_PER_STORE)
        count = rng.choice((0, 1, rng.randrange(200)))
        lines = writers.run_and_kill(tmp_path / f"fifo{number}", count, root, mode, rng.randrange(1 << 32))
        total += len(lines)
        for line in lines:
            topic, queue_id, offset, key = line.split()
            acknowledged.setdefault((topic, int(queue_id)), {})[int(offset)] = key
        check(root, acknowledged)
    # Usually 1,600 and more messages. In one of 2,000 runs, the random choice gives less than a third of that.
    assert total > ROUNDS * 4, f"{total} messages only"


def check(root: Path, acknowledged: dict[tuple[str, int], dict[int, str]]) -> None:
    store = open_store(root)
    keys = set()
    for topic, queue_ids in store.topics().items():
        for queue_id in queue_ids:
            records = read_all(store, store.queue(topic, queue_id))
            assert [record.queue_offset for record in records] == list(range(len(records)))
            found = [record.body.split()[0].decode() for record in records]
            assert len(set(found)) == len(found)
            for record, key in zip(records, found, strict=True):
                assert find_property(record.properties, b"UNIQ_KEY") == key.encode()
            for offset, key in acknowledged.get((topic, queue_id), {}).items():
                assert found[offset] == key
            keys.update(found)
    assert keys >= {key for of_queue in acknowledged.values() for key in of_queue.values()}
    while not store.keys.build_index(1):
        pass
    for key in random.sample(sorted(keys), min(len(keys), 20)):
        assert [store.read_record(at).body.split()[0].decode() for at in _find(store, key)] == [key]
    config = store.config
    store.close()
    assert verify(config).problems == []


def _find(store, key: str) -> list[int]:
    return [at for topic in "ABC" for at in finish(store.keys.find(by_unique_key(topic, key)))]
