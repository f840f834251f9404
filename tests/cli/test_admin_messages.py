"""Tests of the `gantry admin` commands that find, print and send messages."""

from __future__ import annotations

import base64
import time

import pytest
from admin_support import CLUSTER, Admin, admin, cluster, producer, topic

from gantrymq.cli.main import run
from gantrymq.client.broker_api import SendResult
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["admin", "cluster", "producer", "topic"]


@pytest.fixture
def sent(admin: Admin, producer: SyncProducer, topic: str) -> list[SendResult]:
    """Sends six messages with two tags, alternately to two queues."""
    results = [
        producer.send(
            Message(topic, f"grüße {n}".encode(), tags="TagA" if n < 4 else "TagB", keys=f"key-{n}"),
            queue=MessageQueue(topic, "broker-a", n % 2),
        )
        for n in range(6)
    ]
    admin("topicStatus", "-t", topic, until=lambda status: sum(q["maxOffset"] for q in status["queues"]) == 6)
    return results


def test_by_offset_id(admin: Admin, topic: str, sent: list[SendResult]) -> None:
    ids = ",".join(one.offset_msg_id for one in sent[:2])
    first, second = admin("queryMsgById", "-t", topic, "-i", ids, "-f", "UTF-8")
    assert (first["msgId"], first["offsetMsgId"]) == (sent[0].msg_id, sent[0].offset_msg_id)
    assert (second["topic"], second["queueId"], second["queueOffset"]) == (topic, 1, 0)
    assert second["body"] == "grüße 1"
    assert base64.b64decode(second["bodyBase64"]).decode() == "grüße 1"
    assert second["properties"]["TAGS"] == "TagA"
    assert second["messageTrack"] == []


def test_by_queue_offset(
    admin: Admin, cluster: EmbeddedCluster, topic: str, sent: list[SendResult], capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["-t", topic, "-b", "broker-a", "-i", "1"]
    found = admin("queryMsgByOffset", *place, "-o", "2")
    assert found["msgId"] == sent[5].msg_id
    assert found["body"] is None
    assert run(["admin", "queryMsgByOffset", *place, "-o", "9", "-n", cluster.name_server]) == 1
    assert "no message at offset 9" in capsys.readouterr().err


def test_who_consumed_it(admin: Admin, topic: str, sent: list[SendResult]) -> None:
    group = f"{topic}_group"
    admin("updateSubGroup", "-c", CLUSTER, "-g", group)
    admin("skipAccumulatedMessage", "-g", group, "-t", topic)
    found = admin("queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", "0", "-o", "0")
    (track,) = found["messageTrack"]
    assert track["consumerGroup"] == group
    assert track["trackType"] in ("NOT_ONLINE", "UNKNOWN")


def test_by_key_and_unique_key(
    admin: Admin, cluster: EmbeddedCluster, topic: str, sent: list[SendResult], capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = admin("queryMsgByKey", "-t", topic, "-k", "key-3", until=bool)
    assert (found["msgId"], found["queueId"], found["queueOffset"]) == (sent[3].msg_id, 1, 1)
    assert admin("queryMsgByKey", "-t", topic, "-k", "key-3", "-b", "1") == [found]
    assert admin("queryMsgByKey", "-t", topic, "-k", "key-3", "-e", "1") == []
    (found,) = admin("queryMsgByUniqueKey", "-t", topic, "-i", sent[2].msg_id, "-a")
    assert admin("queryMsgByUniqueKey", "-t", topic, "-i", sent[2].msg_id, "-a", "-s", "1", "-e", "2999-01-01") == [
        found
    ]
    assert found["keys"] == ["key-2"]
    (found,) = admin("queryMsgById", "-t", topic, "-i", sent[2].msg_id)
    assert found["queueOffset"] == 1
    assert run(["admin", "queryMsgByUniqueKey", "-t", topic, "-i", "lost", "-n", cluster.name_server]) == 1
    assert "has no message lost" in capsys.readouterr().err


def test_by_tags_and_index_key(admin: Admin, topic: str, sent: list[SendResult]) -> None:
    rows = admin("queryMsgByKey", "-t", topic, "-k", "TagB", "-p", "T", until=lambda rows: len(rows) == 2)
    assert [row["msgId"] for row in rows] == [sent[4].msg_id, sent[5].msg_id]
    assert admin("queryMsgByKey", "-t", topic, "-k", "key-3", "-p", "T") == []
    (found,) = admin("queryMsgByKey", "-t", topic, "-k", "key-3", "-p", "K")
    hour_ms = found["storeTimestamp"] - found["storeTimestamp"] % 3_600_000
    last_key = found["indexKey"]
    assert last_key == f"{hour_ms}@{topic}@K@key-3@{sent[3].msg_id}@{found['commitLogOffset']}"
    # Only RocksDB's index continues after it.
    assert admin("queryMsgByKey", "-t", topic, "-k", "key-3", "-l", last_key) == [found]


def test_a_unique_key_within_a_time(
    admin: Admin, cluster: EmbeddedCluster, topic: str, sent: list[SendResult], capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = admin("queryMsgByUniqueKey", "-t", topic, "-i", sent[2].msg_id)
    stored = found["storeTimestamp"]
    one = ["queryMsgByUniqueKey", "-t", topic, "-i", sent[2].msg_id]
    assert admin(*one, "-s", str(stored), "-e", str(stored)) == [found]
    assert admin(*one, "-s", "2024-05-31T23:59", "-e", "2100-01-01#00:00:00:000") == [found]
    for span in (["-s", str(stored + 1)], ["-e", str(stored - 1)]):
        assert run(["admin", *one, *span, "-n", cluster.name_server]) == 1
        assert f"has no message {sent[2].msg_id}" in capsys.readouterr().err


def test_the_route_of_another_topic(
    admin: Admin, cluster: EmbeddedCluster, topic: str, sent: list[SendResult], capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", "1", "-o", "2"]
    assert admin(*place, "-r", CLUSTER)["msgId"] == sent[5].msg_id
    assert run(["admin", *place, "-r", "Lost", "-n", cluster.name_server]) == 1
    assert "'Lost'" in capsys.readouterr().err
    assert run(["admin", *place[:3], "-b", "other", *place[5:], "-r", topic, "-n", cluster.name_server]) == 1
    assert f"topic '{topic}' has no broker 'other'" in capsys.readouterr().err
    # The parent topic has only queue 0.
    admin("updateTopic", "-c", CLUSTER, "-t", f"{topic}_parent", "-r", "1", "-w", "1")
    admin("topicRoute", "-t", f"{topic}_parent", until=lambda route: route["queueDatas"])
    assert [row["queueId"] for row in admin("printMsg", "-t", topic, "-l", f"{topic}_parent")] == [0, 0, 0]


def test_send_again_within_a_unit(
    admin: Admin, cluster: EmbeddedCluster, topic: str, sent: list[SendResult], capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["queryMsgById", "-t", topic, "-i", sent[1].offset_msg_id, "-s", "true", "-u"]
    (sent_again,) = admin(*again, "cell-1")
    assert sent_again["msgId"] == sent[1].msg_id
    assert run(["admin", *again, "cell/1", "-n", cluster.name_server]) == 1
    assert "unit_name='cell/1'" in capsys.readouterr().err


def test_a_send_with_a_trace(admin: Admin, topic: str) -> None:
    admin("updateTopic", "-c", CLUSTER, "-t", "RMQ_SYS_TRACE_TOPIC", "-r", "1", "-w", "1")
    admin("topicRoute", "-t", "RMQ_SYS_TRACE_TOPIC", until=lambda route: route["queueDatas"])
    traced = admin("sendMessage", "-t", topic, "-p", "x", "-m", "true")
    plain = admin("sendMessage", "-t", topic, "-p", "x")
    (row,) = admin("queryMsgTraceById", "-i", traced["msgId"], until=bool)
    assert (row["type"], row["status"]) == ("Pub", "success")
    assert admin("queryMsgTraceById", "-i", traced["msgId"], "-b", "1") == [row]
    assert admin("queryMsgTraceById", "-i", traced["msgId"], "-e", "1") == []
    assert admin("queryMsgTraceById", "-i", plain["msgId"]) == []


def test_send_again(admin: Admin, topic: str, sent: list[SendResult]) -> None:
    (again,) = admin("queryMsgById", "-t", topic, "-i", sent[1].offset_msg_id, "-s", "true")
    assert again["msgId"] == sent[1].msg_id
    (first, second) = admin("queryMsgByKey", "-t", topic, "-k", "key-1", until=lambda rows: len(rows) == 2)
    assert (first["bodyBase64"], first["tags"]) == (second["bodyBase64"], second["tags"])
    assert len(admin("queryMsgByUniqueKey", "-t", topic, "-i", sent[1].msg_id, "-a", "-c", CLUSTER)) == 2


def test_a_cluster_that_does_not_have_the_topic(
    cluster: EmbeddedCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["admin", "queryMsgByKey", "-t", topic, "-k", "k", "-c", "Other", "-n", cluster.name_server]) == 1
    assert f"no broker has topic '{topic}'" in capsys.readouterr().err


def test_print_all(admin: Admin, topic: str, sent: list[SendResult]) -> None:
    rows = admin("printMsg", "-t", topic)
    assert sorted(row["body"] for row in rows) == [f"grüße {n}" for n in range(6)]
    assert {row["body"] for row in admin("printMsg", "-t", topic, "-d", "false")} == {None}
    assert len(admin("printMsg", "-t", topic, "-s", "TagB")) == 2
    assert admin("printMsg", "-t", topic, "-e", "2001-01-01#00:00:00:000") == []


def test_print_a_queue(admin: Admin, topic: str, sent: list[SendResult]) -> None:
    place = ["-t", topic, "-a", "broker-a", "-i", "0"]
    counted = admin("printMsgByQueue", *place, "-f", "true")
    assert counted == {"messages": [], "messageCount": 3, "tags": {"TagA": 2, "TagB": 1}}
    printed = admin("printMsgByQueue", *place, "-p", "true", "-d", "true", "-s", "TagB")
    assert [row["body"] for row in printed["messages"]] == ["grüße 4"]


def test_consume(admin: Admin, topic: str, sent: list[SendResult]) -> None:
    assert len(admin("consumeMessage", "-t", topic)) == 6
    assert len(admin("consumeMessage", "-t", topic, "-c", "4")) == 4
    rows = admin("consumeMessage", "-t", topic, "-b", "broker-a", "-i", "1", "-o", "1")
    assert [row["queueOffset"] for row in rows] == [1, 2]


def test_a_message_with_a_table_for_people(
    cluster: EmbeddedCluster, topic: str, sent: list[SendResult], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-t", topic, "-i", sent[0].offset_msg_id, "-f", "utf-8", "-n", cluster.name_server]
    assert run(["admin", "queryMsgById", *arguments]) == 0
    out = capsys.readouterr().out
    assert sent[0].msg_id in out
    assert "grüße 0" in out
    assert "WARN: No Consumer" in out


def test_send_message(admin: Admin, topic: str) -> None:
    sent = admin("sendMessage", "-t", topic, "-p", "grüße", "-k", "key", "-c", "TagA", "-b", "broker-a", "-i", "1")
    assert (sent["brokerName"], sent["queueId"], sent["sendStatus"]) == ("broker-a", 1, "SEND_OK")
    (found,) = admin("queryMsgById", "-t", topic, "-i", sent["offsetMsgId"], "-f", "utf-8")
    assert (found["body"], found["tags"], found["keys"]) == ("grüße", "TagA", ["key"])
    assert admin("sendMessage", "-t", topic, "-p", "x", "-b", "broker-a")["sendStatus"] == "SEND_OK"
    assert admin("sendMessage", "-t", topic, "-p", "x")["sendStatus"] == "SEND_OK"


def test_times_of_sending(admin: Admin, topic: str) -> None:
    measured = admin("checkMsgSendRT", "-t", topic, "-a", "4", "-s", "16")
    assert [(row["queueId"], row["success"]) for row in measured["sent"]] == [
        (0, True),
        (1, True),
        (0, True),
        (1, True),
    ]
    assert measured["averageRtMs"] > 0
    measured = admin("sendMsgStatus", "-b", "broker-a", "-c", "2")
    assert [row["success"] for row in measured["sent"]] == [True, True]
    (row,) = admin("clusterRT", "-a", "2", "-i", "0")
    assert (row["clusterName"], row["brokerName"], row["successCount"], row["failCount"]) == (CLUSTER, "broker-a", 2, 0)


def test_trace(admin: Admin, producer: SyncProducer, topic: str) -> None:
    now_ms = int(time.time() * 1000)
    line = ["Pub", str(now_ms), "region", "group", "T", "ID1", "TagA", "k", "host", "5", "7", "0", "00", "true", "me"]
    producer.send(Message(topic, ("\x01".join(line) + "\x02").encode(), keys="ID1"))
    (row,) = admin("queryMsgTraceById", "-t", topic, "-i", "ID1", until=bool)
    assert (row["type"], row["group"], row["timestamp"], row["costTimeMs"], row["status"]) == (
        *("Pub", "group", now_ms, 7, "success"),
    )
