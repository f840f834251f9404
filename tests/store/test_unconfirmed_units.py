"""Controller mode: consumers of a slave get only messages below the confirm offset."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from replica_support import (
    BEHIND,
    assert_equal,
    follow,
    log_bytes,
    open_slave,
    queues_of,
    write,
    write_without_deleting,
)
from store_support import LOG_FILE, crash, flush_queues, flushed, open_store, put, read_all

from gantrymq.errors import StoreBusy
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT
from gantrymq.store.message_store import MessageStore
from gantrymq.store.verify import verify


def confirm(slave: MessageStore, physical_offset: int) -> None:
    """Calls `confirm` of the replica, and waits for files that are being preallocated."""
    while True:
        try:
            slave.replica.confirm(physical_offset)
            return
        except StoreBusy:
            made = threading.Event()
            slave.when_preallocated(made.set)
            assert made.wait(10)


def ends(store: MessageStore) -> list[int]:
    """Returns the end offsets of all records in queues."""
    return sorted(unit[0] + unit[1] for _, _, units in queues_of(store).values() for unit in units)


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "asks"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_confirmed_is_seen(tmp_path: Path, seed: int, waits: bool) -> None:
    rng = random.Random(seed)
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave", waits=waits)
    write_without_deleting(master, rng, 120)
    slave.replica.confirm(0)
    queues = queues_of(master)
    confirmed = 0
    while (data := master.log_slice(slave.replica.received, rng.choice((500, 5000, 50_000)))) is not None:
        while True:
            try:
                slave.replica.append(data)
                break
            except StoreBusy:
                made = threading.Event()
                slave.when_preallocated(made.set)
                assert made.wait(10)
        if rng.random() < 0.5:
            confirmed = rng.randint(confirmed, slave.max_physical_offset)
            confirm(slave, confirmed)
        shown = {key: found[2] for key, found in queues_of(slave).items() if found[2]}
        expected = {
            key: [unit for unit in units if sum(unit[:2]) <= confirmed] for key, (_, _, units) in queues.items()
        }
        assert shown == {key: units for key, units in expected.items() if units}
    assert slave.max_physical_offset == master.max_physical_offset
    confirm(slave, BEHIND)
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()
        assert verify(store.config).problems == []


@pytest.mark.parametrize("confirmed", [0, 2, 4])
def test_verify_accepts_a_slave_that_ends_with_unconfirmed_records(tmp_path: Path, confirmed: int) -> None:
    """The slave was closed, and its next start builds their units. A unit that is missing before them is reported."""
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    ends_of_records = []
    for number in range(4):
        put(master, master.queue("T", number % 2), b"x")
        ends_of_records.append(master.max_physical_offset)
    slave.replica.confirm([0, *ends_of_records][confirmed])
    follow(master, slave, lambda: 500)
    master.close()
    slave.close()
    report = verify(slave.config)
    assert (report.problems, report.records, report.without_unit) == ([], 4, 4 - confirmed)
    reopened = open_slave(tmp_path / "slave")
    assert ends(reopened) == ends_of_records
    reopened.close()
    report = verify(slave.config)
    assert (report.problems, report.without_unit) == ([], 0)
    file = next((tmp_path / "slave" / "consumequeue" / "T" / "1").iterdir())
    file.write_bytes(file.read_bytes()[:20] + bytes(20) + file.read_bytes()[40:])
    assert verify(slave.config).problem_count == 1


def test_verify_of_unconfirmed_records_beside_a_queue_that_ends_with_a_filler(tmp_path: Path) -> None:
    """A filler is a unit without a record. Its size says nothing about the log."""
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    first, _ = [put(master, master.queue("T", 0), b"x") for _ in range(2)]
    slave.replica.confirm(first.physical_offset + first.size)
    follow(master, slave, lambda: 500)
    master.close()
    slave.close()
    filled = tmp_path / "slave" / "consumequeue" / "Filled" / "0" / ("0" * 20)
    filled.parent.mkdir(parents=True)
    filled.write_bytes(UNIT.pack(0, FILLER_SIZE, 0) + bytes(20))
    report = verify(slave.config)
    assert (report.problems, report.without_unit) == ([], 1)


def test_who_waits_is_told_when_it_is_confirmed(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    results = [put(master, master.queue("T", n % 2), b"%d" % n) for n in range(4)]
    assert slave.replica.confirm(results[1].physical_offset) == []
    assert slave.replica.append(log_bytes(master, 0)) == [slave.queue("T", 0)]
    assert set(slave.replica.confirm(results[3].physical_offset)) == {slave.queue("T", 1), slave.queue("T", 0)}
    # The confirm offset never decreases, and each queue is reported once.
    assert slave.replica.confirm(0) == []
    assert slave.replica.confirm(results[3].physical_offset + 5) == []
    assert slave.replica.confirm(BEHIND) == [slave.queue("T", 1)]
    follow(master, slave, lambda: BEHIND)
    for store in (master, slave):
        store.close()


@pytest.mark.parametrize("how", ["crash", "close"])
def test_what_is_held_back_is_there_after_a_restart(tmp_path: Path, how: str) -> None:
    """Unconfirmed messages are in their queues after a restart.

    This includes queues with no confirmed message, even after a flush of the queues.
    """
    rng = random.Random(4)
    never_ms = {"flush_interval_commit_log_ms": 600_000, "flush_interval_consume_queue_ms": 600_000}
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave", **never_ms)
    write_without_deleting(master, rng, 60)
    follow(master, slave, lambda: BEHIND)
    slave.replica.confirm(slave.max_physical_offset)
    write_without_deleting(master, rng, 60)
    put(master, master.queue("New", 0), b"new")
    follow(master, slave, lambda: BEHIND)
    assert "New" not in slave.topics()
    flushed(slave)
    flush_queues(slave)
    (crash if how == "crash" else MessageStore.close)(slave)
    slave = open_slave(tmp_path / "slave")
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()
        assert verify(store.config).problems == []


def test_a_new_master_has_all_of_it(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave", waits=False)
    slave.replica.confirm(0)
    for n in range(5):
        put(master, master.queue("T", n % 2), b"%d" % n)
    follow(master, slave, lambda: BEHIND)
    assert slave.topics() == {}
    slave.set_slave(False)
    assert slave.topics() == {"T": [0, 1]}
    assert put(slave, slave.queue("T", 0), b"next").queue_offset == 3
    assert [record.body for record in read_all(slave, slave.queue("T", 0))] == [b"0", b"2", b"4", b"next"]
    for store in (master, slave):
        store.close()


def test_what_is_held_back_is_cut_off(tmp_path: Path) -> None:
    rng = random.Random(6)
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    slave.replica.confirm(0)
    for _ in range(3):
        write_without_deleting(master, rng, 50)
        follow(master, slave, lambda: 20_000)
        point = rng.choice(ends(master))
        slave.replica.truncate(point)
        shown = [end for end in ends(slave) if end > point]
        assert shown == []
        follow(master, slave, lambda: 20_000)
    slave.replica.confirm(BEHIND)
    assert_equal(master, slave)
    slave.replica.confirm(0)
    slave.replica.begin_anew(master.max_physical_offset // LOG_FILE * LOG_FILE)
    follow(master, slave, lambda: 20_000)
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()


def test_topics_made_anew_meanwhile(tmp_path: Path) -> None:
    """At the end all messages are visible, but those of deleted queues do not reappear."""
    rng = random.Random(7)
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    slave.replica.confirm(0)
    for _ in range(4):
        write(master, rng, 60)
        follow(master, slave, lambda: 20_000)
    slave.replica.confirm(BEHIND)
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()


def test_readers_see_no_queue_go_back(tmp_path: Path) -> None:
    rng = random.Random(9)
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    slave.replica.confirm(0)
    queue = slave.queue("T", 0)
    seen = [0]
    for n in range(200):
        put(master, master.queue("T", 0), b"%d" % n)
        follow(master, slave, lambda: BEHIND)
        slave.replica.confirm(rng.randrange(slave.max_physical_offset))
        seen.append(queue.max_offset)
    assert all(before <= after for before, after in pairwise(seen))
    assert len(set(seen)) > 20
    assert [record.queue_offset for record in read_all(slave, queue)] == list(range(seen[-1]))
    for store in (master, slave):
        store.close()


def test_a_topic_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    """The unconfirmed messages of a deleted topic are dropped too, and the other queues continue."""
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    for n in range(4):
        put(master, master.queue("Gone" if n % 2 else "T", 0), b"%d" % n)
        follow(master, slave, lambda: BEHIND)
        slave.replica.confirm(master.max_physical_offset if n < 2 else 0)
    slave.delete_topic("Gone")
    assert slave.replica.confirm(BEHIND) == [slave.queue("T", 0)]
    assert slave.topics() == {"T": [0]}
    assert slave.queue("T", 0).max_offset == 2
    for store in (master, slave):
        store.close()
