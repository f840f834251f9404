"""Apache's mqadmin with Apache's cluster (the control) and this project's."""

from __future__ import annotations

import re

import pytest
from conftest import ONE_KIND, Cluster
from programs import Sent, consume, mqadmin, produce, sample

pytestmark = pytest.mark.interop(feature="mqadmin", clients="java", servers="{cluster}")


def permissions(route: str) -> set[str]:
    return set(re.findall(r'"perm":(\d)', route))


@ONE_KIND
def test_cluster_list_names_the_broker(cluster: Cluster) -> None:
    output = mqadmin(cluster.address, "clusterList")

    rows = [line.split() for line in output.splitlines()]
    assert ["DefaultCluster", "broker-a", "0", cluster.broker.address] in [row[:4] for row in rows]


@ONE_KIND
def test_life_of_a_topic(cluster: Cluster, topic: str) -> None:
    output = mqadmin(cluster.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "3", "-w", "2")
    assert f"create topic to {cluster.broker.address} success." in output

    route = mqadmin(cluster.address, "topicRoute", "-t", topic)
    assert '"readQueueNums":3' in route
    assert '"writeQueueNums":2' in route
    assert f'0:"{cluster.broker.address}"' in route
    assert permissions(route) == {"6"}
    assert topic in mqadmin(cluster.address, "topicList").split()

    sent = sample(6)
    results = produce(cluster.address, topic, [message.line() for message in sent])
    assert {result["queue_id"] for result in results} == {0, 1}
    assert sorted(map(Sent.of, consume(cluster.address, topic, 6))) == sorted(sent)

    shown = mqadmin(
        cluster.address, "queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", str(results[0]["queue_id"]), "-o", "0"
    )
    assert f"OffsetID:            {results[0]['offset_msg_id']}" in shown
    assert "colour=c0" in shown

    deleted = mqadmin(cluster.address, "deleteTopic", "-c", "DefaultCluster", "-t", topic)
    assert f"delete topic [{topic}] from cluster [DefaultCluster] success." in deleted
    assert "No topic route info" in mqadmin(cluster.address, "topicRoute", "-t", topic)


@ONE_KIND
def test_write_permission_can_be_wiped_and_given_back(cluster: Cluster, topic: str) -> None:
    produce(cluster.address, topic, [sample(1)[0].line()])

    assert "OK" in mqadmin(cluster.address, "wipeWritePerm", "-b", "broker-a")
    assert permissions(mqadmin(cluster.address, "topicRoute", "-t", topic)) == {"4"}

    assert "OK" in mqadmin(cluster.address, "addWritePerm", "-b", "broker-a")
    assert permissions(mqadmin(cluster.address, "topicRoute", "-t", topic)) == {"6"}
