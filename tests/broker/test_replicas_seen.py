"""The view of replicas in `gantry topology` and `gantry doctor`.

It has roles, lag, the in-sync set, and problems.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bare_store import full_disk
from constants import change_constant
from controlled_support import ControlledBrokers
from replicated_brokers import Replicas
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.doctor.diagnosis import diagnose
from gantrymq.client.doctor.finding import Finding, Severity
from gantrymq.client.topology import Topology
from gantrymq.protocol.codes import ResponseCode


@pytest.fixture
async def replicas_manager(tmp_path: Path) -> AsyncIterator[ControlledBrokers]:
    async with ControlledBrokers(tmp_path, 2) as replicas_manager:
        yield replicas_manager


async def wrong(name_server: str) -> list[Finding]:
    return [finding for finding in await diagnose(name_server) if finding.severity is not Severity.OK]


async def test_topology_shows_who_is_in_sync(replicas_manager: ControlledBrokers) -> None:
    await replicas_manager.all_in_sync()
    async with AdminClient(replicas_manager.name_server.address) as admin:
        topology = Topology(admin)
        await until(lambda: len(replicas_manager.brokers) == 2)
        master, slave = await topology.look()
        assert (master.role, master.in_sync, master.lag_seconds) == ("master", True, None)
        assert (slave.role, slave.in_sync, slave.lag_bytes, slave.lag_seconds) == ("slave 2", True, 0, 0.0)
        assert master.epoch == slave.epoch
        assert master.controllers == [replicas_manager.controller.address]


async def test_doctor_says_that_all_have_all(replicas_manager: ControlledBrokers) -> None:
    await replicas_manager.all_in_sync()
    told = [finding.what for finding in await diagnose(replicas_manager.name_server.address)]
    assert any("broker broker-a: all 2 replicas have all; in sync, of epoch" in what for what in told), told


async def test_doctor_says_that_sends_are_refused(replicas_manager: ControlledBrokers) -> None:
    await replicas_manager.all_in_sync()
    await replicas_manager.stop(2)
    await until(lambda: replicas_manager.in_sync() == {1})
    findings = {finding.what: finding for finding in await wrong(replicas_manager.name_server.address)}
    finding = findings["1 of broker broker-a are in sync, and minInSyncReplicas is 2"]
    assert finding.severity is Severity.PROBLEM
    assert "in-sync replicas not enough" in finding.why


async def test_doctor_says_that_no_controller_answers(replicas_manager: ControlledBrokers) -> None:
    await replicas_manager.all_in_sync()
    address = replicas_manager.controller.address
    await replicas_manager.controller.stop()
    what = [finding.what for finding in await wrong(replicas_manager.name_server.address)]
    assert any(text.startswith(f"the controllers of broker broker-a ({address}) can't be asked") for text in what), what


async def test_doctor_says_that_a_slave_is_missing(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1) as replicas:
        replicas.master.config.replication.slave_timeout = 100
        # The slave is registered but follows no master.
        await replicas.slave.replication.stop()
        await until(lambda: not replicas.statuses())
        findings = {finding.what: finding.severity for finding in await wrong(replicas.name_server.address)}
        label = "broker broker-a (master)"
        assert findings[f"{label} has 1 registered slaves, of which 0 are connected with it"] is Severity.PROBLEM
        assert findings[f"{label} waits for 2 copies, and 0 slaves are connected"] is Severity.PROBLEM


async def test_why_a_slave_does_not_follow_is_shown(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1) as replicas:
        peer = await replicas.peer()
        assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
        replicas.master.config.replication.slave_timeout = 100
        with full_disk(replicas.slave.store):
            assert (await peer.send("orders", b"y")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            await until(lambda: replicas.slave.replication.status().client.refusal)
            async with AdminClient(replicas.name_server.address) as admin:
                master, slave = await Topology(admin).look()
            assert (master.refusal, slave.refusal) == (None, "the disk is too full")
            findings = {finding.what: finding.severity for finding in await wrong(replicas.name_server.address)}
            what = "broker broker-a (slave 1) doesn't follow its master: the disk is too full"
            assert findings[what] is Severity.PROBLEM, findings
        await until(lambda: replicas.slave.store.max_physical_offset == replicas.master.store.max_physical_offset)
        await until(lambda: not replicas.slave.replication.status().client.refusal)


async def test_doctor_says_that_a_slave_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Replicas(tmp_path, 1) as replicas:
        peer = await replicas.peer()
        assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
        assert not [finding for finding in await wrong(replicas.name_server.address) if "behind" in finding.what]
        (slave,) = replicas.master.replication.slaves()
        slave.acknowledged = 0
        change_constant(monkeypatch, "replication_checks.LATE_MS", 0)
        what = [finding.what for finding in await wrong(replicas.name_server.address)]
        assert any(text.startswith("the slave 1 of broker broker-a (master) is 0 s behind") for text in what), what
