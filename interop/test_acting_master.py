"""While a master is gone its slave has another broker deliver what comes due, whoever of them is Java's."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs import consume, mqadmin
from servers import Server, call, gantry_broker, gantry_namesrv, java_broker, java_namesrv

from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.properties import encode_properties

#: NAMESERVER-MASTER-SLAVE; the broker of another name is as the master. The first, all Java, is the control.
SETS = {
    "java-java-java": (java_namesrv, java_broker, java_broker),
    "java-gantry-gantry": (java_namesrv, gantry_broker, gantry_broker),
    "gantry-java-java": (gantry_namesrv, java_broker, java_broker),
    "gantry-java-gantry": (gantry_namesrv, java_broker, gantry_broker),
}
KEYS = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "slaveReadEnable": "true",
    "fastListenEnable": "true",
    "messageDelayLevel": "5s 20s",
}


@dataclass
class Set:
    namesrv: Server
    master: Server
    slave: Server
    other: Server


@pytest.fixture(params=SETS)
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Set]:
    start_namesrv, start_master, start_slave = SETS[request.param]
    servers: list[Server] = []
    try:
        namesrv = start_namesrv(tmp_path / "namesrv", supportActingMaster="true", notifyMinBrokerIdChanged="true")
        servers.append(namesrv)
        for name, start, keys in (
            ("other", start_master, {"brokerName": "broker-b"}),
            ("master", start_master, {}),
            ("slave", start_slave, {"brokerRole": "SLAVE", "brokerId": 1}),
        ):
            servers.append(start(tmp_path / name, namesrv.address, **KEYS, **keys))
        yield Set(namesrv, servers[2], servers[3], servers[1])
    finally:
        for server in reversed(servers):
            server.kill()


def wait_for(condition: Callable[[], object], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def send(broker: Server, topic: str, body: bytes, properties: dict[str, str]) -> None:
    fields = {
        "producerGroup": "producers",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(time.time_ns() // 1_000_000),
        "flag": "0",
        "properties": encode_properties(properties).decode(),
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    assert call(broker.address, RequestCode.SEND_MESSAGE, fields, body=body).code == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_due_comes_without_the_master(brokers: Set, topic: str) -> None:
    namesrv, master, slave = brokers.namesrv, brokers.master, brokers.slave
    mqadmin(namesrv.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "2", "-w", "2")
    fields = {"topic": topic}
    wait_for(lambda: call(slave.address, RequestCode.GET_TOPIC_CONFIG, fields).code == 0)
    send(master, topic, b"delayed", {"DELAY": "2"})
    send(master, topic, b"timed", {"TIMER_DELAY_SEC": "20"})
    wait_for(lambda: has_one(slave, "SCHEDULE_TOPIC_XXXX", "1") and has_one(slave, "rmq_sys_wheel_timer", "0"))
    master.kill()
    wait_for(lambda: master.address.encode() not in route(namesrv, topic))
    # What is shown as the master is the slave.
    assert slave.address.encode() in route(namesrv, topic)
    consumed = consume(namesrv.address, topic, 2, group="acting_consumers", timeout_s=120)
    assert sorted(b64decode(message["body"]) for message in consumed) == [b"delayed", b"timed"]


def has_one(broker: Server, topic: str, queue_id: str) -> bool:
    answer = call(broker.address, RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id})
    return answer.ext_fields.get("offset") == "1"


def route(namesrv: Server, topic: str) -> bytes:
    return call(namesrv.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body
