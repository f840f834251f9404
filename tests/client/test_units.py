"""Tests of the options `unit_mode` and `unit_name` of clients, with a real cluster."""

from __future__ import annotations

import pytest
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.topic_name import retry_topic
from gantrymq.testing.embedded import EmbeddedCluster

#: Bits of `TopicSysFlag`.
UNIT, UNIT_SUB = 1, 2


@pytest.mark.parametrize(("unit_mode", "flag"), [(True, UNIT), (False, 0)])
async def test_a_producers_unit_mode_marks_the_topics_that_it_creates(
    gantry_cluster: EmbeddedCluster, unit_mode: bool, flag: int
) -> None:
    name = f"units-{unit_mode}"
    async with Producer(gantry_cluster.name_server, "producers", unit_mode=unit_mode) as producer:
        await producer.send(Message(name, b"one"))
    async with AdminClient(gantry_cluster.name_server) as admin:
        assert (await admin.topic_config(gantry_cluster.brokers[0], name)).topic_sys_flag == flag


@pytest.mark.parametrize("kind", ["push", "lite pull", "simple"])
async def test_a_consumers_unit_mode_marks_its_retry_topic(gantry_cluster: EmbeddedCluster, kind: str) -> None:
    def ignore(message: MessageExt) -> None:
        pass

    servers, group = gantry_cluster.name_server, f"units-{kind.replace(' ', '-')}"
    consumer: PushConsumer | LitePullConsumer | SimpleConsumer
    match kind:
        case "push":
            consumer = PushConsumer(servers, group, ignore, unit_mode=True, unit_name="cell-1")
        case "lite pull":
            consumer = LitePullConsumer(servers, group, unit_mode=True, unit_name="cell-1")
        case _:
            consumer = SimpleConsumer(servers, group, unit_mode=True, unit_name="cell-1")
    consumer.subscribe("BenchmarkTest")
    async with consumer, AdminClient(servers) as admin:

        async def has_the_flag() -> bool:
            try:
                config = await admin.topic_config(gantry_cluster.brokers[0], retry_topic(group))
            except BrokerError:
                return False
            return config.topic_sys_flag == UNIT_SUB

        await until(has_the_flag)
        (connection,) = (await admin.consumer_connection(group, gantry_cluster.brokers[0])).connection_set
        assert connection.client_id.endswith("@cell-1")
