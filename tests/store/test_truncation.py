"""The start and the end of a slave's log: a start in the middle of its master's log, a new start, and truncation."""

from __future__ import annotations

import random
import shutil
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
from store_support import LOG_FILE, UNITS_PER_FILE, crash, finish, flushed, log_files, open_store, put, read_all

from gantrymq.errors import StoreBusy, StoreError
from gantrymq.store.index_file import IndexFile
from gantrymq.store.key_lookup import by_unique_key
from gantrymq.store.message_store import MessageStore
from gantrymq.store.verify import verify


def closed_without_fault(*stores: MessageStore) -> None:
    for store in stores:
        store.close()
        # Deleted topics have no units.
        assert [problem for problem in verify(store.config).problems if "Nut" not in problem] == []


# -- a start in the middle -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "asks"])
@pytest.mark.parametrize("seed", range(4))
def test_a_slave_begins_in_the_middle(tmp_path: Path, seed: int, waits: bool) -> None:
    """Like Java's slave, it begins with the last file of its master. Its queues start with filler units."""
    rng = random.Random(seed)
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave", waits=waits)
    write(master, rng, 150)
    first = master.max_physical_offset // LOG_FILE // 2 * LOG_FILE
    slave.replica.begin_at(first)
    assert slave.min_physical_offset == slave.max_physical_offset == slave.replica.received == first
    follow(master, slave, lambda: rng.choice((500, 20_000)))
    assert_equal(master, slave)
    write(master, rng, 50)
    follow(master, slave, lambda: BEHIND)
    assert_equal(master, slave)
    closed_without_fault(slave)
    slave = open_slave(tmp_path / "slave")
    assert_equal(master, slave)
    crash(slave)
    slave = open_slave(tmp_path / "slave")
    assert_equal(master, slave)
    closed_without_fault(master, slave)


@pytest.mark.parametrize("count", [UNITS_PER_FILE - 1, UNITS_PER_FILE, UNITS_PER_FILE + 7])
def test_a_queue_begins_in_the_middle_of_a_file(tmp_path: Path, count: int) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    for n in range(count):
        put(master, master.queue("T", 0), b"%d" % n)
    put(master, master.queue("T", 1), bytes(LOG_FILE // 2))
    put(master, master.queue("T", 1), bytes(LOG_FILE // 2))
    assert put(master, master.queue("T", 0), b"first").physical_offset > LOG_FILE
    slave.replica.begin_at(LOG_FILE)
    follow(master, slave, lambda: BEHIND)
    queue = slave.queue("T", 0)
    assert (queue.min_offset, queue.max_offset) == (count, count + 1)
    assert queue.first_offset == count // UNITS_PER_FILE * UNITS_PER_FILE
    assert [record.body for record in read_all(slave, queue)] == [b"first"]
    assert slave.get(queue, 0, 32, 1 << 20).next_begin_offset == count
    closed_without_fault(master, slave)
    for are_lost in (False, True):
        if are_lost:
            shutil.rmtree(tmp_path / "slave" / "consumequeue")
        slave = open_slave(tmp_path / "slave")
        queue = slave.queue("T", 0)
        assert (queue.min_offset, queue.max_offset) == (count, count + 1)
        assert [record.body for record in read_all(slave, queue)] == [b"first"]
        closed_without_fault(slave)


def test_only_an_empty_log_begins_elsewhere(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    put(master, master.queue("T", 0), b"one")
    for offset in (1, -LOG_FILE, LOG_FILE - 1):
        with pytest.raises(StoreError, match="can't begin at"):
            slave.replica.begin_at(offset)
    with pytest.raises(StoreError, match="isn't a slave"):
        master.replica.begin_anew(0)
    slave.replica.begin_at(3 * LOG_FILE)
    slave.replica.begin_at(0)
    follow(master, slave, lambda: BEHIND)
    with pytest.raises(StoreError, match="has messages"):
        slave.replica.begin_at(LOG_FILE)
    assert_equal(master, slave)
    closed_without_fault(master, slave)


def test_an_empty_log_that_begins_late_is_found_again(tmp_path: Path) -> None:
    slave = open_slave(tmp_path)
    slave.replica.begin_at(5 * LOG_FILE)
    slave.close()
    slave = open_slave(tmp_path)
    assert slave.min_physical_offset == slave.max_physical_offset == 5 * LOG_FILE
    crash(slave)
    slave = open_slave(tmp_path)
    assert slave.max_physical_offset == 5 * LOG_FILE
    slave.close()


def test_beginning_anew(tmp_path: Path) -> None:
    """A slave drops its log and starts again at a later offset.

    It was down for so long that its master has deleted the data that it needs next.
    """
    rng = random.Random(5)
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    write(master, rng, 60)
    follow(master, slave, lambda: BEHIND)
    while not slave.keys.build_index(1):
        pass
    write(master, rng, 60)
    first = master.max_physical_offset // LOG_FILE * LOG_FILE
    held = slave.log_slice(0, 100)
    assert held is not None
    before = bytes(held)
    slave.replica.begin_anew(first)
    # A buffer that a socket still uses stays valid.
    assert bytes(held) == before
    assert slave.topics() == {}
    assert slave.max_physical_offset == slave.flushed_offset == first
    assert [path.name for path in log_files(tmp_path / "slave")] == [f"{first:020d}"]
    follow(master, slave, lambda: 5000)
    assert_equal(master, slave)
    flushed(slave)
    assert slave.flushed_offset == slave.max_physical_offset
    closed_without_fault(slave)
    slave = open_slave(tmp_path / "slave")
    assert_equal(master, slave)
    closed_without_fault(master, slave)


# -- truncation ------------------------------------------------------------------------------------------------------


def places(store: MessageStore) -> list[int]:
    """Returns the start offsets of all records in queues."""
    found = [unit[0] for _, _, units in queues_of(store).values() for unit in units]
    return sorted(found)


@pytest.mark.parametrize("how", ["crash", "close", "run on"])
@pytest.mark.parametrize("seed", range(5))
def test_cut_back_and_fed_by_another_master(tmp_path: Path, seed: int, how: str) -> None:
    """The two masters have the same log up to a certain offset."""
    rng = random.Random(seed)
    old, new = open_store(tmp_path / "old"), open_slave(tmp_path / "new")
    slave = open_slave(tmp_path / "slave")
    write_without_deleting(old, rng, 80)
    follow(old, new, lambda: BEHIND)
    new.set_slave(False)
    point = old.max_physical_offset
    write_without_deleting(old, rng, rng.choice((1, 5, 80)))
    write_without_deleting(new, rng, 80)
    follow(old, slave, lambda: BEHIND)
    while not slave.keys.build_index(1):
        pass
    flushed(slave)
    slave.replica.truncate(point)
    assert slave.max_physical_offset == slave.replica.received == point
    assert slave.flushed_offset <= point
    if how != "run on":
        (crash if how == "crash" else MessageStore.close)(slave)
        slave = open_slave(tmp_path / "slave")
        assert slave.max_physical_offset == point
    follow(new, slave, lambda: rng.choice((500, 20_000)))
    assert_equal(new, slave)
    closed_without_fault(old, new, slave)


def test_any_place_where_a_record_begins(tmp_path: Path) -> None:
    rng = random.Random(8)
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    write_without_deleting(master, rng, 30)
    follow(master, slave, lambda: BEHIND)
    whole = log_bytes(master, 0)
    blanks = [at for at in range(len(whole)) if whole[at + 4 : at + 8] == b"\xcb\xd4\x31\x94"]
    ends = range(0, master.max_physical_offset, LOG_FILE)
    assert blanks
    for place in [*places(master)[::3], *blanks, *ends]:
        slave.replica.truncate(place)
        assert slave.max_physical_offset == place
        assert log_bytes(slave, 0) == whole[:place]
        assert all(at < place for at in places(slave))
        follow(master, slave, lambda: 20_000)
        assert_equal(master, slave)
    closed_without_fault(master, slave)


def test_a_place_where_no_record_begins(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    for n in range(3):
        put(master, master.queue("T", 0), b"%d" % n)
    follow(master, slave, lambda: BEHIND)
    end = slave.max_physical_offset
    for place in (-1, 1, end - 1):
        with pytest.raises(StoreError, match="no record begins there"):
            slave.replica.truncate(place)
    slave.replica.truncate(end + 5)
    with pytest.raises(StoreError, match="isn't a slave"):
        master.replica.truncate(0)
    assert_equal(master, slave)
    slave.replica.append(b"\0\0")
    slave.replica.truncate(end)
    assert slave.replica.received == end
    closed_without_fault(master, slave)


def test_who_has_more_than_is_left_goes_on_at_the_end(tmp_path: Path) -> None:
    """A consumer offset beyond the truncated end of a queue is reset to that end, so no later message is skipped."""
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    results = [put(master, master.queue("T", 0), b"%d" % n) for n in range(10)]
    follow(master, slave, lambda: BEHIND)
    slave.replica.truncate(results[6].physical_offset)
    queue = slave.queue("T", 0)
    assert slave.get(queue, 9, 32, 1 << 20).next_begin_offset == 6
    assert finish(slave.keys.find(by_unique_key("T", "none"))) == []
    closed_without_fault(master, slave)


def test_it_is_on_the_disk_as_before(tmp_path: Path) -> None:
    """After a truncation, the flushers still run and report flushed messages."""
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    result = put(master, master.queue("T", 0), b"one")
    put(master, master.queue("T", 0), b"two")
    follow(master, slave, lambda: BEHIND)
    for _ in range(3):
        slave.replica.truncate(result.physical_offset + result.size)
        follow(master, slave, lambda: BEHIND)
        flushed(slave)
        assert slave.flushed_offset == slave.max_physical_offset
    closed_without_fault(master, slave)


def test_the_index_is_cut_and_not_built_anew(tmp_path: Path) -> None:
    """Older entries are found, even in slots that had newer entries."""
    options = {"max_hash_slot_num": 7, "max_index_num": 1000}
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave", **options)
    write_without_deleting(master, random.Random(4), 80)
    follow(master, slave, lambda: BEHIND)
    for place in (places(master)[70], places(master)[30], places(master)[31]):
        while not slave.keys.build_index(1):
            pass
        slave.replica.truncate(place)
        assert slave.keys.index_behind_bytes < 1000
        follow(master, slave, lambda: BEHIND)
        assert_equal(master, slave)
    slave.replica.truncate(places(master)[1])
    closed_without_fault(slave)
    slave = open_slave(tmp_path / "slave", **options)
    assert slave.keys.index_behind_bytes == 0
    follow(master, slave, lambda: BEHIND)
    assert_equal(master, slave)
    closed_without_fault(master, slave)


def test_an_index_file_was_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a check, the new file would continue after a file that has been removed."""
    options = {"max_index_num": 8}
    master, slave = open_store(tmp_path / "master", **options), open_slave(tmp_path / "slave", **options)
    other = open_store(tmp_path / "other")
    write_without_deleting(master, random.Random(3), 40)
    put(other, other.queue("T", 0), b"without a key")
    follow(master, slave, lambda: BEHIND)
    made = IndexFile.need_file

    def busy(self: IndexFile, end: int = 0) -> None:
        if slave.keys.index_behind_bytes < slave.max_physical_offset // 2:
            raise StoreBusy("being made")
        made(self, end)

    with monkeypatch.context() as patch:
        patch.setattr(IndexFile, "need_file", busy)
        for _ in range(3):
            assert not slave.keys.build_index(1)
    slave.replica.truncate(0)
    follow(other, slave, lambda: BEHIND)
    assert slave.keys.build_index(1)
    assert slave.keys.index_last_update[1] == 0
    for store in (master, other, slave):
        store.close()
