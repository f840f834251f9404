"""Tests of the `gantry admin` commands for consumer groups, consumers and offsets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_support import CLUSTER, Admin, admin, cluster, producer, topic

from gantrymq.cli.main import run
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.sync import SyncProducer, SyncPushConsumer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["admin", "cluster", "producer", "topic"]


@pytest.fixture
def group(admin: Admin, topic: str) -> str:
    """Returns a configured group without consumers and offsets."""
    name = f"{topic}_group"
    admin("updateSubGroup", "-c", CLUSTER, "-g", name)
    return name


@pytest.fixture
def full_topic(admin: Admin, producer: SyncProducer, topic: str) -> str:
    """Returns a topic with five messages in queue 0."""
    for number in range(5):
        producer.send(Message(topic, b"%d" % number), queue=MessageQueue(topic, "broker-a", 0))
    admin("topicStatus", "-t", topic, until=lambda status: status["queues"][0]["maxOffset"] == 5)
    return topic


@pytest.fixture
def consumer(admin: Admin, cluster: EmbeddedCluster, topic: str, group: str) -> Iterator[str]:
    """Yields the client id of a connected consumer. The retry topic of its group exists."""
    admin("updateTopic", "-c", CLUSTER, "-t", f"%RETRY%{group}", "-r", "1", "-w", "1")
    admin("topicRoute", "-t", f"%RETRY%{group}", until=lambda route: route["queueDatas"])

    async def ignore(message: MessageExt) -> None:
        pass

    consumer = PushConsumer(cluster.name_server, group, ignore)
    consumer.subscribe(topic, tags="TagA")
    with SyncPushConsumer(consumer):
        online = admin("consumerConnection", "-g", group, until=lambda connection: connection["connectionSet"])
        yield online["connectionSet"][0]["clientId"]


def test_a_group_is_made_changed_and_deleted(
    admin: Admin, cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}}'
    made = admin(
        *("updateSubGroup", "-c", CLUSTER, "-g", "Made", "-s", "false", "-m", "true", "-d", "true", "-o", "true"),
        *("-q", "2", "-r", "3", "-i", "0", "-w", "1", "-a", "false", "-p", policy),
    )
    assert made["brokers"] == cluster.brokers
    (found,) = admin("getConsumerConfig", "-g", "Made")
    assert (found["clusterName"], found["brokerName"]) == (CLUSTER, "broker-a")
    config = found["config"]
    assert (config["consumeEnable"], config["consumeFromMinEnable"], config["consumeBroadcastEnable"]) == (
        False,
        True,
        True,
    )
    assert (config["retryQueueNums"], config["retryMaxTimes"], config["notifyConsumerIdsChangedEnable"]) == (
        2,
        3,
        False,
    )
    assert config["groupRetryPolicy"]["exponentialRetryPolicy"]["initial"] == 5000
    assert admin("deleteSubGroup", "-c", CLUSTER, "-g", "Made", "-r", "true")["brokers"] == cluster.brokers
    assert admin("getConsumerConfig", "-g", "Made") == []
    assert run(["admin", "getConsumerConfig", "-g", "Made", "-n", cluster.name_server]) == 0
    assert capsys.readouterr().out == "no broker has group Made\n"


def test_update_sub_group_list(admin: Admin, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    file = tmp_path / "groups.json"
    file.write_text(json.dumps([{"groupName": "First", "retryMaxTimes": 1}, {"groupName": "Second"}]))
    assert admin("updateSubGroupList", "-b", cluster.brokers[0], "-f", str(file))["groups"] == ["First", "Second"]
    assert admin("getConsumerConfig", "-g", "First")[0]["config"]["retryMaxTimes"] == 1


def test_progress_of_one_group(admin: Admin, full_topic: str, group: str) -> None:
    admin("resetOffsetByTime", "-g", group, "-t", full_topic, "-s", "0")
    progress = admin("consumerProgress", "-g", group, "-t", full_topic)
    (row, empty) = progress["queues"]
    assert (row["topic"], row["brokerName"], row["queueId"]) == (full_topic, "broker-a", 0)
    assert (row["brokerOffset"], row["consumerOffset"], row["diff"], row["clientIP"]) == (5, 0, 5, None)
    assert empty["diff"] == 0
    assert progress["diffTotal"] == 5
    assert len(admin("consumerProgress", "-g", group, "-t", full_topic, "-c", CLUSTER)["queues"]) == 2


def test_progress_of_all_groups(admin: Admin, consumer: str, group: str) -> None:
    rows = {row["group"]: row for row in admin("consumerProgress")}
    assert (rows[group]["count"], rows[group]["type"], rows[group]["model"]) == (1, "PUSH", "CLUSTERING")
    assert rows[group]["version"] == "V5_5_0"


def test_a_group_without_consumers_is_offline(admin: Admin, group: str) -> None:
    admin("updateTopic", "-c", CLUSTER, "-t", f"%RETRY%{group}", "-r", "1", "-w", "1")
    rows = admin("consumerProgress", until=lambda rows: group in [row["group"] for row in rows])
    assert [row["version"] for row in rows if row["group"] == group] == ["OFFLINE"]


def test_consumer_connection(
    admin: Admin, cluster: EmbeddedCluster, consumer: str, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = admin("consumerConnection", "-g", group, "-b", cluster.brokers[0])
    assert [one["clientId"] for one in connection["connectionSet"]] == [consumer]
    assert connection["subscriptionTable"][topic]["subString"] == "TagA"
    assert run(["admin", "consumerConnection", "-g", group, "-n", cluster.name_server]) == 0
    out = capsys.readouterr().out
    assert consumer in out
    assert "ConsumeType: CONSUME_PASSIVELY\n" in out


def test_consumer_connection_of_nobody(
    cluster: EmbeddedCluster, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-g", group, "-b", cluster.brokers[0], "-n", cluster.name_server]
    assert run(["admin", "consumerConnection", *arguments]) == 1
    assert "answered code 206" in capsys.readouterr().err


def test_offsets_are_reset_and_skipped(admin: Admin, cluster: EmbeddedCluster, full_topic: str, group: str) -> None:
    def offsets(*arguments: str) -> list[int]:
        return [row["offset"] for row in admin(*arguments, "-g", group, "-t", full_topic)]

    assert offsets("skipAccumulatedMessage") == [5, 0]
    assert offsets("resetOffsetByTime", "-s", "0") == [0, 0]
    assert offsets("resetOffsetByTime", "-s", "now") == [5, 0]
    assert offsets("resetOffsetByTime", "-s", "2001-01-01#00:00:00:000") == [0, 0]
    for early in ("1", "-28800000", "1970-01-02"):
        assert offsets("resetOffsetByTime", "-s", "now") == [5, 0]
        assert offsets("resetOffsetByTime", "-s", early) == [0, 0]
    one = ("resetOffsetByTime", "-g", group, "-t", full_topic, "-b", cluster.brokers[0], "-q", "0")
    assert admin(*one, "-s", "0", "-o", "3")["offset"] == 3
    progress = admin("consumerProgress", "-g", group, "-t", full_topic)
    assert progress["queues"][0]["consumerOffset"] == 3
    assert admin(*one, "-s", "-1")["offset"] == 5
    assert admin(*one, "-s", "0")["offset"] == 0


def test_a_light_queue_has_the_route_of_its_parent(
    admin: Admin, cluster: EmbeddedCluster, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in (
        ["skipAccumulatedMessage", "-t", "rmq_sys_wheel_timer"],
        ["skipAccumulatedMessage", "-t", "%LMQ%light"],
        ["resetOffsetByTime", "-t", "%LMQ%light", "-s", "0"],
    ):
        arguments = [*one, "-g", group]
        assert run(["admin", *arguments, "-c", "LostParent", "-n", cluster.name_server]) == 1
        assert "'LostParent'" in capsys.readouterr().err
        code = run(["admin", *arguments, "-c", CLUSTER, "-n", cluster.name_server])
        # The broker itself answers. It has the timer's topic, and no light queues.
        assert code == 0 or "no topic in this broker. topic=%LMQ%light" in capsys.readouterr().err


def test_another_topic_has_its_own_route(admin: Admin, full_topic: str, group: str) -> None:
    rows = admin("skipAccumulatedMessage", "-g", group, "-t", full_topic, "-c", "LostParent")
    assert [row["offset"] for row in rows] == [5, 0]


def test_offsets_are_cloned(admin: Admin, full_topic: str, group: str) -> None:
    admin("skipAccumulatedMessage", "-g", group, "-t", full_topic)
    admin("updateSubGroup", "-c", CLUSTER, "-g", f"{group}_2")
    rows = admin("cloneGroupOffset", "-s", group, "-d", f"{group}_2", "-t", full_topic)
    assert [row["offset"] for row in rows] == [5, 0]
    assert admin("consumerProgress", "-g", f"{group}_2", "-t", full_topic)["diffTotal"] == 0


def test_offsets_of_nobody_are_not_cloned(
    cluster: EmbeddedCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-s", "nobody", "-d", "somebody", "-t", topic, "-n", cluster.name_server]
    assert run(["admin", "cloneGroupOffset", *arguments]) == 1
    assert "group 'nobody' has no offsets in topic" in capsys.readouterr().err
