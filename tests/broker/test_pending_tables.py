"""A slave applies a table of its master when its log has reached the position of that table."""

from __future__ import annotations

import asyncio
from pathlib import Path

from administration import commit
from paused_slaves import pause_slave, resume_slave
from replicated_brokers import Replicas, copy_tables
from wait_until import until

from gantrymq.broker.config import BrokerRole
from gantrymq.broker.slave.metadata_sync import MetadataSync
from gantrymq.broker.slave.pending_tables import PendingTables


def nothing() -> None:
    """Applies a table without content."""


def held(*names: str) -> PendingTables:
    tables = PendingTables()
    for name in names:
        tables.hold(name, 100, lambda: None)
    return tables


def test_only_those_that_the_log_has_reached() -> None:
    tables = PendingTables()
    tables.hold("early", 100, nothing)
    tables.hold("late", 101, nothing)
    tables.hold("early", 50, lambda: None)
    assert list(tables.reached(99)) == []
    assert list(tables.reached(100)) == [("early", nothing)]
    assert len(tables) == 2
    tables.taken("early", nothing)
    assert [name for name, _ in tables.reached(200)] == ["late"]


def test_two_at_once() -> None:
    tables = held("offsets", "delays", "checkpoint")
    first, second = tables.reached(100), tables.reached(100)
    for name, take in first:
        tables.taken(name, take)
        for other, take_other in second:
            tables.taken(other, take_other)
    assert not len(tables)


def test_a_table_that_was_replaced_is_not_taken() -> None:
    tables = held("offsets", "delays")
    found = tables.reached(100)
    name, take = next(found)
    tables.clear()
    tables.hold("offsets", 200, nothing)
    tables.hold("delays", 200, nothing)
    tables.taken(name, take)
    assert list(found) == []
    assert [name for name, _ in tables.reached(200)] == ["offsets", "delays"]


async def test_role_changes_while_tables_are_taken(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1, role=BrokerRole.ASYNC_MASTER) as replicas:
        part = next(part for part in replicas.slave.features.all if isinstance(part, MetadataSync))
        await until(lambda: part.copied_from is not None)
        peer = await replicas.peer()
        await peer.send("orders", b"x")
        await replicas.caught_up()
        pause_slave(replicas.slave)
        await peer.send("orders", b"y")
        await commit(peer, 2, group="consumers")
        # A thread writes the timer's checkpoint, and it is the first table to be copied.
        await copy_tables(replicas.slave)
        assert replicas.slave.offsets.query("consumers", "orders", 0) is None
        replicas.slave.jobs.find("take the master's tables when the log has come as far").cancel()
        resume_slave(replicas.slave)
        await replicas.caught_up()
        await asyncio.gather(part.stand_in(), part.stand_in())
        assert replicas.slave.offsets.query("consumers", "orders", 0) == 2
        assert not any(broker.jobs.failing() for broker in replicas.brokers.values())
