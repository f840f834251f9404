"""mqadmin reads and drains a broker of Apache's (the control) and of this project."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from conftest import ONE_KIND, Cluster, running
from programs import Sent, consume, mqadmin, produce, sample

pytestmark = pytest.mark.interop(feature="mqadmin", clients="java", servers="{cluster}")

WAIT_S = 30.0


@ONE_KIND
def test_query_by_tag(cluster: Cluster, topic: str) -> None:
    sent = sample(6)
    results = produce(cluster.address, topic, [message.line() for message in sent])
    tag = sent[1].tags
    wanted = {result["msg_id"] for result, message in zip(results, sent, strict=True) if message.tags == tag}
    assert 0 < len(wanted) < len(sent)

    deadline = time.monotonic() + WAIT_S
    # Both brokers build the index in the background.
    while (
        found := message_ids(mqadmin(cluster.address, "queryMsgByKey", "-t", topic, "-k", tag, "-p", "T"))
    ) != wanted:
        assert found < wanted
        assert time.monotonic() < deadline, found


def message_ids(output: str) -> set[str]:
    """Returns the ids in the first column of a table."""
    return set(re.findall(r"^([0-9A-F]{32,}) ", output, re.MULTILINE))


@ONE_KIND
def test_a_topic_without_write_queues_can_be_read(cluster: Cluster, topic: str) -> None:
    sent = sample(6)
    mqadmin(cluster.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "2", "-w", "2")
    produce(cluster.address, topic, [message.line() for message in sent])

    output = mqadmin(cluster.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "2", "-w", "0")
    assert f"create topic to {cluster.broker.address} success." in output
    assert '"writeQueueNums":0' in mqadmin(cluster.address, "topicRoute", "-t", topic)
    assert sorted(map(Sent.of, consume(cluster.address, topic, 6))) == sorted(sent)


@ONE_KIND
def test_statistics_of_a_topic(cluster: Cluster, topic: str) -> None:
    produce(cluster.address, topic, [message.line() for message in sample(6)])
    consume(cluster.address, topic, 6)

    rows = [line.split() for line in mqadmin(cluster.address, "statsAll", "-t", topic).splitlines()]
    # The first columns are the topic and the group.
    assert any(row[1] == "interop_consumer" and topic.startswith(row[0]) for row in rows if len(row) > 1), rows


@pytest.mark.interop(feature="mqadmin", clients="java", servers="java gantry")
def test_broker_status_has_the_same_names(tmp_path: Path) -> None:
    def names(cluster: Cluster) -> set[str]:
        output = mqadmin(cluster.address, "brokerStatus", "-b", cluster.broker.address)
        return set(re.findall(r"^(\w+) +:", output, re.MULTILINE))

    with running("java-java", tmp_path / "java") as cluster:
        java = names(cluster)
    with running("gantry-gantry", tmp_path / "gantry") as cluster:
        gantry = names(cluster)
    assert "msgPutTotalTodayNow" in java
    assert java - gantry == set()
