"""Topics that brokers create one after the other: clients get the complete route within two seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from scripted import ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client import routes as routes_module
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.request_reply import reply_message
from gantrymq.client.routes import Routes
from gantrymq.errors import ClientError, IllegalMessage
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.testing.processes import ProcessCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("cluster"), brokers=2) as cluster:
        yield cluster


async def test_a_consumer_hears_of_the_other_brokers_half(cluster: ProcessCluster) -> None:
    """Otherwise it would take 30 to 40 s."""
    received: set[str] = set()

    async def handle(message: MessageExt) -> None:
        received.add(message.broker_name)

    consumer = PushConsumer(cluster.namesrv_addr, "halves", handle, start_from="earliest")
    consumer.subscribe("halves")
    async with consumer, Producer(cluster.namesrv_addr, "halves") as producer:
        queues = await producer.queues("halves")
        for broker in ("broker-a", "broker-b"):
            queue = next(queue for queue in queues if queue.broker_name == broker)
            await producer.send(Message("halves", b"x"), queue=queue)
            began = time.monotonic()
            await until(lambda broker=broker: broker in received, 10)
            assert time.monotonic() - began < 5


async def test_a_producer_hears_of_it_too(cluster: ProcessCluster) -> None:
    async with AdminClient(cluster.namesrv_addr) as admin, Producer(cluster.namesrv_addr, "slowly") as producer:
        await admin.create_topic(TopicConfig("slowly", 1, 1), broker=cluster.brokers[0].address)

        async def brokers() -> set[str]:
            return {queue.broker_name for queue in await producer.queues("slowly")}

        await until(lambda: _is_known(admin, "slowly"))
        assert await brokers() == {"broker-a"}
        await admin.create_topic(TopicConfig("slowly", 1, 1), broker=cluster.brokers[1].address)

        async def has_both() -> bool:
            return await brokers() == {"broker-a", "broker-b"}

        await until(has_both, 5)


async def _is_known(admin: AdminClient, topic: str) -> bool:
    return topic in await admin.topic_list()


async def test_questions_are_answered_at_once(cluster: ProcessCluster) -> None:
    """With two brokers, a reply via a broker without the requester's heartbeat would be lost."""
    async with Producer(cluster.namesrv_addr, "asking") as producer, Producer(cluster.namesrv_addr, "r") as replying:

        async def answer(message: MessageExt) -> None:
            await replying.send(reply_message(message, message.body.upper()))

        consumer = PushConsumer(cluster.namesrv_addr, "answering", answer, start_from="earliest")
        consumer.subscribe("questions")
        async with consumer:
            began = time.monotonic()
            for number in range(8):
                reply = await producer.request(Message("questions", b"q%d" % number), timeout=10)
                assert reply.body == b"Q%d" % number
            assert time.monotonic() - began < 12


async def test_a_topic_is_made_on_all_masters(cluster: ProcessCluster) -> None:
    async with AdminClient(cluster.namesrv_addr) as admin:
        assert await admin.ensure_topic("ensured", queues=3)
        async with Producer(cluster.namesrv_addr, "producers") as producer:
            both = [
                MessageQueue("ensured", broker, number) for broker in ("broker-a", "broker-b") for number in range(3)
            ]
            assert sorted(await producer.queues("ensured")) == both
        # The topic exists, so nothing is changed.
        assert not await admin.ensure_topic("ensured", queues=5)
        assert (await admin.topic_config(cluster.brokers[0].address, "ensured")).write_queue_nums == 3
        # The topic is missing on one broker.
        await admin.create_topic(TopicConfig("half", 2, 2), broker=cluster.brokers[1].address)
        assert await admin.ensure_topic("half", cluster="DefaultCluster")
        assert {data.write_queue_nums for data in (await admin.topic_route("half")).queue_datas} == {2, 8}
        with pytest.raises(IllegalMessage):
            await admin.ensure_topic("with spaces")
        with pytest.raises(ClientError, match="at least one"):
            await admin.ensure_topic("none", queues=0)


async def test_how_often_a_route_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second while the topic is new, later each 5 s. Never if no further broker can have the topic."""
    now = 0.0
    monkeypatch.setattr(routes_module, "monotonic", lambda: now)
    one, two = route_over({"a": "127.0.0.1:7"}), route_over({"a": "127.0.0.1:7", "b": "127.0.0.1:9"})
    name_server = ScriptedNameServer({"TBW102": two, "narrow": one, "wide": two, "%RETRY%group": one})
    async with serving([name_server]), Producer(name_server.address, "group") as producer:
        routes = Routes(producer.client.api, [name_server.address])
        changed: list[str] = []
        routes.watch(changed.append)
        assert await routes.look_again() == float("inf")
        for topic in ("narrow", "wide", "%RETRY%group"):
            await routes.get(topic)
        name_server.asked.clear()
        assert await routes.look_again() == 1
        assert name_server.asked == ["TBW102", "narrow", "%RETRY%group"]
        now = 61.0
        assert await routes.look_again() == 5
        assert name_server.asked[3:] == ["TBW102", "narrow"]
        now = 63.0
        assert await routes.look_again() == 5
        assert name_server.asked[5:] == []
        now, name_server.routes["narrow"] = 66.0, two
        assert await routes.look_again() == 5
        assert name_server.asked[5:] == ["narrow"]
        assert changed == ["narrow"]
        assert await routes.look_again() == float("inf")
