"""Messages with a delivery time, and stores with pending timed messages that move to the other broker."""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
import time
from pathlib import Path
from struct import unpack, unpack_from
from typing import Any

import pytest
from conftest import ONE_KIND, Cluster
from programs import PROGRAM_TIMEOUT_S, command_line, consume, mqadmin
from servers import Server, call, gantry_broker, gantry_namesrv, java_broker
from wait_until import wait_until

from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import decode_json

pytestmark = pytest.mark.interop(feature="delayed messages", clients="java", servers="{cluster}")

#: Properties that brokers add to a timed message.
TIMER_PROPERTIES = {
    "TIMER_DELIVER_MS",
    "TIMER_OUT_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "REAL_TOPIC",
    "REAL_QID",
}
ORDERS = {"java-gantry": (java_broker, gantry_broker), "gantry-java": (gantry_broker, java_broker)}


def send_timed(namesrv: str, topic: str, inputs: list[dict[str, object]]) -> list[dict[str, Any]]:
    """Sends by Apache's producer. Returns a line for each message."""
    lines = [json.dumps(fields | {"body": encoded(str(fields["body"]))}) for fields in inputs]
    with tempfile.TemporaryDirectory() as home:
        result = subprocess.run(
            command_line("org.gantrymq.interop.SendTimed", namesrv, topic, home=Path(home)),
            input="\n".join(lines),
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIMEOUT_S,
        )
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def body(line: dict[str, Any]) -> str:
    return base64.b64decode(line["body"]).decode()


def create(cluster: Cluster, topic: str) -> None:
    mqadmin(cluster.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "1", "-w", "1")


@pytest.mark.timeout(200)
@ONE_KIND
def test_timer_messages_come_on_time(cluster: Cluster, topic: str) -> None:
    create(cluster, topic)
    deliver_ms = int(time.time() * 1000) + 6000
    results = send_timed(
        cluster.address,
        topic,
        [
            {"body": "at", "deliver_ms": deliver_ms},
            {"body": "in 7 s", "delay_s": 7},
            {"body": "in 5500 ms", "delay_ms": 5500},
            {"body": "late", "deliver_ms": 1000},
            {"body": "too far", "delay_s": 4 * 24 * 3600},
        ],
    )
    assert [result.get("status") for result in results] == ["SEND_OK"] * 4 + [None]
    assert "CODE: 13" in results[4]["error"]
    assert (
        "timer message illegal, the delay time should not be bigger than the max delay 259200000ms"
        in (results[4]["error"])
    )
    assert [bool(result.get("recall_handle")) for result in results] == [True, True, True, False, False]
    version, handle_topic, broker, timestamp, key = (
        base64.urlsafe_b64decode(results[0]["recall_handle"]).decode().split(" ")
    )
    assert (version, handle_topic, broker, key) == ("v1", topic, "broker-a", results[0]["msg_id"])
    assert int(timestamp) == (deliver_ms - 1) // 1000 * 1000 + 1
    received = {body(line): line for line in consume(cluster.address, topic, 4)}
    assert received.keys() == {"at", "in 7 s", "in 5500 ms", "late"}
    assert not TIMER_PROPERTIES - {"TIMER_DELIVER_MS"} & received["late"]["properties"].keys()
    at = received["at"]
    assert at["properties"].keys() >= TIMER_PROPERTIES
    assert (at["properties"]["REAL_TOPIC"], at["properties"]["REAL_QID"]) == (topic, "0")
    assert int(at["properties"]["TIMER_OUT_MS"]) == int(timestamp) - 1
    assert deliver_ms <= at["store_timestamp"] < deliver_ms + 3000
    for name, delay_ms in (("in 7 s", 7000), ("in 5500 ms", 5500)):
        line = received[name]
        assert delay_ms <= line["store_timestamp"] - line["born_timestamp"] < delay_ms + 3000


@pytest.mark.timeout(200)
@ONE_KIND
def test_recall(cluster: Cluster, topic: str) -> None:
    create(cluster, topic)
    mqadmin(cluster.address, "updateBrokerConfig", "-c", "DefaultCluster", "-k", "recallMessageEnable", "-v", "true")
    deliver_ms = int(time.time() * 1000) + 7000
    results = send_timed(
        cluster.address,
        topic,
        [
            {"body": "kept", "deliver_ms": deliver_ms},
            {"body": "recalled", "deliver_ms": deliver_ms, "recall": True},
            {"body": "the last", "deliver_ms": deliver_ms + 2000},
        ],
    )
    assert results[1]["recalled"] == results[1]["msg_id"]
    assert [body(line) for line in consume(cluster.address, topic, 2)] == ["kept", "the last"]


@pytest.mark.interop(servers="{order}")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ending", ["stopped", "killed"])
@pytest.mark.parametrize("order", ORDERS)
def test_waiting_messages_change_hands(order: str, ending: str, tmp_path: Path, topic: str) -> None:
    """One broker delivers the messages on the other one's timer wheel.

    None is early or lost, and recalls are respected.
    """
    store = tmp_path / "store"
    first_broker, second_broker = ORDERS[order]
    namesrv = gantry_namesrv(tmp_path / "namesrv")
    try:
        first = start(first_broker, tmp_path / "first", namesrv, store)
        # A Java broker takes 15 s to stop.
        deliver_ms = int(time.time() * 1000) + (40_000 if ending == "stopped" else 25_000)
        try:
            mqadmin(namesrv.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "1", "-w", "1")
            inputs: list[dict[str, object]] = [
                {"body": f"{n}", "deliver_ms": deliver_ms + n * 300, "recall": n % 5 == 4} for n in range(30)
            ]
            results = send_timed(namesrv.address, topic, [*inputs, {"body": "at once", "delay_ms": -1000}])
            assert {result["status"] for result in results} == {"SEND_OK"}
            wait_until_all_wait(first, topic, 24, store)
            before = unpack(">7q", call(first.address, RequestCode.GET_TIMER_CHECK_POINT).body)
        finally:
            if ending == "stopped":
                first.stop()
            else:
                first.kill()
        assert (store / "timerwheel").stat().st_size == 38_707_200
        assert [file.stat().st_size for file in (store / "timerlog").iterdir()] == [100 * 1024 * 1024]
        assert int(time.time() * 1000) < deliver_ms, "this machine is too slow for the test"
        second = start(second_broker, tmp_path / "second", namesrv, store)
        try:
            received = consume(namesrv.address, topic, 25)
            after = unpack(">7q", call(second.address, RequestCode.GET_TIMER_CHECK_POINT).body)
        finally:
            second.stop()
        expected = {str(n): deliver_ms + n * 300 for n in range(30) if n % 5 != 4} | {"at once": 0}
        assert {body(line) for line in received} == expected.keys()
        for line in received:
            assert line["store_timestamp"] >= expected[body(line)], body(line)
        assert after[2] >= before[2]
    finally:
        namesrv.kill()


def start(broker: Any, directory: Path, namesrv: Server, store: Path) -> Server:
    server: Server = broker(
        directory,
        namesrv.address,
        storePathRootDir=store,
        storePathCommitLog=store / "commitlog",
        recallMessageEnable="true",
    )
    return server


def wait_until_all_wait(broker: Server, topic: str, count: int, store: Path) -> None:
    """Waits until the broker has this many messages on its timer wheel and in its checkpoint.

    A recall counts as one less.

    If Java's broker is killed before the checkpoint, it puts the messages on the wheel again, and they are delivered
    twice.
    """
    checkpoint = store / "config" / "timercheck"

    def all_wait() -> bool:
        metrics = decode_json(call(broker.address, RequestCode.GET_TIMER_METRICS).body, dict)
        waiting = metrics["timingCount"].get(topic, {}).get("count")
        offset = unpack_from(">24xq", checkpoint.read_bytes())[0] if checkpoint.exists() else 0
        return waiting == count and offset == 36

    wait_until(all_wait)
