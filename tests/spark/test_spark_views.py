"""Tests the SQL statements of `gantry spark tables`."""

from __future__ import annotations

import asyncio

import pytest

from gantrymq.cli.main import run
from gantrymq.client.admin.client import AdminClient
from gantrymq.spark.views import view_statements
from gantrymq.testing.embedded import EmbeddedCluster

COLUMNS = (
    "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, keys STRING, tags STRING, body BINARY, "
    "bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP, msgId STRING, reconsumeTimes INT"
)


def test_a_view_for_each_topic_of_users() -> None:
    topics = ["Orders", "orders", "%RETRY%group", "%DLQ%group", "TBW102", "rmq_sys_wheel_timer"]
    assert list(view_statements(topics, {"nameServer": "a:1;b:1"})) == [
        f"CREATE OR REPLACE TEMPORARY VIEW `{view}` ({COLUMNS}) USING rocketmq "
        f"OPTIONS (nameServer 'a:1;b:1', subscribe '{topic}');"
        for view, topic in (("Orders", "Orders"), ("orders_2", "orders"))
    ]


def test_a_name_cannot_end_the_identifier() -> None:
    """No broker creates such a topic, but a NameServer can return any text."""
    (statement,) = view_statements(["a` (x INT); DROP TABLE b; --"], {})
    assert statement.startswith("CREATE OR REPLACE TEMPORARY VIEW `a`` (x INT); DROP TABLE b; --` (topic STRING")


def test_the_topics_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    async def create(name_server: str) -> None:
        async with AdminClient(name_server) as admin:
            await admin.ensure_topic("orders")

    with EmbeddedCluster() as cluster:
        asyncio.run(create(cluster.name_server))
        assert run(["spark", "tables", "-n", cluster.name_server]) == 0
        statements = capsys.readouterr().out.splitlines()
    assert [line for line in statements if line.endswith(f"(nameServer '{cluster.name_server}', subscribe 'orders');")]
    views = {line.split("`")[1] for line in statements}
    assert not views & {"DefaultCluster", "DefaultCluster_REPLY_TOPIC", "broker-a"}
    assert not [view for view in views if "%" in view]
