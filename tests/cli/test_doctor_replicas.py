"""Tests of the doctor on replicas: hanging slaves, half-open links, deposed masters, masters without a NameServer."""

from __future__ import annotations

from typing import Any

import pytest
from cli_support import CLUSTER

from gantrymq.client.doctor.diagnosis import judge
from gantrymq.client.doctor.finding import Finding, Severity
from gantrymq.client.doctor.observation import BrokerSeen, NameServerSeen, Observation
from gantrymq.client.sync_state_sets import SyncStateSetSeen
from gantrymq.errors import RequestTimeout
from gantrymq.protocol.bodies.controller import ReplicaIdentity, ReplicasInfo
from gantrymq.protocol.bodies.ha_status import HaClientStatus, HaConnectionStatus, HaStatus
from gantrymq.protocol.bodies.route import BrokerData, ClusterInfo
from gantrymq.system import clock

NAME = "broker-a"
MASTER, SLAVE, OTHER = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
CONTROLLED = {
    "enableControllerMode": "true",
    "controllerAddr": "10.0.0.9:9878",
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "2",
}
HANGS = RequestTimeout("no response from 10.0.0.2:10911 in 3000 ms", SLAVE)


def sync_state(master: str = MASTER) -> SyncStateSetSeen:
    replicas = [ReplicaIdentity(NAME, number, address) for number, address in enumerate((MASTER, SLAVE, OTHER), 1)]
    info = ReplicasInfo(master_address=master, master_epoch=7, in_sync_replicas=replicas, not_in_sync_replicas=[])
    return SyncStateSetSeen(["10.0.0.9:9878"], "10.0.0.9:9878", info)


def master_seen(**fields: Any) -> BrokerSeen:
    links = [HaConnectionStatus(addr=f"{address}:50000", broker_id=n) for n, address in ((2, SLAVE), (3, OTHER))]
    values: dict[str, Any] = {
        "config": CONTROLLED | {"brokerRole": "SYNC_MASTER"},
        "ha_status": HaStatus(master=True, connections=links),
        "sync_state_set": sync_state(),
    }
    return BrokerSeen(CLUSTER, NAME, 0, MASTER, **(values | fields))


def slave_seen(address: str, broker_id: int, *, silent_s: float = 0.0, **fields: Any) -> BrokerSeen:
    read_ms = int((clock.time() - silent_s) * 1000)
    values: dict[str, Any] = {
        "config": CONTROLLED | {"brokerRole": "SLAVE"},
        "ha_status": HaStatus(
            client=HaClientStatus(master_addr=MASTER, last_read_timestamp=read_ms, is_activated=True)
        ),
        "sync_state_set": sync_state(),
    }
    return BrokerSeen(CLUSTER, NAME, broker_id, address, **(values | fields))


def problems(*brokers: BrokerSeen, unregistered: tuple[BrokerSeen, ...] = ()) -> list[Finding]:
    table = {broker.broker_id: broker.address for broker in brokers}
    info = ClusterInfo({NAME: BrokerData(CLUSTER, NAME, table)})
    seen = Observation(None, [NameServerSeen("10.0.0.8:9876", cluster=info)], list(brokers))
    seen.unregistered = list(unregistered)
    return [finding for finding in judge(seen) if finding.severity is Severity.PROBLEM]


def test_healthy_replicas() -> None:
    assert problems(master_seen(), slave_seen(SLAVE, 2), slave_seen(OTHER, 3)) == []


def test_a_hanging_slave_of_the_sync_state_set() -> None:
    hung = BrokerSeen(CLUSTER, NAME, 2, SLAVE, error=HANGS)
    (finding,) = problems(master_seen(), hung, slave_seen(OTHER, 3))
    assert finding.what == f"broker {NAME} (slave 2) at {SLAVE} does not respond, and sends wait for its copy"
    assert "haMaxTimeSlaveNotCatchup" in finding.remedy


def test_replicas_are_not_complete_while_one_does_not_respond() -> None:
    hung = BrokerSeen(CLUSTER, NAME, 2, SLAVE, error=HANGS)
    brokers = [master_seen(), hung, slave_seen(OTHER, 3)]
    table = {broker.broker_id: broker.address for broker in brokers}
    info = ClusterInfo({NAME: BrokerData(CLUSTER, NAME, table)})
    seen = Observation(None, [NameServerSeen("10.0.0.8:9876", cluster=info)], brokers)
    assert not any("replicas have all" in finding.what for finding in judge(seen))


@pytest.mark.parametrize(("copies", "waits"), [("2", False), ("3", True)])
def test_a_hanging_slave_without_a_controller(copies: str, waits: bool) -> None:
    config = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": copies}
    hung = BrokerSeen(CLUSTER, NAME, 2, SLAVE, error=HANGS)
    master = master_seen(config=config, sync_state_set=None)
    found = problems(master, hung, slave_seen(OTHER, 3, config={"brokerRole": "SLAVE"}, sync_state_set=None))
    assert [finding.what for finding in found if "sends wait" in finding.what] == [
        f"broker {NAME} (slave 2) at {SLAVE} does not respond, and sends wait for its copy"
    ] * waits


@pytest.mark.parametrize("clock_ahead_s", [0.0, 300.0, -300.0])
def test_a_half_open_link(clock_ahead_s: float) -> None:
    """The slave reports the time of its last read by its own clock."""
    cut = slave_seen(SLAVE, 2, silent_s=20 - clock_ahead_s, clock_ahead_s=clock_ahead_s)
    well = slave_seen(OTHER, 3, silent_s=4 - clock_ahead_s, clock_ahead_s=clock_ahead_s)
    (finding,) = problems(master_seen(), cut, well)
    assert finding.what.startswith(f"broker {NAME} (slave 2) has received nothing from broker {NAME} (master) for 20 s")
    assert "half-open" in finding.why


def test_a_deposed_master_that_no_name_server_has() -> None:
    """The old master has lost its links to the controllers and NameServers, but clients still reach it."""
    new = BrokerSeen(
        CLUSTER,
        NAME,
        0,
        SLAVE,
        config=CONTROLLED | {"brokerRole": "SYNC_MASTER"},
        ha_status=HaStatus(master=True, connections=[HaConnectionStatus(broker_id=3)]),
        sync_state_set=sync_state(SLAVE),
    )
    other = slave_seen(OTHER, 3, sync_state_set=sync_state(SLAVE))
    old = BrokerSeen(CLUSTER, NAME, 1, MASTER, config=CONTROLLED | {"brokerRole": "SYNC_MASTER"})
    (finding,) = problems(new, other, unregistered=(old,))
    assert finding.what == (f"broker {NAME} at {MASTER} acts as master, and its controllers name {SLAVE} (epoch 7)")


@pytest.mark.parametrize(("slave_reads", "text"), [("true", "can be read"), ("false", "can't be read either")])
def test_a_master_that_is_cut_off_from_the_name_servers(slave_reads: str, text: str) -> None:
    slaves = [
        slave_seen(address, number, config=CONTROLLED | {"brokerRole": "SLAVE", "slaveReadEnable": slave_reads})
        for number, address in ((2, SLAVE), (3, OTHER))
    ]
    found = problems(*slaves, unregistered=(_cut_off(),))
    (finding,) = [each for each in found if "NameServer" in each.what]
    assert finding.what == f"broker {NAME} has a master at {MASTER} that answers and is registered with no NameServer"
    assert text in finding.why


def _cut_off() -> BrokerSeen:
    return BrokerSeen(CLUSTER, NAME, 1, MASTER, config=CONTROLLED | {"brokerRole": "SYNC_MASTER"})


@pytest.mark.parametrize(("slave_reads", "text"), [("true", "can be read"), ("false", "can't be read either")])
def test_a_master_that_is_gone(slave_reads: str, text: str) -> None:
    slave = slave_seen(SLAVE, 2, config={"brokerRole": "SLAVE", "slaveReadEnable": slave_reads}, sync_state_set=None)
    (finding,) = problems(slave)
    assert finding.what == f"broker {NAME} has no master, only {SLAVE}"
    assert text in finding.why
