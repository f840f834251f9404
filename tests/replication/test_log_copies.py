"""A slave gets an exact copy of the log, whatever the network does."""

from __future__ import annotations

from pathlib import Path
from random import Random
from time import monotonic

import pytest
from replication_support import (
    LOG_FILE,
    Proxy,
    connection_of,
    log_hash,
    master_of,
    opened,
    put_many,
    queue_units,
    slave_of,
)
from wait_until import until

from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.replication.link import LinkState
from gantrymq.replication.slave import HaSlave


async def test_what_is_there_and_what_comes_later(tmp_path: Path) -> None:
    chance = Random(1)
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 100, chance)
        async with master_of(first) as master, slave_of(second, master.port) as slave:
            await until(lambda: second.max_physical_offset == first.max_physical_offset)
            put_many(first, 100, chance)
            master.log_grew()
            end = first.max_physical_offset
            await until(lambda: second.max_physical_offset == end)
            await until(lambda: master.slaves.replicated(2) == end)
            assert slave.state is LinkState.FOLLOWING
            assert master.slaves.replicated(3) == 0
            assert log_hash(first) == log_hash(second)
            assert queue_units(first) == queue_units(second)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("count", "cuts"), [(50_000, 100), pytest.param(1_000_000, 100, marks=pytest.mark.slow)], ids=["50k", "1m"]
)
async def test_connection_cut_at_random(tmp_path: Path, count: int, cuts: int) -> None:
    chance = Random(2)
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        # Frames are much smaller than the data between two cuts.
        async with master_of(first, ha_transfer_batch_size=4096) as master, Proxy(master.port) as proxy:
            # Each link begins with an overlap of 4 KiB that the slave already has.
            piece = count * 250 // cuts
            proxy.cut_after = lambda: chance.randrange(2 * piece) if proxy.cuts < cuts else None
            async with slave_of(second, proxy.port) as slave:
                for _ in range(20):
                    put_many(first, count // 20, chance)
                    await until(lambda: second.max_physical_offset > first.max_physical_offset - 100_000, 60)
                await until(lambda: second.max_physical_offset == first.max_physical_offset)
                while proxy.cuts < cuts:
                    put_many(first, 1000, chance)
                    await until(lambda: second.max_physical_offset == first.max_physical_offset)
                assert slave.refusal is None
        assert log_hash(first) == log_hash(second)
        assert queue_units(first) == queue_units(second)


@pytest.mark.parametrize("job", ["connecting", "putting"])
async def test_a_job_that_fails_is_tried_again_before_senders_give_up(
    tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"connecting": "_connect", "putting": "_put"}[job]
    work, fails = getattr(HaSlave, name), False

    def fails_once(slave: HaSlave) -> object:
        nonlocal fails
        if fails:
            fails = False
            raise RuntimeError("planted")
        return work(slave)

    monkeypatch.setattr(HaSlave, name, fails_once)
    async with (
        opened(tmp_path / "a") as first,
        opened(tmp_path / "b", is_slave=True) as second,
        master_of(first) as master,
        slave_of(second, master.port) as slave,
    ):
        put_many(first, 10, Random(2))
        await until(lambda: slave.state is LinkState.FOLLOWING)
        repeating = getattr(slave, f"_{job}")
        fails = True
        connection = connection_of(slave)
        # The state after a time slice that was too short for all received data, or after a lost connection.
        if job == "putting":
            connection.pause()
            repeating.wake()
        else:
            connection.abort()
        await until(lambda: repeating.report.failures == 1)
        put_many(first, 100, Random(1))
        # A retry after ten seconds would be too late.
        await until(lambda: second.max_physical_offset == first.max_physical_offset, 8)
        assert log_hash(first) == log_hash(second)


async def test_slave_that_is_too_far_behind_begins_anew(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b") as second:
        first.set_slave(True)
        first.replica.begin_at(3 * LOG_FILE)
        first.set_slave(False)
        put_many(first, 100, Random(1))
        put_many(second, 100, Random(2))
        second.set_slave(True)
        async with master_of(first) as master, slave_of(second, master.port):
            await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
        assert second.min_physical_offset == 3 * LOG_FILE
        assert log_hash(first, 3 * LOG_FILE) == log_hash(second, 3 * LOG_FILE)
        assert queue_units(first) == queue_units(second)


async def test_empty_slave_takes_the_last_file_if_told_so(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 6000, Random(1), size=1000)
        begin = first.max_physical_offset // LOG_FILE * LOG_FILE
        assert begin > LOG_FILE
        async with master_of(first) as master, slave_of(second, master.port, sync_from_last_file=True):
            await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
        assert second.min_physical_offset == begin
        assert log_hash(first, begin) == log_hash(second, begin)


async def test_network_that_damages_delays_and_splits(tmp_path: Path) -> None:
    """Any byte can be damaged. Each frame has a checksum."""
    chance = Random(5)
    damaged = 0

    def spoil(data: bytes) -> bytes:
        nonlocal damaged
        if damaged == 30 or chance.random() > 0.05:
            return data
        damaged += 1
        place = chance.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]

    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        async with master_of(first) as master, Proxy(master.port) as proxy:
            proxy.most = 7001
            proxy.pause = lambda: chance.random() * 0.002
            proxy.spoil = spoil
            async with slave_of(second, proxy.port):
                while damaged < 30:
                    put_many(first, 2000, chance)
                    await until(lambda: second.max_physical_offset == first.max_physical_offset)
                put_many(first, 2000, chance)
                await until(lambda: second.max_physical_offset == first.max_physical_offset)
        assert log_hash(first) == log_hash(second)
        assert queue_units(first) == queue_units(second)


async def test_slave_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    chance = Random(6)
    async with opened(tmp_path / "a") as first, master_of(first) as master:
        for _ in range(3):
            put_many(first, 2000, chance)
            async with opened(tmp_path / "b", is_slave=True) as second, slave_of(second, master.port):
                await until(lambda: second.max_physical_offset == first.max_physical_offset)
                assert log_hash(first) == log_hash(second)
                assert queue_units(first) == queue_units(second)


async def test_sync_flush_reports_what_is_on_the_disk(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, master_of(first) as master:
        options = {"is_slave": True, "flush_disk_type": "SYNC_FLUSH", "flush_interval_commit_log_ms": 60_000}
        async with opened(tmp_path / "b", **options) as second, slave_of(second, master.port):
            for _ in range(5):
                put_many(first, 100, Random(1))
                master.log_grew()
                await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
                assert second.flushed_offset == second.max_physical_offset


async def test_a_disk_that_fails_is_asked_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the data is flushed, the slave acknowledges nothing.

    Without a pause, it would check 40,000 times a second.
    """
    options = {"is_slave": True, "flush_disk_type": "SYNC_FLUSH", "flush_interval_commit_log_ms": 60_000}
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", **options) as second:
        put_many(first, 100, Random(1))
        end = first.max_physical_offset
        asked = []

        def fail() -> None:
            asked.append(monotonic())
            raise OSError("the disk fails")

        monkeypatch.setattr(second._log, "flush", fail)
        async with master_of(first) as master, slave_of(second, master.port, ha_send_heartbeat_interval=100):
            await until(lambda: len(asked) > 5)
            # One check every 25 ms.
            assert asked[5] - asked[0] > 0.09
            assert second.max_physical_offset == end
            assert master.slaves.replicated(2) < end
            monkeypatch.undo()
            await until(lambda: master.slaves.replicated(2) == end)


async def test_two_slaves_and_the_flow(tmp_path: Path) -> None:
    """The master sends half a second's data at the limited rate. The slaves do not delay each other."""
    limit = {"ha_flow_control_enable": True, "max_ha_transfer_byte_in_second": 1_000_000}
    async with opened(tmp_path / "a") as first, master_of(first, **limit) as master:
        put_many(first, 2000, Random(1), size=400)
        size = first.max_physical_offset
        began = monotonic()
        async with (
            opened(tmp_path / "b", is_slave=True) as second,
            opened(tmp_path / "c", is_slave=True) as third,
            slave_of(second, master.port, broker_id=1),
            slave_of(third, master.port, broker_id=2),
        ):
            await until(lambda: master.slaves.replicated(3) == size)
        assert size > 400_000
        assert monotonic() - began > size / 1_000_000 - 0.15


async def test_same_slave_on_two_connections_counts_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, master_of(first) as master, Proxy(master.port) as proxy:
        put_many(first, 100, Random(1))
        async with opened(tmp_path / "b", is_slave=True) as second, slave_of(second, proxy.port):
            await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
            async with opened(tmp_path / "c", is_slave=True) as third, slave_of(third, master.port):
                await until(lambda: third.max_physical_offset == first.max_physical_offset)
                assert len(master.slaves) == 1
                assert master.slaves.replicated(3) == 0


async def test_figures(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 100, Random(1))
        async with master_of(first) as master, slave_of(second, master.port) as slave:
            end = first.max_physical_offset
            await until(lambda: master.slaves.replicated(2) == end)
            status = HaStatus.decode(master.status().encode())
            assert (status.master, status.master_commit_log_max_offset, status.in_sync_slave_nums) == (True, end, 1)
            (connection,) = status.connections
            assert (connection.slave_ack_offset, connection.diff, connection.transfer_from_where) == (end, 0, end)
            assert connection.addr.startswith("127.0.0.1:")
            client = HaStatus.decode(slave.status().encode()).client
            assert (client.max_offset, client.is_activated) == (end, True)
            assert client.master_addr == f"127.0.0.1:{master.port}"
            assert client.last_read_timestamp > 1_700_000_000_000


async def test_master_goes_and_another_comes(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 100, Random(1))
        async with master_of(first) as master, slave_of(second, master.port) as slave:
            await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
            slave.set_master(None)
            await until(lambda: not master.slaves)
            assert slave.state is None
            put_many(first, 100, Random(1))
            async with master_of(first) as other:
                slave.set_master(f"127.0.0.1:{other.port}")
                await until(lambda: other.slaves.replicated(2) == first.max_physical_offset)


async def test_master_changes_while_the_slave_connects(tmp_path: Path) -> None:
    """The slave ignores data of the former master."""
    async with opened(tmp_path / "a") as first, opened(tmp_path / "x") as stranger:
        put_many(first, 100, Random(1))
        put_many(stranger, 100, Random(2))
        async with (
            master_of(first) as master,
            master_of(stranger) as former,
            opened(tmp_path / "b", is_slave=True) as second,
            slave_of(second, former.port) as slave,
        ):
            # The event loop has not run since the slave started to connect.
            slave.set_master(f"127.0.0.1:{master.port}")
            await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
            assert log_hash(first) == log_hash(second)
            slave.set_master(f"127.0.0.1:{former.port}")
            slave.set_master(None)
            await until(lambda: not master.slaves)
            assert slave.state is None
            assert not former.slaves
