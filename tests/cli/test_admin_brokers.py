"""Tests of the `gantry admin` commands for clusters, brokers and statistics."""

from __future__ import annotations

import asyncio

import pytest
from admin_support import CLUSTER, Admin, admin, cluster, producer, topic

from gantrymq.cli.main import run
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["admin", "cluster", "producer", "topic"]


def test_cluster_list(admin: Admin, cluster: EmbeddedCluster) -> None:
    (row,) = admin("clusterList")
    assert (row["clusterName"], row["brokerName"], row["brokerId"]) == (CLUSTER, "broker-a", 0)
    assert row["brokerAddr"] == cluster.brokers[0]
    assert row["version"].startswith("V5_")
    assert 0 < row["diskRatio"] < 1
    assert row["active"] is True
    assert admin("clusterList", "-c", CLUSTER, "-m")[0]["brokerName"] == "broker-a"


def test_cluster_list_again_and_again(
    cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("gantrymq.cli.admin.command.asyncio.sleep", pause)
    assert run(["admin", "clusterList", "-n", cluster.name_server, "-i", "7"]) == 130
    assert pauses == [7, 7]
    assert capsys.readouterr().out.count("broker-a") == 2


def test_broker_status(admin: Admin, cluster: EmbeddedCluster) -> None:
    (broker,) = cluster.brokers
    of_cluster = admin("brokerStatus", "-c", CLUSTER)
    assert set(of_cluster) == {broker}
    assert "putTps" in of_cluster[broker]
    assert "putTps" in admin("brokerStatus", "-b", broker)[broker]


def test_broker_config(admin: Admin, cluster: EmbeddedCluster) -> None:
    (broker,) = cluster.brokers
    before = admin("getBrokerConfig", "-c", CLUSTER)[broker]
    assert before["brokerName"] == "broker-a"
    changed = admin("updateBrokerConfig", "-c", CLUSTER, "-k", "channelExpiredTimeout", "-v", "90000")
    assert changed == {"brokers": [broker], "key": "channelExpiredTimeout", "value": "90000"}
    assert admin("getBrokerConfig", "-b", broker)[broker]["channelExpiredTimeout"] == "90000"
    admin(
        *("updateBrokerConfig", "-c", CLUSTER, "-a", "true"),
        *("-k", "channelExpiredTimeout", "-v", before["channelExpiredTimeout"]),
    )


def test_a_refused_change_is_one_line(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-b", cluster.brokers[0], "-k", "channelExpiredTimeout", "-v", "soon"]
    assert run(["admin", "updateBrokerConfig", "-n", cluster.name_server, *arguments]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"gantry: {cluster.brokers[0]} answered code ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["cleanUnusedTopic", "cleanExpiredCQ", "deleteExpiredCommitLog"])
def test_housekeeping(command: str, admin: Admin, cluster: EmbeddedCluster) -> None:
    for target in (["-b", cluster.brokers[0]], ["-c", CLUSTER], []):
        assert admin(command, *target) == {"brokers": cluster.brokers}


def test_broker_consume_stats(admin: Admin, cluster: EmbeddedCluster, producer: SyncProducer, topic: str) -> None:
    (broker,) = cluster.brokers
    group = f"{topic}_group"
    admin("updateSubGroup", "-b", broker, "-g", group)
    for _ in range(3):
        producer.send(Message(topic, b"hello"), queue=MessageQueue(topic, "broker-a", 0))
    admin("topicStatus", "-t", topic, until=lambda status: status["queues"][0]["maxOffset"] == 3)
    admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    stats = admin("brokerConsumeStats", "-b", broker, "-l", "1")
    (row,) = [row for row in stats["queues"] if row["group"] == group]
    assert (row["topic"], row["queueId"], row["brokerOffset"], row["diff"]) == (topic, 0, 3, 3)
    assert stats["totalDiff"] >= 3


async def greet(producer: Producer) -> None:
    await producer.client.heartbeat()


def test_producer(admin: Admin, cluster: EmbeddedCluster, topic: str) -> None:
    producer = Producer(cluster.name_server, "told")
    # The producer's connection stays open while its event loop is not running.
    with asyncio.Runner() as runner:
        runner.run(producer.start())
        runner.run(producer.send(Message(topic, b"hello")))
        runner.run(greet(producer))
        rows = [row for row in admin("producer", "-b", cluster.brokers[0]) if row["group"] == "told"]
        assert [row["language"] for row in rows] == ["PYTHON"]
        (connection,) = admin("producerConnection", "-g", "told", "-t", topic)
        assert connection["clientId"] == rows[0]["clientId"]
        runner.run(producer.close())


def test_query_cq(admin: Admin, cluster: EmbeddedCluster, producer: SyncProducer, topic: str) -> None:
    for _ in range(4):
        producer.send(Message(topic, b"hello", tags="TagA"), queue=MessageQueue(topic, "broker-a", 1))
    found = admin("queryCq", "-t", topic, "-q", "1", "-i", "1", "-c", "2", until=lambda d: d["maxQueueIndex"] == 4)
    assert [row["queueOffset"] for row in found["queueData"]] == [1, 2]
    assert [row["tagsCode"] for row in found["queueData"]] == [2598919, 2598919]  # "TagA".hashCode()
    assert admin("queryCq", "-t", topic, "-q", "1", "-i", "0", "-b", cluster.brokers[0])["maxQueueIndex"] == 4


def test_stats_all(admin: Admin, cluster: EmbeddedCluster, producer: SyncProducer, topic: str) -> None:
    group = f"{topic}_group"
    producer.send(Message(topic, b"hello"))
    (row,) = admin("statsAll", "-t", topic, until=lambda rows: rows[0]["inMsg24Hour"])
    assert (row["topic"], row["consumerGroup"], row["inMsg24Hour"]) == (topic, "", 1)
    admin("updateSubGroup", "-b", cluster.brokers[0], "-g", group)
    admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    rows = {row["topic"]: row for row in admin("statsAll", "-a")}
    assert (rows[topic]["consumerGroup"], rows[topic]["accumulation"]) == (group, 1)
    assert "BenchmarkTest" not in rows


def test_a_key_that_is_none_and_a_value_that_is_bounded_are_said(
    cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (broker,) = cluster.brokers
    update = ["admin", "updateBrokerConfig", "-n", cluster.name_server, "-b", broker, "-k"]
    assert run([*update, "channelExpiredTimeuot", "-v", "90000"]) == 0
    assert capsys.readouterr().err == (
        f"gantry: {broker} has taken channelExpiredTimeuot, as Java's does, but has no such key and makes nothing of "
        "it; is channelExpiredTimeout meant?\n"
    )
    assert run([*update, "registerNameServerPeriod", "-v", "1", "--json"]) != 0
    assert "registerNameServerPeriod=1: must be at least 10000" in capsys.readouterr().err
    assert run([*update, "registerNameServerPeriod", "-v", "30000"]) == 0
    assert capsys.readouterr().err == ""
