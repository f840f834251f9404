"""Clients with the remoting protocol. For them, the proxy is the NameServer and all brokers."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from proxy_support import Rpc, new_topic
from running_proxy import proxy_config
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.request_reply import reply_message
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import BrokerError, NoRouteInfo
from gantrymq.protocol.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.sys_flag import PULL_SUBSCRIPTION
from gantrymq.proxy.proxy import Proxy
from gantrymq.proxy.remoting.link import Link
from gantrymq.proxy.remoting.server import MAX_TOPICS
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Starts a cluster with short retry delays."""
    with EmbeddedCluster(
        transaction_time_out=200, transaction_check_interval=100, message_delay_level=" ".join(["1s"] * 18)
    ) as cluster:
        yield cluster


@pytest.fixture
def here(proxy: Proxy) -> str:
    return proxy.remoting_address


@pytest.fixture
async def producer(here: str) -> AsyncIterator[Producer]:
    async with Producer(here, "producers") as producer:
        yield producer


@pytest.fixture
def group() -> str:
    return f"g_{uuid.uuid4().hex}"


class Inbox:
    """Stores messages. If `fails`, fails for each body the first time."""

    def __init__(self, *, fails: bool = False) -> None:
        self.bodies: list[bytes] = []
        self._failed: set[bytes] = set()
        self._fails = fails

    async def __call__(self, message: MessageExt) -> None:
        if self._fails and message.body not in self._failed:
            self._failed.add(message.body)
            raise RuntimeError("for the first time")
        self.bodies.append(message.body)


def consumer_of(name_server: str, group: str, inbox: Any, topic: str, **options: Any) -> PushConsumer:
    consumer = PushConsumer(name_server, group, inbox, start_from="earliest", **options)
    consumer.subscribe(topic)
    return consumer


async def test_a_route_names_the_proxy(producer: Producer, admin: AdminClient, proxy: Proxy) -> None:
    topic = await new_topic(admin)
    route = await producer.client.routes.get(topic)
    assert [broker.broker_addrs for broker in route.broker_datas] == [{0: proxy.remoting_address}]
    with pytest.raises(NoRouteInfo):
        await producer.client.routes.get("there_is_none")


async def test_sends_and_pulls(producer: Producer, admin: AdminClient, here: str, group: str) -> None:
    topic = await new_topic(admin)
    inbox = Inbox()
    async with consumer_of(here, group, inbox, topic):
        sent = [await producer.send(Message(topic, b"%d" % n)) for n in range(20)]
        assert {result.queue.broker_name for result in sent} == {"broker-a"}
        await producer.send_batch([Message(topic, b"20"), Message(topic, b"21")])
        await until(lambda: len(inbox.bodies) == 22)
    assert sorted(inbox.bodies, key=int) == [b"%d" % n for n in range(22)]


async def test_a_message_of_another_kind_than_its_topic(producer: Producer, admin: AdminClient) -> None:
    normal, delayed, fifo = [await new_topic(admin, kind) for kind in ("NORMAL", "DELAY", "FIFO")]
    for message, actual in (
        (Message(normal, b"later", delay_level=1), "NORMAL, but actual type is DELAY"),
        (Message(delayed, b"now"), "DELAY, but actual type is NORMAL"),
        (Message(fifo, b"out of order"), "FIFO, but actual type is NORMAL"),
    ):
        # The result must be the same with and without a cached topic type.
        for _ in range(2):
            with pytest.raises(BrokerError, match=actual) as error:
                await producer.send(message)
            assert error.value.code == ResponseCode.MESSAGE_ILLEGAL
    await producer.send(Message(delayed, b"later", delay_level=1))


async def test_a_topic_is_made_by_its_first_message(producer: Producer, admin: AdminClient) -> None:
    topic = f"made_{uuid.uuid4().hex}"
    assert (await producer.send(Message(topic, b"first"))).queue_offset == 0
    await until(lambda: admin.topic_stats(topic))


async def test_members_by_the_proxy_and_beside_it_share_queues(
    producer: Producer, admin: AdminClient, cluster: EmbeddedCluster, here: str, group: str
) -> None:
    topic = await new_topic(admin, queues=4)
    inbox = Inbox()
    consumers = [consumer_of(name_server, group, inbox, topic) for name_server in (here, here, cluster.name_server)]
    async with consumers[0], consumers[1], consumers[2]:

        def are_shared() -> bool:
            queues = [queue for consumer in consumers for queue in consumer.assignment if queue.topic == topic]
            return len(queues) == len(set(queues)) == 4 and all(consumer.assignment for consumer in consumers)

        # The brokers notify the consumers of each other, through the proxy.
        await until(are_shared)
        assert len((await admin.consumer_connection(group)).connection_set) == 3

    async def are_gone() -> bool:
        try:
            await admin.consumer_connection(group)
        except BrokerError as e:
            return "not online" in str(e)
        return False

    await until(are_gone)


async def test_a_consumer_that_fails(producer: Producer, admin: AdminClient, here: str, group: str) -> None:
    topic = await new_topic(admin)
    inbox = Inbox(fails=True)
    async with consumer_of(here, group, inbox, topic):
        await producer.send(Message(topic, b"again"))
        await until(lambda: inbox.bodies == [b"again"])


async def test_pops(producer: Producer, admin: AdminClient, here: str, group: str) -> None:
    topic = await new_topic(admin)
    await producer.send(Message(topic, b"popped"))
    consumer = SimpleConsumer(here, group)
    consumer.subscribe(topic)
    async with consumer:
        (message,) = await until(lambda: consumer.receive(timeout=1))
        assert message.body == b"popped"
        await consumer.ack(message)
        assert await consumer.receive(timeout=0.1) == []


async def test_a_broker_shares_out_queues_to_pop(producer: Producer, admin: AdminClient, here: str, group: str) -> None:
    topic = await new_topic(admin)
    await admin.set_consume_mode(group, topic, "POP", cluster="DefaultCluster")
    inbox = Inbox()
    async with consumer_of(here, group, inbox, topic, client_rebalance=False) as consumer:
        await producer.send(Message(topic, b"popped"))
        await until(lambda: inbox.bodies == [b"popped"])
        assert {queue.queue_id for queue in consumer.assignment if queue.topic == topic} == {-1}


async def test_an_ordered_consumer_locks_its_queues(
    producer: Producer, admin: AdminClient, here: str, group: str
) -> None:
    topic = await new_topic(admin, queues=1)
    inbox = Inbox()
    async with consumer_of(here, group, inbox, topic, orderly=True):
        for n in range(10):
            await producer.send(Message(topic, b"%d" % n))
        await until(lambda: len(inbox.bodies) == 10)
    assert inbox.bodies == [b"%d" % n for n in range(10)]


async def test_a_broker_asks_for_the_end_of_a_transaction(
    admin: AdminClient, cluster: EmbeddedCluster, here: str, group: str
) -> None:
    topic = await new_topic(admin, "TRANSACTION")

    class Listener:
        async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
            return arg

        async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
            return LocalTransactionState.COMMIT_MESSAGE

    inbox = Inbox()
    async with (
        TransactionProducer(here, f"p_{group}", Listener()) as producer,
        consumer_of(here, group, inbox, topic),
    ):
        await producer.send_in_transaction(Message(topic, b"told"), LocalTransactionState.COMMIT_MESSAGE)
        await until(lambda: inbox.bodies == [b"told"])
        await producer.send_in_transaction(Message(topic, b"asked"), LocalTransactionState.UNKNOWN)
        await until(lambda: inbox.bodies == [b"told", b"asked"])


async def test_a_reply_comes_back(producer: Producer, admin: AdminClient, here: str, group: str) -> None:
    topic = await new_topic(admin)
    repliers = Producer(here, f"r_{group}")

    async def reply(message: MessageExt) -> None:
        await repliers.send(reply_message(message, b"answer to " + message.body))

    async with repliers, consumer_of(here, group, reply, topic):
        assert (await producer.request(Message(topic, b"question"), timeout=10)).body == b"answer to question"


async def test_what_a_broker_refuses_is_told(producer: Producer, admin: AdminClient) -> None:
    topic = await new_topic(admin)
    route = await producer.client.routes.get(topic)
    address = route.broker_datas[0].master_address
    assert address is not None
    with pytest.raises(BrokerError, match="queueId\\[99\\] is illegal"):
        await producer.client.api.max_offset(address, topic, 99)
    # Administrative requests must be sent to the brokers directly.
    with pytest.raises(BrokerError) as error:
        await BrokerApi(producer.client.remoting).create_topic(address, TopicConfig("another"))
    assert error.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_grpc_on_the_same_port(here: str, admin: AdminClient) -> None:
    topic = await new_topic(admin)
    async with grpc.aio.insecure_channel(here) as channel:
        response = await Rpc(channel, "client").QueryRoute(
            rpc_pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=pb.Endpoints())
        )
        assert response.status.code == pb.OK


async def test_a_client_that_leaves_takes_its_connections_along(
    here: str, admin: AdminClient, proxy: Proxy, group: str
) -> None:
    topic = await new_topic(admin)
    async with consumer_of(here, group, Inbox(), topic) as consumer:
        await until(lambda: consumer.assignment)
        (known,) = (await admin.consumer_connection(group)).connection_set
        for connection in list(proxy.remoting.connections):
            connection.abort()

        async def is_back() -> bool:
            try:
                (connection,) = (await admin.consumer_connection(group)).connection_set
            except BrokerError:
                return False
            return connection.client_addr != known.client_addr

        # The client reconnects by itself, with a new connection to its broker.
        await until(is_back)


# -- several brokers --------------------------------------------------------------------------------------------------


async def test_requests_go_to_the_broker_that_they_name() -> None:
    with EmbeddedCluster(brokers=2) as cluster:
        proxy = Proxy(proxy_config(cluster.name_server))
        await proxy.start()
        remoting = RemotingClient()
        try:
            async with AdminClient(cluster.name_server) as admin, Producer(proxy.remoting_address, "p") as producer:
                await admin.ensure_topic("t", queues=1)
                sent = [await producer.send(Message("t", b"%d" % n)) for n in range(6)]
                counts = {name: [r.queue.broker_name for r in sent].count(name) for name in ("broker-a", "broker-b")}
                assert counts == {"broker-a": 3, "broker-b": 3}
                for name, count in counts.items():
                    fields = {"topic": "t", "queueId": "0", "bname": name}
                    request = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, fields=fields)
                    answer = await remoting.call(proxy.remoting_address, request)
                    assert answer.ext_fields["offset"] == str(count)
                request = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, fields={"topic": "t", "queueId": "0"})
                with pytest.raises(BrokerError, match="bname") as error:
                    await remoting.call(proxy.remoting_address, request)
                assert error.value.code == ResponseCode.VERSION_NOT_SUPPORTED
        finally:
            await remoting.close()
            await proxy.stop()


async def test_no_answer_is_lost_when_many_wait(here: str, admin: AdminClient) -> None:
    topic = await new_topic(admin)
    async with Producer(here, "many") as producer:
        results = await asyncio.gather(*(producer.send(Message(topic, b"%d" % n)) for n in range(1000)))
    assert len({(result.queue, result.queue_offset) for result in results}) == 1000


# -- clients that don't read ------------------------------------------------------------------------------------------


async def test_answers_that_nobody_reads_stay_with_their_broker(
    here: str, admin: AdminClient, cluster: EmbeddedCluster, proxy: Proxy, producer: Producer
) -> None:
    topic = await new_topic(admin, queues=1)
    for _ in range(30):
        await producer.send(Message(topic, os.urandom(9000)))
    await producer.close()
    pulls, answers = 200, 0
    host, _, port = here.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    for opaque in range(pulls):
        header = PullMessageRequestHeader(
            consumer_group="g",
            topic=topic,
            queue_id=0,
            queue_offset=0,
            max_msg_nums=30,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
        )
        request = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
        request.opaque = opaque
        writer.write(request.encode())

    def held_up() -> Connection | None:
        return next((connection for connection in proxy.remoting.connections if connection.is_full), None)

    connection = await until(held_up)
    link: Link = connection.attributes["link"]
    (upstream,) = link.upstreams.values()
    await until(lambda: upstream.is_stopped)
    # Without the limit, it would be 50 MB.
    assert connection.unwritten_bytes < 2 * 1024 * 1024
    while answers < pulls:
        length = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 20), "big")
        await asyncio.wait_for(reader.readexactly(length), 20)
        answers += 1
    writer.close()


async def test_a_heartbeat_has_no_topics_looked_for(here: str) -> None:
    """Otherwise one request of a client could cause ten thousand requests to NameServers."""
    remoting = RemotingClient()
    subscriptions = [SubscriptionData.parse(f"none_{n}", "*") for n in range(MAX_TOPICS)]
    for count, code in ((MAX_TOPICS, ResponseCode.SUCCESS), (MAX_TOPICS + 1, ResponseCode.SYSTEM_ERROR)):
        told = [*subscriptions, *subscriptions[: count - MAX_TOPICS]]
        data = HeartbeatData("client", consumer_data_set=[ConsumerData("g", subscription_data_set=told)])
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_json(data))
        response = await remoting.invoke(here, request)
        assert response.code == code
        # Clients take the brokers' fields as support for version 2, which needs the response of each broker.
        assert not response.ext_fields
    await remoting.close()
