"""Tests of the `gantry admin` commands for topics and NameServers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from admin_support import CLUSTER, Admin, admin, cluster, producer, topic

from gantrymq.cli.main import run
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["admin", "cluster", "producer", "topic"]


def test_update_topic_makes_and_changes(admin: Admin, cluster: EmbeddedCluster) -> None:
    made = admin(
        *("updateTopic", "-c", CLUSTER, "-t", "Made", "-r", "4", "-w", "6", "-p", "6", "-u", "true"),
        *("-a", "+message.type=NORMAL"),
    )
    assert made["brokers"] == cluster.brokers
    assert made["topicConfig"]["topicSysFlag"] == 1
    route = admin("topicRoute", "-t", "Made", until=lambda route: route["queueDatas"][0]["writeQueueNums"] == 6)
    (queues,) = route["queueDatas"]
    assert (queues["brokerName"], queues["readQueueNums"], queues["perm"]) == ("broker-a", 4, 6)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": cluster.brokers[0]}
    admin("update-topic", "-b", cluster.brokers[0], "-t", "Made", "-r", "2", "-w", "2")
    admin("topicRoute", "-t", "Made", until=lambda route: route["queueDatas"][0]["writeQueueNums"] == 2)


def test_update_topic_limits_the_retention(
    admin: Admin, cluster: EmbeddedCluster, producer: SyncProducer, topic: str
) -> None:
    for body in (b"old", b"new"):
        producer.send(Message(topic, body), queue=MessageQueue(topic, "broker-a", 1))
    command = ("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "2", "-w", "2", "-a")
    with pytest.raises(AssertionError, match=r"retention.ms=soon.*must be a number from 1"):
        admin(*command, "+retention.ms=soon")
    made = admin(*command, "+retention.ms=3600000,+retention.bytes=1")
    assert made["topicConfig"]["attributes"] == {"+retention.ms": "3600000", "+retention.bytes": "1"}
    # Makes the broker clean its store at once, and not after 10 s.
    admin("deleteExpiredCommitLog", "-b", cluster.brokers[0])
    admin("topicStatus", "-t", topic, until=lambda status: [q["minOffset"] for q in status["queues"]] == [0, 1])
    assert [row["body"] for row in admin("printMsg", "-t", topic)] == ["new"]


def test_rate_limits_are_attributes_of_topics_and_groups(admin: Admin) -> None:
    command = ("updateTopic", "-c", CLUSTER, "-t", "Limited", "-r", "2", "-w", "2", "--attributes")
    made = admin(*command, "+rate.limit.messages=1000,+rate.limit.bytes=1048576")
    assert made["topicConfig"]["attributes"] == {"+rate.limit.messages": "1000", "+rate.limit.bytes": "1048576"}
    # A broker refuses to remove an attribute that is not set.
    admin(*command, "-rate.limit.bytes")
    with pytest.raises(AssertionError, match=r"can't be removed: it is not set"):
        admin(*command, "-rate.limit.bytes")
    with pytest.raises(AssertionError, match=r"rate.limit.messages=0.*must be a number from 1"):
        admin(*command, "+rate.limit.messages=0")
    group = ("updateSubGroup", "-c", CLUSTER, "-g", "limited", "--attributes")
    admin(*group, "+rate.limit.messages=1000,+rate.limit.bytes=1048576")
    admin(*group, "-rate.limit.bytes")


def test_a_drained_topic_is_read_and_takes_no_messages(
    admin: Admin, cluster: EmbeddedCluster, producer: SyncProducer, topic: str
) -> None:
    producer.send(Message(topic, b"hello"), queue=MessageQueue(topic, "broker-a", 1))
    admin("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "2", "-w", "0")
    admin("topicRoute", "-t", topic, until=lambda route: route["queueDatas"][0]["writeQueueNums"] == 0)
    assert [row["body"] for row in admin("printMsg", "-t", topic)] == ["hello"]
    with SyncProducer(Producer(cluster.name_server, "late")) as late, pytest.raises(GantryError):
        late.send(Message(topic, b"too late"))


def test_an_ordered_topic_is_known_to_the_name_servers(admin: Admin, cluster: EmbeddedCluster) -> None:
    made = admin("updateTopic", "-c", CLUSTER, "-t", "Ordered", "-w", "3", "-o", "true")
    assert made["orderConf"] == "broker-a:3"
    assert admin("updateOrderConf", "-t", "Ordered", "-m", "get")["orderConf"] == "broker-a:3"
    made = admin("updateTopic", "-b", cluster.brokers[0], "-t", "Ordered", "-w", "5", "-o", "true")
    assert made["orderConf"] == "broker-a:5"
    admin("updateOrderConf", "-t", "Ordered", "-m", "put", "-v", "broker-a:1;broker-b:2")
    assert admin("updateOrderConf", "-t", "Ordered", "-m", "get")["orderConf"] == "broker-a:1;broker-b:2"
    admin("updateOrderConf", "-t", "Ordered", "-m", "delete")
    assert admin("updateOrderConf", "-t", "Ordered", "-m", "get")["orderConf"] == ""


def test_update_topic_list(
    admin: Admin, cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "topics.json"
    file.write_text(json.dumps([{"topicName": "First", "writeQueueNums": 1}, {"topicName": "Second"}]))
    assert admin("updateTopicList", "-c", CLUSTER, "-f", str(file)) == {
        "topics": ["First", "Second"],
        "brokers": cluster.brokers,
    }
    admin("topicList", until={"First", "Second"}.issubset)
    file.write_text("[{]")
    assert run(["admin", "updateTopicList", "-n", cluster.name_server, "-c", CLUSTER, "-f", str(file)]) == 1
    assert str(file) in capsys.readouterr().err
    assert run(["admin", "updateTopicList", "-n", cluster.name_server, "-c", CLUSTER, "-f", "/nowhere"]) == 1
    assert "can't read /nowhere" in capsys.readouterr().err


def test_delete_topic(admin: Admin, cluster: EmbeddedCluster, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert admin("deleteTopic", "-c", CLUSTER, "-t", topic)["brokers"] == cluster.brokers
    assert run(["admin", "topicRoute", "-n", cluster.name_server, "-t", topic]) == 1


def test_update_topic_perm(admin: Admin, cluster: EmbeddedCluster, topic: str) -> None:
    changed = admin("updateTopicPerm", "-c", CLUSTER, "-t", topic, "-p", "4")
    assert changed["brokers"] == [{"brokerAddr": cluster.brokers[0], "oldPerm": 6}]
    route = admin("topicRoute", "-t", topic, until=lambda route: route["queueDatas"][0]["perm"] == 4)
    assert route["queueDatas"][0]["readQueueNums"] == 2


def test_topic_status(admin: Admin, producer: SyncProducer, topic: str) -> None:
    for _ in range(3):
        producer.send(Message(topic, b"hello"), queue=MessageQueue(topic, "broker-a", 1))
    status = admin("topicStatus", "-t", topic, until=lambda status: status["queues"][1]["maxOffset"] == 3)
    assert [(row["queueId"], row["minOffset"], row["maxOffset"]) for row in status["queues"]] == [(0, 0, 0), (1, 0, 3)]
    assert status["queues"][1]["lastUpdateTimestamp"] > 0
    assert status["queues"][0]["lastUpdateTimestamp"] == 0
    assert len(admin("topicStatus", "-t", topic, "-c", CLUSTER)["queues"]) == 2


def test_topic_cluster_list(admin: Admin, topic: str) -> None:
    assert admin("topicClusterList", "-t", topic) == [CLUSTER]


def test_topic_list_with_clusters_and_readers(admin: Admin, cluster: EmbeddedCluster, topic: str) -> None:
    group = f"{topic}_group"
    admin("updateSubGroup", "-b", cluster.brokers[0], "-g", group)
    admin("skipAccumulatedMessage", "-g", group, "-t", topic)
    rows = {row["topic"]: row for row in admin("topicList", "-c")}
    assert rows[topic] == {"topic": topic, "clusters": [CLUSTER], "consumerGroups": [group]}


def test_topic_route_as_a_table(cluster: EmbeddedCluster, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", "topicRoute", "-n", cluster.name_server, "-t", topic, "-l"]) == 0
    out = capsys.readouterr().out
    assert f"0: {cluster.brokers[0]}" in out
    assert "Total: 1 brokers, 2 read queues, 2 write queues" in out


def test_allocate_mq(admin: Admin, topic: str) -> None:
    rows = admin("allocateMQ", "-t", topic, "-i", "10.0.0.1,10.0.0.2,10.0.0.3")
    assert rows == [
        {"ip": "10.0.0.1", "brokerName": "broker-a", "queueId": 0},
        {"ip": "10.0.0.2", "brokerName": "broker-a", "queueId": 1},
    ]


def test_kv_config(admin: Admin) -> None:
    assert admin("updateKvConfig", "-s", "space", "-k", "key", "-v", "a value") == {
        "namespace": "space",
        "key": "key",
        "value": "a value",
    }
    assert admin("deleteKvConfig", "-s", "space", "-k", "key") == {"namespace": "space", "key": "key"}


def test_write_permission(admin: Admin, cluster: EmbeddedCluster, topic: str) -> None:
    wiped = admin("wipeWritePerm", "-b", "broker-a")
    assert wiped["nameServers"][0]["nameServer"] == cluster.name_server
    assert wiped["nameServers"][0]["topicCount"] > 0
    assert admin("topicRoute", "-t", topic)["queueDatas"][0]["perm"] == 4
    admin("addWritePerm", "-b", "broker-a")
    assert admin("topicRoute", "-t", topic)["queueDatas"][0]["perm"] == 6


def test_name_server_config(admin: Admin, cluster: EmbeddedCluster) -> None:
    before = admin("getNamesrvConfig")[cluster.name_server]
    assert before["enableTopicList"] == "true"
    admin("updateNamesrvConfig", "-k", "enableTopicList", "-v", "false")
    assert admin("getNamesrvConfig")[cluster.name_server]["enableTopicList"] == "false"
    admin("updateNamesrvConfig", "-k", "enableTopicList", "-v", "true")
