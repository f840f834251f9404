"""Links in controller mode: logs with epochs, which are truncated where they diverge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from struct import pack
from typing import Any

import pytest
from replication_support import LOG_FILE, Proxy, connection_of, log_hash, opened, put_many, queue_units
from wait_until import until

from gantrymq.errors import ReplicationError
from gantrymq.remoting.listener import ListenOptions
from gantrymq.replication.autoswitch_frames import Hello, encode_hello
from gantrymq.replication.autoswitch_link import AutoSwitchLink
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.replication.epochs import Epoch, Epochs
from gantrymq.replication.log_transfer import AutoSwitchLogTransfer
from gantrymq.replication.master import HaMaster
from gantrymq.replication.slave import HaSlave
from gantrymq.store.message_store import MessageStore


class Replica:
    """A store with epochs that can be master or slave."""

    def __init__(self, store: MessageStore, broker_id: int) -> None:
        self.store = store
        self.broker_id = broker_id
        #: Newer epochs that its slaves reported.
        self.newer_epochs: list[int] = []
        self.file = EpochFile(store.config.store_path_root_dir)
        self.file.load(store.max_physical_offset)

    @property
    def end(self) -> int:
        return self.store.max_physical_offset

    @property
    def epochs(self) -> Epochs:
        return self.file.epochs

    def begins(self, epoch: int) -> None:
        """Makes this replica master."""
        self.store.set_slave(False)
        self.file.begin(epoch, self.end)

    @asynccontextmanager
    async def as_master(self, **options: Any) -> AsyncIterator[HaMaster]:
        def log_transfer() -> AutoSwitchLogTransfer:
            return AutoSwitchLogTransfer(self.store, self.epochs, lambda: self.end, self.newer_epochs.append)

        master = HaMaster(
            self.store,
            ReplicationConfig(**options),
            ListenOptions("127.0.0.1"),
            log_transfer=log_transfer,
        )
        await master.start()
        try:
            yield master
        finally:
            await master.stop()

    @asynccontextmanager
    async def as_slave(self, port: int, **hello: Any) -> AsyncIterator[HaSlave]:
        self.store.set_slave(True)

        def link() -> AutoSwitchLink:
            return AutoSwitchLink(self.store, Hello(self.broker_id, **hello), self.file)

        slave = HaSlave(self.store, ReplicationConfig(), broker_id=self.broker_id, new_link=link)
        slave.set_master(f"127.0.0.1:{port}")
        await slave.start()
        try:
            yield slave
        finally:
            await slave.stop()


@asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[tuple[Replica, Replica]]:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b") as second:
        yield Replica(first, 1), Replica(second, 2)


def assert_equal(first: Replica, second: Replica) -> None:
    assert first.end == second.end
    assert log_hash(first.store) == log_hash(second.store)
    assert queue_units(first.store) == queue_units(second.store)
    assert first.epochs.all() == second.epochs.all()


async def test_epochs_come_with_the_log(tmp_path: Path) -> None:
    async with two(tmp_path) as (first, second):
        for epoch in (1, 2, 5):
            first.begins(epoch)
            put_many(first.store, 500, Random(epoch))
        async with first.as_master() as master, second.as_slave(master.port):
            await until(lambda: master.slaves.replicated(2) == first.end)
            put_many(first.store, 500, Random(9))
            await until(lambda: master.slaves.replicated(2) == first.end)
            assert_equal(first, second)
        file = EpochFile(second.store.config.store_path_root_dir)
        file.load(second.end)
        assert file.epochs.all() == first.epochs.all()


async def test_connection_cut_at_random(tmp_path: Path) -> None:
    chance = Random(3)
    # Frames are much smaller than the data between two cuts.
    few = {"ha_transfer_batch_size": 4096}
    async with two(tmp_path) as (first, second), first.as_master(**few) as master, Proxy(master.port) as proxy:
        proxy.cut_after = lambda: chance.randrange(60_000) if proxy.cuts < 50 else None
        first.begins(1)
        async with second.as_slave(proxy.port):
            while proxy.cuts < 50:
                put_many(first.store, 2000, chance)
                await until(lambda: second.end == first.end)
        assert_equal(first, second)


async def test_deposed_master_cuts_what_nobody_has(tmp_path: Path) -> None:
    async with two(tmp_path) as (first, second):
        first.begins(1)
        put_many(first.store, 1000, Random(1))
        async with first.as_master() as master, second.as_slave(master.port):
            await until(lambda: second.end == first.end)
        parted = first.end
        put_many(first.store, 500, Random(2), topic="lost")
        assert first.store.queue("lost", 0).max_offset
        second.begins(2)
        put_many(second.store, 800, Random(3))
        async with second.as_master() as master, first.as_slave(master.port):
            await until(lambda: first.end == second.end and first.epochs.last == Epoch(2, parted))
            assert log_hash(first.store) == log_hash(second.store)
            assert first.epochs.all() == second.epochs.all() == (Epoch(1, 0), Epoch(2, parted))
            lost = first.store.find_queue("lost", 0)
            assert lost is None or lost.max_offset == lost.min_offset


async def test_deposed_master_is_not_followed(tmp_path: Path) -> None:
    async with two(tmp_path) as (first, second):
        first.begins(1)
        put_many(first.store, 100, Random(1))
        async with first.as_master() as master, second.as_slave(master.port):
            await until(lambda: second.end == first.end)
        second.begins(2)
        put_many(second.store, 100, Random(2))
        before = second.end
        async with first.as_master() as master, second.as_slave(master.port) as slave:
            assert "another has become master" in await until(lambda: slave.refusal)
            assert second.end == before
            assert set(await until(lambda: first.newer_epochs)) == {2}


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_slave_that_leaves_says_for_which_epoch(tmp_path: Path, *, is_paused: bool) -> None:
    """A slave that leaves its master reports the newer epoch, even while data arrives.

    It does not reconnect until it gets the address of a master.
    """
    async with two(tmp_path) as (first, second):
        first.begins(1)
        put_many(first.store, 100, Random(1))
        async with first.as_master() as master, second.as_slave(master.port) as slave:
            await until(lambda: second.end == first.end)
            if is_paused:
                connection_of(slave).pause()
                put_many(first.store, 3000, Random(2), size=1000)
            slave.leave(7)
            assert await until(lambda: first.newer_epochs) == [7]
            await until(lambda: not master.slaves)
            put_many(first.store, 100, Random(3))
            assert slave.state is None
            slave.set_master(f"127.0.0.1:{master.port}")
            await until(lambda: second.end == first.end)
            assert first.newer_epochs == [7]


async def test_old_election_makes_no_master(tmp_path: Path) -> None:
    async with two(tmp_path) as (first, _):
        first.begins(3)
        for epoch in (2, 3):
            with pytest.raises(ReplicationError, match="has an epoch 3"):
                first.begins(epoch)
        assert first.epochs.all() == (Epoch(3, 0),)


async def test_log_from_before_controller_mode(tmp_path: Path) -> None:
    async with two(tmp_path) as (first, second):
        put_many(first.store, 300, Random(1))
        first.begins(1)
        put_many(first.store, 300, Random(2))
        async with first.as_master() as master, second.as_slave(master.port):
            await until(lambda: second.end == first.end)
            assert log_hash(first.store) == log_hash(second.store)


async def test_equal_logs_without_epochs_go_on_and_others_do_not(tmp_path: Path) -> None:
    async with two(tmp_path) as (first, second):
        put_many(first.store, 300, Random(1))
        put_many(second.store, 200, Random(2))
        first.begins(1)
        async with first.as_master() as master, second.as_slave(master.port) as slave:
            assert "aren't the same" in await until(lambda: slave.refusal)
        assert second.epochs.last is None


async def test_last_file_alone(tmp_path: Path) -> None:
    async with two(tmp_path) as (first, second):
        first.begins(1)
        put_many(first.store, 6000, Random(1), size=1000)
        begin = first.end // LOG_FILE * LOG_FILE
        async with first.as_master() as master, second.as_slave(master.port, sync_from_last_file=True):
            await until(lambda: second.end == first.end)
        assert second.store.min_physical_offset == begin > 0
        assert log_hash(first.store, begin) == log_hash(second.store, begin)


@pytest.mark.parametrize("last_file", [False, True])
@pytest.mark.parametrize("same_epoch", [True, False])
async def test_slave_whose_end_the_master_has_deleted_begins_anew(
    tmp_path: Path, *, last_file: bool, same_epoch: bool
) -> None:
    async with two(tmp_path) as (first, second):
        first.begins(1)
        put_many(first.store, 200, Random(1))
        async with first.as_master() as master, second.as_slave(master.port):
            await until(lambda: second.end == first.end)
        # The master has deleted the data that it had then.
        first.store.set_slave(True)
        first.store.replica.begin_anew(3 * LOG_FILE)
        first.store.set_slave(False)
        if not same_epoch:
            first.begins(3)
        first.epochs.forget_before(3 * LOG_FILE)
        put_many(first.store, 6000, Random(2), size=1000)
        begin = first.end // LOG_FILE * LOG_FILE if last_file else first.store.min_physical_offset
        async with first.as_master() as master, second.as_slave(master.port, sync_from_last_file=last_file):
            await until(lambda: second.end == first.end)
        assert second.store.min_physical_offset == begin > 0
        assert log_hash(first.store, begin) == log_hash(second.store, begin)
        assert second.epochs.all() == first.epochs.all()


async def test_nobody_waits_for_a_learner(tmp_path: Path) -> None:
    async with two(tmp_path) as (first, second):
        first.begins(1)
        put_many(first.store, 100, Random(1))
        async with first.as_master() as master, second.as_slave(master.port, is_async_learner=True):
            await until(lambda: second.end == first.end)
            assert len(master.slaves) == 1
            assert master.slaves.replicated(2) == 0
            assert master.slaves.in_sync_count(first.end) == 1


@pytest.mark.parametrize(
    "data",
    [
        pack(">iq", 2, 0),
        pack(">iq", 7, 0) * 2,
        encode_hello(Hello(1)) + pack(">iq", 2, 1 << 40),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["no hello", "state", "beyond the end", "http"],
)
async def test_rubbish_ends_its_connection(tmp_path: Path, data: bytes) -> None:
    async with two(tmp_path) as (first, _):
        first.begins(1)
        async with first.as_master() as master:
            reader, writer = await asyncio.open_connection("127.0.0.1", master.port)
            writer.write(data)
            await asyncio.wait_for(reader.read(), 10)
            assert not master.slaves
            writer.close()


async def test_master_that_wrote_nothing_goes_on_as_a_slave(tmp_path: Path) -> None:
    """A master that wrote nothing in its epoch can become a slave without losing data.

    Its epoch begins at the end of its log, and the other one's earlier epoch continues there.
    """
    async with two(tmp_path) as (first, second):
        first.begins(1)
        put_many(first.store, 100, Random(1))
        async with first.as_master() as master, second.as_slave(master.port):
            await until(lambda: second.end == first.end)
        put_many(first.store, 100, Random(2))
        second.begins(2)
        first.begins(3)
        put_many(first.store, 100, Random(3))
        async with first.as_master() as master, second.as_slave(master.port):
            await until(lambda: second.end == first.end)
            assert_equal(first, second)
