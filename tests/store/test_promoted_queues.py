"""A slave whose log becomes a master's: who knows more of a queue than it has goes on where it ended then."""

from __future__ import annotations

from pathlib import Path

from replica_support import follow, open_slave
from store_support import open_store, put

from gantrymq.store.get_result import GetStatus


def test_what_the_former_master_had_alone_is_not_skipped(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    for number in range(3):
        put(master, master.queue("orders", 0), b"%d" % number)
    follow(master, slave, lambda: 1000)
    slave.set_slave(False)
    queue = slave.queue("orders", 0)
    # Two messages more were consumed from the former master, and two others have come since.
    for number in range(2):
        put(slave, queue, b"new %d" % number)
    result = slave.get(queue, 6, 10, 1000)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 3)
    master.close()
    slave.close()


def test_a_store_that_was_a_masters_has_lost_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "master")
    put(store, store.queue("orders", 0), b"0")
    store.set_slave(False)
    assert store.queue("orders", 0).recovered_end is None
    store.close()
