"""While a master is down, its slave delivers due messages through another broker. Any of them can be Java's."""

from __future__ import annotations

import re
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs import consume, mqadmin
from servers import Server, call, gantry_broker, gantry_namesrv, java_broker, java_namesrv
from test_pop import GROUP, ask_to_pop, popped, raw_ack, raw_pop

from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.receipt_handle import ReceiptHandle

pytestmark = pytest.mark.interop(feature="acting master", clients="java", servers="{brokers}")

#: NAMESERVER-MASTER-SLAVE. The broker of the other name is like the master. The first one is all Java, as the control.
SETS = {
    "java-java-java": (java_namesrv, java_broker, java_broker),
    "java-gantry-gantry": (java_namesrv, gantry_broker, gantry_broker),
    "gantry-java-java": (gantry_namesrv, java_broker, java_broker),
    "gantry-java-gantry": (gantry_namesrv, java_broker, gantry_broker),
    "gantry-gantry-java": (gantry_namesrv, gantry_broker, java_broker),
}
KEYS = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "slaveReadEnable": "true",
    "fastListenEnable": "true",
    "messageDelayLevel": "5s 20s",
    # A restarted Java master waits for its slaves by their address, so they must connect from this one.
    "brokerIP2": "127.0.0.1",
}


#: Sets in which a master takes over the progress of a slave of the other kind.
MIXED = ["gantry-java-gantry", "gantry-gantry-java"]


@dataclass
class Set:
    namesrv: Server
    master: Server
    slave: Server
    other: Server
    start_master: Callable[[], Server]


@pytest.fixture
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Set]:
    start_namesrv, start_kind, start_slave = SETS[request.param]
    servers: list[Server] = []
    try:
        namesrv = start_namesrv(tmp_path / "namesrv", supportActingMaster="true", notifyMinBrokerIdChanged="true")
        servers.append(namesrv)
        for name, start, keys in (
            ("other", start_kind, {"brokerName": "broker-b"}),
            ("master", start_kind, {"totalReplicas": 2}),
            ("slave", start_slave, {"brokerRole": "SLAVE", "brokerId": 1}),
        ):
            servers.append(start(tmp_path / name, namesrv.address, **KEYS, **keys))

        def start_master() -> Server:
            servers.append(start_kind(tmp_path / "master", namesrv.address, **KEYS, totalReplicas=2))
            return servers[-1]

        yield Set(namesrv, servers[2], servers[3], servers[1], start_master)
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
@pytest.mark.parametrize("brokers", [name for name in SETS if name != "gantry-gantry-java"], indirect=True)
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
    # The route names the slave as the master.
    assert slave.address.encode() in route(namesrv, topic)
    consumed = consume(namesrv.address, topic, 2, group="acting_consumers", timeout_s=120)
    assert sorted(b64decode(message["body"]) for message in consumed) == [b"delayed", b"timed"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("brokers", MIXED, indirect=True)
def test_a_master_that_comes_back_delivers_nothing_again(brokers: Set, topic: str) -> None:
    namesrv, slave = brokers.namesrv, brokers.slave
    mqadmin(namesrv.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "1", "-w", "1")
    wait_for(lambda: call(slave.address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic}).code == 0)
    send(brokers.master, topic, b"delayed", {"DELAY": "2"})
    wait_for(lambda: has_one(slave, "SCHEDULE_TOPIC_XXXX", "1"))
    brokers.master.kill()
    wait_for(lambda: has_one(brokers.other, topic, "0"))
    wait_for(lambda: delivered(slave) == 1)
    master = brokers.start_master()
    # The master has copied the progress of its slave before it registered.
    assert delivered(master) == 1
    wait_for(lambda: HaStatus.decode(call(master.address, RequestCode.GET_BROKER_HA_STATUS).body).connections)
    assert not has_one(master, topic, "0")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("brokers", MIXED, indirect=True)
def test_pops_at_a_slave(brokers: Set, topic: str, request: pytest.FixtureRequest) -> None:
    """Unacknowledged messages are redelivered, by the slave or by the restarted master.

    Java's slave stores its pops on a broker of another name, which our broker does not support, and rejects changes
    of the invisible duration. So the master redelivers all messages. Our slave lets another broker redeliver them at
    the right time.
    """
    is_ours = "gantry-java-gantry" in request.node.name
    namesrv, slave, other = brokers.namesrv, brokers.slave, brokers.other
    retry = f"%RETRY%{GROUP}_{topic}"
    for name in (topic, retry):
        mqadmin(namesrv.address, "updateTopic", "-c", "DefaultCluster", "-t", name, "-r", "1", "-w", "1")
    mqadmin(namesrv.address, "updateSubGroup", "-c", "DefaultCluster", "-g", GROUP)
    wait_for(lambda: call(slave.address, RequestCode.GET_TOPIC_CONFIG, {"topic": retry}).code == 0)
    wait_for(lambda: call(slave.address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP}).code == 0)
    bodies = [b"acked", b"left", b"changed", b"not yet", b"last"]
    for body in bodies:
        send(brokers.master, topic, body, {})
    wait_for(lambda: end_of_queue(slave, topic) == len(bodies))
    brokers.master.kill()
    wait_for(lambda: brokers.master.address.encode() not in route(namesrv, topic))
    wait_for(lambda: ask_to_pop(slave, retry, 10_000).code != ResponseCode.SERVICE_NOT_AVAILABLE)
    taken: dict[bytes, ReceiptHandle] = {}

    def take() -> bool:
        # Our broker rejects pops until it has detected that the master is down.
        got = raw_pop(slave, topic, 10_000, 3, may_be_refused=is_ours)
        taken.update((body, handle) for body, _, handle in got)
        return bool(taken)

    wait_for(take)
    assert list(taken) == bodies[:3]
    raw_ack(slave, topic, taken[b"acked"])
    assert (change(slave, topic, taken[b"changed"], 5_000) == ResponseCode.SUCCESS) == is_ours
    #: Bodies in the order of their redelivery.
    back: dict[bytes, None] = {}

    def came(broker: Server) -> set[bytes]:
        back.update((body, None) for body, _, _ in raw_pop(broker, topic, 60_000))
        return set(back)

    if is_ours:
        wait_for(lambda: came(slave) | came(other) >= {b"left", b"changed"})
        assert [body for body in back if body in taken] == [b"changed", b"left"]
    master = brokers.start_master()
    wait_for(lambda: came(master) >= set(bodies[1:]))
    came(other)
    # A restarted master copies the consumed position from our slave.
    assert set(back) - (set() if is_ours else {b"acked"}) == set(bodies[1:])


def change(broker: Server, topic: str, handle: ReceiptHandle, invisible_ms: int) -> int:
    """Changes the invisible duration of a popped message. Returns the response code."""
    fields = popped(topic, handle) | {"invisibleTime": str(invisible_ms)}
    return call(broker.address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields).code


def delivered(broker: Server) -> int:
    """Returns the number of delivered messages of the second delay level."""
    table = call(broker.address, RequestCode.GET_ALL_DELAY_OFFSET).body.decode()
    found = re.search(r'"?\b2"?:(\d+)', table.partition("offsetTable")[2].partition("}")[0])
    return int(found[1]) if found else 0


def has_one(broker: Server, topic: str, queue_id: str) -> bool:
    return end_of_queue(broker, topic, queue_id) == 1


def end_of_queue(broker: Server, topic: str, queue_id: str = "0") -> int:
    answer = call(broker.address, RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id})
    return int(answer.ext_fields.get("offset", 0))


def route(namesrv: Server, topic: str) -> bytes:
    return call(namesrv.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body
