"""Power cuts of a slave that follows one master and then another.

Its log is that of one of the masters, and never a mixture.
"""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path
from struct import Struct

import pytest
from power_cut import Disk
from replica_support import TAG_CODES, append, assert_equal, follow, log_bytes, open_slave
from store_support import (
    STORE_HOST,
    crash,
    flush_queues,
    flushed,
    log_files,
    open_store,
    put,
    read_all,
    release,
    small_config,
    stop_flushers,
)

from gantrymq.protocol.record import MAGIC_BLANK
from gantrymq.store.message_store import MessageStore
from gantrymq.store.verify import verify

BLANK = Struct(">iI")
CUTS = 4
NEVER_MS = 600_000


@pytest.mark.parametrize("seed", [*range(15), None])
def test_it_has_what_one_master_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None) -> None:
    if seed is None:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
    rng = random.Random(seed)
    first = open_store(tmp_path / "first")
    size = rng.choice((100, 300, 5000))
    write(first, rng, size, 40)
    point = first.max_physical_offset
    first.close()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    masters = open_store(tmp_path / "first"), open_store(tmp_path / "second")
    for master in masters:
        write(master, rng, size, 60)
    logs = [log_bytes(master, 0) for master in masters]
    disk = Disk(tmp_path / "slave", rng)
    disk.patch(monkeypatch)
    for turn in range(CUTS):
        slave = opened(tmp_path / "slave")
        number = min(turn, 1)
        if turn and log_bytes(slave, 0) != logs[1][: slave.max_physical_offset]:
            slave.replica.truncate(point)
        end = take(slave, masters[number], rng)
        stop_flushers(slave)
        disk.cut()
        release(slave)
        slave = opened(tmp_path / "slave")
        found = log_bytes(slave, 0)
        # A blank record without a following file does not count. It contains no message.
        assert len(found) >= end or is_blank(logs[number][len(found) : end])
        assert found == logs[number][: len(found)] or (not end and found == logs[0][: len(found)])
        for topic, queue_ids in slave.topics().items():
            for queue_id in queue_ids:
                read_all(slave, slave.queue(topic, queue_id))
        slave.close()
        assert verify(slave.config).problems == []
    slave = opened(tmp_path / "slave")
    if log_bytes(slave, 0) != logs[1][: slave.max_physical_offset]:
        slave.replica.truncate(point)
    follow(masters[1], slave, lambda: 10_000)
    assert_equal(masters[1], slave)
    for store in (*masters, slave):
        store.close()


def is_blank(data: bytes) -> bool:
    return BLANK.unpack_from(data) == (len(data), MAGIC_BLANK)


def opened(root: Path) -> MessageStore:
    return open_slave(root, flush_interval_commit_log_ms=NEVER_MS, flush_interval_consume_queue_ms=NEVER_MS)


def write(master: MessageStore, rng: random.Random, size: int, count: int) -> None:
    """Stores messages of one size, so that the records of two logs begin at the same offsets."""
    for _ in range(count):
        queue = master.queue(rng.choice("AB"), rng.randrange(2))
        tag = rng.randrange(3)
        put(master, queue, rng.randbytes(size), tags_code=TAG_CODES[tag], properties=b"TAGS\x01t%d\x02" % tag)


def take(slave: MessageStore, master: MessageStore, rng: random.Random) -> int:
    """Copies a part of the master's log, and returns the end of the flushed part."""
    end = 0
    for _ in range(rng.randrange(1, 30)):
        data = master.log_slice(slave.replica.received, rng.choice((500, 5000, 30_000)))
        if data is None:
            break
        append(slave, data)
        if rng.random() < 0.1:
            done = threading.Event()
            position = slave.max_physical_offset
            slave.when_flushed(position, lambda error, done=done: error or done.set())
            assert done.wait(10)
            end = position
        if rng.random() < 0.1:
            flush_queues(slave, thorough=rng.random() < 0.7)
        if rng.random() < 0.2:
            slave.keys.build_index(rng.choice((0, 1)))
    return end


@pytest.mark.parametrize("is_slave", ["before it is opened", "later", "no"])
def test_a_record_whose_properties_are_lost(tmp_path: Path, is_slave: str) -> None:
    """A slave copies a record with lost properties again, and a master keeps it.

    No checksum covers the properties. Data that was flushed before is intact.
    """
    master = open_store(tmp_path / "master")
    nothing = bytes(2000)
    results = [
        put(master, master.queue("T", 0), b"%d" % n, properties=b"a\x01%s\x02" % (nothing if n == 1 else b"x" * 1000))
        for n in range(5)
    ]
    slave = open_slave(tmp_path / "slave")
    append(slave, log_bytes(master, 0)[: results[2].physical_offset])
    flushed(slave)
    flush_queues(slave)
    append(slave, log_bytes(master, slave.max_physical_offset))
    crash(slave)
    (path,) = log_files(tmp_path / "slave")
    data = bytearray(path.read_bytes())
    sector = (results[3].physical_offset + 200) // 512 * 512 + 512
    data[sector : sector + 512] = bytes(512)
    path.write_bytes(data)
    store = MessageStore(small_config(tmp_path / "slave"), STORE_HOST)
    if is_slave == "before it is opened":
        store.set_slave(True)
    store.open()
    if is_slave == "later":
        assert store.max_physical_offset == master.max_physical_offset
        store.set_slave(True)
    if is_slave == "no":
        store.set_slave(False)
        store.set_slave(True)
        assert store.max_physical_offset == master.max_physical_offset
    else:
        assert store.max_physical_offset == results[3].physical_offset
        follow(master, store, lambda: 1000)
        assert_equal(master, store)
    for each in (master, store):
        each.close()
