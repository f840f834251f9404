"""POP: Apache's push consumer in pop mode, and a store with in-flight pops that moves to the other broker."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ONE_KIND, Cluster
from programs import PROGRAM_TIMEOUT_S, command_line, consume, mqadmin, produce
from servers import Server, call, gantry_broker, gantry_namesrv, java_broker

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.receipt_handle import ReceiptHandle, parse_offset_info

pytestmark = pytest.mark.interop(feature="POP", clients="java", servers="{cluster}")

GROUP = "poppers"
ORDERS = {"gantry-java": (gantry_broker, java_broker), "java-gantry": (java_broker, gantry_broker)}


def line(body: str, tags: str = "") -> str:
    return json.dumps({"body": base64.b64encode(body.encode()).decode(), "flag": 0, "tags": tags})


def body_of(delivery: dict[str, Any]) -> str:
    return base64.b64decode(delivery["body"]).decode()


def start_popping(namesrv: str, topic: str, group: str, count: int, home: Path, *more: str) -> subprocess.Popen[str]:
    options = ["-XX:TieredStopAtLevel=1", "-Xmx256m"]
    arguments = (namesrv, group, topic, str(count), str(int(PROGRAM_TIMEOUT_S) - 20), *more)
    command = command_line("org.gantrymq.interop.PopConsume", *arguments, home=home, options=options)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pop(namesrv: str, topic: str, group: str, count: int, home: Path, *more: str) -> list[dict[str, Any]]:
    """Returns `count` deliveries to Apache's consumer in pop mode."""
    process = start_popping(namesrv, topic, group, count, home, *more)
    try:
        output, errors = process.communicate(timeout=PROGRAM_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert process.returncode == 0, f"{len(lines)} of {count} deliveries: {errors[-4000:]}"
    return lines


def set_up(namesrv: str, topic: str, group: str, *more: str) -> None:
    """Creates a topic and a group in pop mode."""
    mqadmin(namesrv, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "4", "-w", "4")
    mqadmin(namesrv, "updateSubGroup", "-c", "DefaultCluster", "-g", group, *more)
    answer = mqadmin(
        namesrv, "setConsumeMode", "-c", "DefaultCluster", "-t", topic, "-g", group, "-m", "POP", "-q", "8"
    )
    assert "success" in answer, answer


@ONE_KIND
@pytest.mark.timeout(240)
def test_pop_mode_consumes_and_retries(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    group = f"{GROUP}_{topic}"
    set_up(cluster.address, topic, group)
    produce(cluster.address, topic, [line(f"{i}", "refuse" if i % 10 == 0 else "") for i in range(50)])

    deliveries = pop(cluster.address, topic, group, 55, tmp_path)

    assert sorted(map(body_of, deliveries)) == sorted([*map(str, range(50)), *map(str, range(0, 50, 10))])
    again = [delivery for delivery in deliveries if delivery["reconsume_times"] == 1]
    assert sorted(map(body_of, again)) == ["0", "10", "20", "30", "40"]
    assert {delivery["topic"] for delivery in deliveries} == {topic}


@ONE_KIND
@pytest.mark.timeout(240)
def test_an_orderly_listener_pulls_though_its_group_pops(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Apache's client has no orderly pop (`RebalancePushImpl.clientRebalance`). It locks the queues and pulls."""
    group = f"{GROUP}_{topic}"
    set_up(cluster.address, topic, group)
    produce(cluster.address, topic, [line(f"{i}") for i in range(40)])

    deliveries = pop(cluster.address, topic, group, 40, tmp_path, "orderly")

    places = [(delivery["queue_id"], delivery["queue_offset"]) for delivery in deliveries]
    assert len(set(places)) == 40
    for queue_id in range(4):
        offsets = [offset for id_, offset in places if id_ == queue_id]
        assert offsets == sorted(offsets)


@pytest.mark.interop(feature="retries and dead letters")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("cluster", ["gantry-gantry"], indirect=True)
def test_poison_becomes_a_dead_letter(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    group = f"{GROUP}_{topic}"
    set_up(cluster.address, topic, group, "-r", "0")
    produce(cluster.address, topic, [line("good"), line("bad", "poison")])

    deliveries = pop(cluster.address, topic, group, 2, tmp_path)

    assert sorted(map(body_of, deliveries)) == ["bad", "good"]
    deadline = time.monotonic() + 30
    while f"%DLQ%{group}" not in mqadmin(cluster.address, "topicList") and time.monotonic() < deadline:
        pass
    (letter,) = consume(cluster.address, f"%DLQ%{group}", 1, group="undertakers")
    assert body_of(letter) == "bad"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("cluster", ["gantry-gantry"], indirect=True)
def test_nothing_is_lost_with_a_killed_consumer(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    group = f"{GROUP}_{topic}"
    set_up(cluster.address, topic, group)
    produce(cluster.address, topic, [line(f"{i}", "hang" if i % 20 == 7 else "") for i in range(200)])
    victim = start_popping(cluster.address, topic, group, 10_000, tmp_path)
    seen = set()
    try:
        assert victim.stdout is not None
        for text in victim.stdout:
            if text.startswith("{"):
                seen.add(body_of(json.loads(text)))
            if len(seen) >= 100:
                break
    finally:
        victim.kill()
        victim.wait()
    # These messages, and those whose handler hung (`late`), must still be delivered.
    missing = {str(i) for i in range(200)} - seen
    assert len(missing) <= 100

    late = {str(i) for i in range(200) if i % 20 == 7}
    survivor = start_popping(cluster.address, topic, group, 10_000, tmp_path)
    got = set()
    deadline = time.monotonic() + 60
    try:
        assert survivor.stdout is not None
        for text in survivor.stdout:
            if text.startswith("{"):
                got.add(body_of(json.loads(text)))
            if got >= missing | late or time.monotonic() > deadline:
                break
    finally:
        survivor.kill()
        survivor.wait()
    assert got >= missing | late


def ask_to_pop(broker: Server, topic: str, invisible_ms: int, count: int = 32) -> RemotingCommand:
    """Returns the response to one pop."""
    fields = {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": "-1",
        "maxMsgNums": str(count),
        "invisibleTime": str(invisible_ms),
        "pollTime": "0",
        "bornTime": str(time.time_ns() // 1_000_000),
        "initMode": "0",
        "order": "false",
    }
    return call(broker.address, RequestCode.POP_MESSAGE, fields)


def raw_pop(
    broker: Server, topic: str, invisible_ms: int, count: int = 32, *, may_be_refused: bool = False
) -> list[tuple[bytes, int, ReceiptHandle]]:
    """Returns (body, previous attempts, handle) of the messages of one pop."""
    answer = ask_to_pop(broker, topic, invisible_ms, count)
    if may_be_refused and answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
        return []
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT), answer.remark
    starts = parse_offset_info(answer.ext_fields.get("startOffsetInfo"))
    found = []
    for message in decode_messages(answer.body):
        text = message.properties.get("POP_CK") or " ".join(
            [
                starts["0", str(message.queue_id)],
                *(answer.ext_fields[name] for name in ("popTime", "invisibleTime", "reviveQid")),
                f"0 broker-a {message.queue_id} {message.queue_offset}",
            ]
        )
        found.append((message.body, message.reconsume_times, ReceiptHandle.parse(text)))
    return found


def raw_ack(broker: Server, topic: str, handle: ReceiptHandle) -> None:
    assert call(broker.address, RequestCode.ACK_MESSAGE, popped(topic, handle)).code == ResponseCode.SUCCESS


def popped(topic: str, handle: ReceiptHandle) -> dict[str, str]:
    """Returns the header fields that identify a popped message."""
    return {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": str(handle.queue_id),
        "extraInfo": str(handle),
        "offset": str(handle.queue_offset),
    }


@pytest.mark.interop(servers="{order}")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("order", ORDERS)
def test_pops_in_flight_change_hands(order: str, tmp_path: Path, topic: str) -> None:
    """A broker accepts acknowledgements for the other one's pops, and redelivers the rest."""
    store = tmp_path / "store"
    first, second = ORDERS[order]
    keys = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
    namesrv = gantry_namesrv(tmp_path / "namesrv")
    try:
        broker = first(tmp_path / "first", namesrv.address, **keys)
        try:
            mqadmin(namesrv.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "1", "-w", "1")
            mqadmin(namesrv.address, "updateSubGroup", "-c", "DefaultCluster", "-g", GROUP)
            produce(namesrv.address, topic, [line(f"{i}") for i in range(9)])
            taken = {body: handle for body, _, handle in raw_pop(broker, topic, 40_000)}
            assert len(taken) == 9
            for body in (b"0", b"1", b"2"):
                raw_ack(broker, topic, taken[body])
        finally:
            broker.stop()
        broker = second(tmp_path / "second", namesrv.address, **keys)
        try:
            assert raw_pop(broker, topic, 40_000) == []
            for body in (b"3", b"4", b"5"):
                raw_ack(broker, topic, taken[body])
            back: list[tuple[bytes, int]] = []
            deadline = time.monotonic() + 100
            while len(back) < 3 and time.monotonic() < deadline:
                back += [(body, attempts) for body, attempts, _ in raw_pop(broker, topic, 60_000)]
                time.sleep(0.2)
            assert sorted(back) == [(b"6", 1), (b"7", 1), (b"8", 1)]
            assert raw_pop(broker, topic, 60_000) == []
        finally:
            broker.kill()
    finally:
        namesrv.kill()
