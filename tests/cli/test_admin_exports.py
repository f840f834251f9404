"""Tests of the commands that write a cluster's data into files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admin_support import CLUSTER, Admin, admin

from gantrymq.cli.main import run
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError
from gantrymq.protocol.bodies.connection import ConsumerConnection
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import Message
from gantrymq.sync import SyncProducer, SyncPushConsumer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["admin"]

FIXED_KEYS = {"brokerClusterName", "brokerId", "brokerName", "brokerRole", "flushDiskType", "maxMessageSize"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Two brokers with the topic "orders" (2 queues each) and the group "billing" (3 retry queues each)."""
    with EmbeddedCluster(brokers=2) as cluster:
        end = ["-c", CLUSTER, "-n", cluster.name_server]
        assert run(["admin", "updateTopic", "-t", "orders", "-r", "2", "-w", "2", *end]) == 0
        assert run(["admin", "updateSubGroup", "-g", "billing", "-q", "3", *end]) == 0
        yield cluster


def content(path: Path) -> Any:
    return json.loads(path.read_text())


def test_configs(admin: Admin, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    document = admin("exportConfigs", "-c", CLUSTER, "-f", str(tmp_path / "new"))
    assert content(tmp_path / "new" / "configs.json") == document
    assert document["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 2, "slaveBrokerSize": 0}
    assert document["brokerConfigs"].keys() == {"broker-a", "broker-b"}
    for name, config in document["brokerConfigs"].items():
        assert config.keys() >= FIXED_KEYS
        assert config["brokerName"] == name
        assert "listenPort" not in config


def test_metadata_of_a_cluster(admin: Admin, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Numbers of queues are summed over the brokers. Topics and groups of the system are left out."""
    admin("exportMetadata", "-c", CLUSTER, "-f", str(tmp_path))
    document = content(tmp_path / "metadata.json")
    assert document.keys() == {"topicConfigTable", "subscriptionGroupTable", "exportTime"}
    assert document["topicConfigTable"].keys() == {"orders"}
    orders = document["topicConfigTable"]["orders"]
    assert (orders["topicName"], orders["readQueueNums"], orders["writeQueueNums"]) == ("orders", 4, 4)
    assert document["subscriptionGroupTable"].keys() == {"billing"}
    assert document["subscriptionGroupTable"]["billing"]["retryQueueNums"] == 6


@pytest.mark.parametrize(
    ("flag", "name", "table"),
    [("-t", "topic.json", "topicConfigTable"), ("-g", "subscriptionGroup.json", "subscriptionGroupTable")],
)
def test_metadata_of_one_kind(
    admin: Admin, cluster: EmbeddedCluster, tmp_path: Path, flag: str, name: str, table: str
) -> None:
    admin("exportMetadata", "-b", cluster.brokers[0], "-f", str(tmp_path), flag)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    document = content(tmp_path / name)
    assert document.keys() == {table, "exportTime"}
    assert [one.get("readQueueNums", one.get("retryQueueNums")) for one in document[table].values()] in ([2], [3])


def test_special_topics(admin: Admin, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    end = ["-c", CLUSTER, "-f", str(tmp_path)]
    admin("updateTopic", "-c", CLUSTER, "-t", "%DLQ%billing")
    assert admin("exportMetadata", "-t", *end)["topicConfigTable"].keys() == {"orders"}
    assert {"orders", "%DLQ%billing"} <= admin("exportMetadata", "-t", "-s", *end)["topicConfigTable"].keys()


def test_metrics(admin: Admin, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    consumer = PushConsumer(cluster.name_server, "billing", lambda _: None)
    consumer.subscribe("orders")
    with SyncProducer(Producer(cluster.name_server, "shop")) as producer, SyncPushConsumer(consumer):
        for _ in range(4):
            producer.send(Message("orders", b"x", delay_level=18))
        document = admin(
            "exportMetrics",
            "-c",
            CLUSTER,
            "-f",
            str(tmp_path),
            until=lambda found: all(
                broker["runtimeVersion"]["clientInfo"] for broker in found["evaluateReport"].values()
            ),
        )
    assert content(tmp_path / "metrics.json") == document
    assert document["evaluateReport"].keys() == {"broker-a", "broker-b"}
    for broker in document["evaluateReport"].values():
        quota = broker["runtimeQuota"]
        assert quota.keys() == {"diskRatio", "tps", "oneDayNum", "messageAverageSize", "topicSize", "groupSize"}
        assert (quota["topicSize"], quota["groupSize"]) == (1, 1)
        assert 0 < float(quota["diskRatio"]["commitLogDiskRatio"]) < 1
        assert re.fullmatch(r"V5_\d_\d", broker["runtimeVersion"]["rocketmqVersion"])
        assert all(re.fullmatch(r"\w+%V5_\d_\d", client) for client in broker["runtimeVersion"]["clientInfo"])
    totals = document["totalData"]
    assert totals["totalTps"].keys() == {
        "totalNormalInTps",
        "totalNormalOutTps",
        "totalTransInTps",
        "totalScheduleInTps",
    }
    delayed = [one["runtimeQuota"]["oneDayNum"]["scheduleOneDayInNum"] for one in document["evaluateReport"].values()]
    assert totals["totalOneDayNum"]["scheduleOneDayInNum"] == sum(delayed)


@pytest.mark.parametrize("code", [ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.NO_PERMISSION])
def test_consumers_of_each_broker(
    cluster: EmbeddedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: ResponseCode,
) -> None:
    """Each broker is queried for its consumers. It may have none; other errors end the command."""
    queried: set[tuple[str, str | None]] = set()

    async def connection(admin: AdminClient, group: str, broker: str | None = None) -> ConsumerConnection:
        queried.add((group, broker))
        raise BrokerError(code, "refused", broker or "")

    monkeypatch.setattr(AdminClient, "consumer_connection", connection)
    command = ["admin", "exportMetrics", "-c", CLUSTER, "-n", cluster.name_server, "-f", str(tmp_path)]
    if code == ResponseCode.CONSUMER_NOT_ONLINE:
        assert run(command) == 0
        assert queried == {("billing", address) for address in cluster.brokers}
    else:
        assert run(command) != 0
        assert "refused" in capsys.readouterr().err


def test_a_file_that_cannot_be_written(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    command = ["admin", "exportConfigs", "-c", CLUSTER, "-n", cluster.name_server, "-f", str(tmp_path / "file")]
    assert run(command) == 1
    assert f"can't write {tmp_path / 'file' / 'configs.json'}" in capsys.readouterr().err
