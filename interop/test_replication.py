"""Slaves of one kind with masters of the other.

The tests cover logs, guarantees, tables, and consumption after the master is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from programs import Sent, consume, mqadmin, produce, sample
from servers import Server, call, gantry_broker, gantry_namesrv, java_broker

from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.bodies.topic_config import TopicConfigTable
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import decode_json

pytestmark = pytest.mark.interop(feature="replication", clients="java", servers="{pair}")

#: MASTER-SLAVE. The first one is all Java, as the control.
PAIRS = {
    "java-java": (java_broker, java_broker),
    "gantry-java": (gantry_broker, java_broker),
    "java-gantry": (java_broker, gantry_broker),
    "gantry-gantry": (gantry_broker, gantry_broker),
}
#: A Java slave requests the tables after ten seconds, and again a minute later.
TABLES_S = 90.0


@dataclass
class Pair:
    namesrv: Server
    master: Server
    slave: Server


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    start_master, start_slave = PAIRS[request.param]
    namesrv = gantry_namesrv(tmp_path / "namesrv")
    servers = [namesrv]
    try:
        # A Java slave requests topics at the master's VIP port.
        keys = {"inSyncReplicas": 2, "slaveTimeout": 10_000, "slaveReadEnable": "true", "fastListenEnable": "true"}
        master = start_master(tmp_path / "master", namesrv.address, brokerRole="SYNC_MASTER", **keys)
        servers.append(master)
        slave = start_slave(tmp_path / "slave", namesrv.address, brokerRole="SLAVE", brokerId=1, **keys)
        servers.append(slave)
        wait_for(lambda: status(master).in_sync_slave_nums == 1)
        yield Pair(namesrv, master, slave)
    finally:
        for server in reversed(servers):
            server.kill()


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def status(broker: Server) -> HaStatus:
    return HaStatus.decode(call(broker.address, RequestCode.GET_BROKER_HA_STATUS).body)


def log_hash(broker: Server, end: int) -> str:
    data = (broker.directory / "store" / "commitlog" / f"{0:020}").read_bytes()
    assert len(data) >= end
    return sha256(data[:end]).hexdigest()


def topics_of(broker: Server) -> dict[str, object]:
    body = call(broker.address, RequestCode.GET_ALL_TOPIC_CONFIG).body
    return dict(decode_json(body, TopicConfigTable).topic_config_table)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_slave_follows_and_serves(pair: Pair, topic: str) -> None:
    namesrv, master, slave = pair.namesrv, pair.master, pair.slave
    mqadmin(namesrv.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "3", "-w", "3")
    singles, batch = sample(50), sample(20, first=100)
    count = len(singles) + len(batch)
    results = produce(namesrv.address, topic, [message.line() for message in singles])
    results += produce(namesrv.address, topic, [message.line() for message in batch], mode="batch")
    assert {result["status"] for result in results} == {"SEND_OK"}
    # A SYNC_MASTER has acknowledged them, so the slave has them.
    end = status(master).connections[0].slave_ack_offset
    assert log_hash(slave, end) == log_hash(master, end)
    assert "InSyncSlaveNum" in mqadmin(namesrv.address, "haStatus", "-b", master.address)
    consumed = consume(namesrv.address, topic, count, group="replication_before")
    assert sorted(map(Sent.of, consumed)) == sorted(singles + batch)
    wait_for(lambda: topic in topics_of(slave), TABLES_S)
    assert topics_of(slave)[topic] == topics_of(master)[topic]
    offsets = {"consumerGroup": "replication_before", "topic": topic, "queueId": "0"}

    def offset_of(broker: Server) -> str | None:
        return call(broker.address, RequestCode.QUERY_CONSUMER_OFFSET, offsets).ext_fields.get("offset")

    wait_for(lambda: offset_of(slave) == offset_of(master), TABLES_S)
    master.kill()
    wait_for(lambda: master.address.encode() not in route(namesrv, topic))
    received = consume(namesrv.address, topic, count, group="replication_after")
    assert sorted(map(Sent.of, received)) == sorted(singles + batch)


def route(namesrv: Server, topic: str) -> bytes:
    return call(namesrv.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body
