"""A slave lost the end of its log, copied it again from its master, and becomes master.

Consumers must not be reset because of that.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from replica_support import follow, open_slave
from store_support import crash, open_store, put

from gantrymq.store.get_result import GetStatus


def test_what_has_come_again_is_lost_no_more(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    for number in range(3):
        put(master, master.queue("orders", 0), b"%d" % number)
    follow(master, slave, lambda: 1000)
    # The state after a crash, or after the end of the former master's log was truncated.
    queue = slave.queue("orders", 0)
    queue.recovered_end = 1
    slave.set_slave(False)
    put(slave, queue, b"new")
    assert queue.recovered_end is None
    result = slave.get(queue, 9, 10, 1000)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 4)
    master.close()
    slave.close()


def test_a_master_still_knows_what_a_crash_took(tmp_path: Path) -> None:
    store = open_store(tmp_path / "master")
    queue = store.queue("orders", 0)
    put(store, queue, b"0")
    queue.recovered_end = 1
    store.set_slave(False)
    assert queue.recovered_end == 1
    store.close()


def test_a_slave_that_has_received_nothing_since_the_crash(tmp_path: Path) -> None:
    """The whole broker set lost its power. The elected broker lacks what consumers have received."""
    store = open_store(tmp_path / "master")
    queue = store.queue("orders", 0)
    put(store, queue, b"0")
    queue.recovered_end = 1
    store.set_slave(True)
    store.set_slave(False)
    assert queue.recovered_end == 1
    store.close()


def test_a_queue_that_lost_all_messages_and_has_received_others(tmp_path: Path) -> None:
    master, lost = open_store(tmp_path / "master"), open_store(tmp_path / "slave")
    put(lost, lost.queue("orders", 0), b"lost")
    crash(lost)
    shutil.rmtree(tmp_path / "slave" / "commitlog")
    shutil.rmtree(tmp_path / "slave" / "consumequeue")
    slave = open_slave(tmp_path / "slave")
    put(master, master.queue("orders", 0), b"0")
    follow(master, slave, lambda: 1000)
    assert slave.queue("orders", 0).recovered_end == 0
    slave.set_slave(False)
    assert slave.queue("orders", 0).recovered_end is None
    assert slave.queue("orders", 1).recovered_end is None
    master.close()
    slave.close()
