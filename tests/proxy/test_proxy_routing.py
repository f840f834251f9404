"""QueryRoute, QueryAssignment, Heartbeat and NotifyClientTermination."""

from __future__ import annotations

import pytest
from proxy_support import Rpc, make_topic, message, new_topic, producer_settings
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.queue_selector import consistent_hash
from gantrymq.limits import PROXY_TRANSACTIONS
from gantrymq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.proxy.call import METHODS
from gantrymq.proxy.clients import Client, Clients, Watcher
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.membership import Membership
from gantrymq.proxy.producer.message_queue_selector import MessageQueueSelector
from gantrymq.proxy.producer.transactions import Half, Transactions
from gantrymq.proxy.proxy import Proxy
from gantrymq.proxy.routing import _permissions
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb

ENDPOINTS = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="203.0.113.7", port=1234)])


def route_request(topic: str) -> rpc_pb.QueryRouteRequest:
    return rpc_pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=ENDPOINTS)


async def test_a_route_names_the_proxy_as_the_client_reached_it(rpc: Rpc, admin: AdminClient, proxy: Proxy) -> None:
    topic = await new_topic(admin, "FIFO", queues=3)
    response = await rpc.QueryRoute(route_request(topic))
    assert response.status.code == pb.OK
    assert [queue.id for queue in response.message_queues] == [0, 1, 2]
    port = int(proxy.address.rpartition(":")[2])
    for queue in response.message_queues:
        assert (queue.topic.name, queue.permission) == (topic, pb.READ_WRITE)
        assert list(queue.accept_message_types) == [pb.FIFO]
        assert queue.broker.endpoints == pb.Endpoints(
            scheme=pb.IPv4, addresses=[pb.Address(host="203.0.113.7", port=port)]
        )


@pytest.mark.parametrize("kind", ["NORMAL", "DELAY", "TRANSACTION", "MIXED"])
async def test_a_route_says_what_the_topic_takes(rpc: Rpc, admin: AdminClient, kind: str) -> None:
    topic = await new_topic(admin, kind)
    response = await rpc.QueryRoute(route_request(topic))
    names = ["NORMAL", "FIFO", "DELAY", "TRANSACTION"] if kind == "MIXED" else [kind]
    assert [pb.MessageType.Name(t) for t in response.message_queues[0].accept_message_types] == names


async def test_a_route_of_no_topic(rpc: Rpc) -> None:
    status = (await rpc.QueryRoute(route_request("proxy_nowhere"))).status
    assert status.code == pb.TOPIC_NOT_FOUND
    # As Java's proxy.
    remark = "No topic route info in name server for the topic: proxy_nowhere"
    assert status.message.startswith(f"CODE: 17  DESC: {remark}")
    status = (await rpc.QueryRoute(route_request("a b"))).status
    assert (status.code, status.message) == (
        pb.ILLEGAL_TOPIC,
        "The specified topic[a b] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
    )


@pytest.mark.parametrize(
    ("read", "write", "perm", "expected"),
    [
        (2, 2, 6, [pb.READ_WRITE] * 2),
        (3, 1, 6, [pb.READ, pb.READ, pb.READ_WRITE]),
        (1, 3, 6, [pb.WRITE, pb.WRITE, pb.READ_WRITE]),
        (2, 3, 4, [pb.READ] * 2),
        (2, 3, 2, [pb.WRITE] * 3),
        (2, 3, 0, [pb.NONE] * 3),
        (0, 0, 0, [pb.NONE]),
    ],
)
def test_permissions_of_queues(read: int, write: int, perm: int, expected: list[int]) -> None:
    assert list(_permissions(QueueData("b", read, write, perm))) == expected


async def assigned(rpc: Rpc, topic: str, group: str) -> rpc_pb.QueryAssignmentResponse:
    return await rpc.QueryAssignment(
        rpc_pb.QueryAssignmentRequest(topic=pb.Resource(name=topic), group=pb.Resource(name=group), endpoints=ENDPOINTS)
    )


async def test_brokers_share_out_the_queues_unless_order_is_kept(rpc: Rpc, admin: AdminClient) -> None:
    topic = await new_topic(admin, queues=3)
    await admin.create_group(SubscriptionGroupConfig("GID_any"), cluster="DefaultCluster")
    await admin.create_group(
        SubscriptionGroupConfig("GID_fifo", consume_message_orderly=True), cluster="DefaultCluster"
    )
    for group, ids in (("GID_any", [-1]), ("GID_fifo", [0, 1, 2])):
        response = await assigned(rpc, topic, group)
        assert response.status.code == pb.OK
        assert [each.message_queue.id for each in response.assignments] == ids
        assert all(each.message_queue.permission == pb.READ_WRITE for each in response.assignments)


async def test_a_topic_without_readable_queues(rpc: Rpc, admin: AdminClient) -> None:
    topic = await new_topic(admin)
    await make_topic(admin, TopicConfig(topic, perm=2))
    response = await assigned(rpc, topic, "GID_any")
    assert (response.status.code, response.status.message) == (pb.FORBIDDEN, "no readable queue")
    await make_topic(admin, TopicConfig(topic + "_r", perm=4))
    request = rpc_pb.SendMessageRequest(messages=[message(topic + "_r")])
    status = (await rpc.SendMessage(request)).status
    assert (status.code, status.message) == (pb.FORBIDDEN, "no writable queue")


# -- registered clients -----------------------------------------------------------------------------------------------


async def test_a_client_comes_by_its_settings_and_goes_when_it_says_so(
    rpc: Rpc, admin: AdminClient, proxy: Proxy
) -> None:
    topic = await new_topic(admin)
    heartbeat = rpc_pb.HeartbeatRequest(client_type=pb.PRODUCER)
    status = (await rpc.Heartbeat(heartbeat)).status
    assert (status.code, status.message) == (
        pb.UNRECOGNIZED_CLIENT_TYPE,
        "cannot find client settings for this client",
    )
    stream = rpc.Telemetry(timeout=None)
    await stream.write(producer_settings(topic))
    assert (await stream.read()).settings.publishing.max_body_size == 4 * 1024 * 1024
    assert (await rpc.Heartbeat(heartbeat)).status.code == pb.OK
    assert [client.client_id for client in proxy.clients.producers(topic)] == [rpc.client_id]
    assert (await rpc.NotifyClientTermination(rpc_pb.NotifyClientTerminationRequest())).status.code == pb.OK
    assert not proxy.clients.producers(topic)
    assert (await rpc.Heartbeat(heartbeat)).status.code == pb.UNRECOGNIZED_CLIENT_TYPE


async def test_a_producer_is_known_to_its_brokers(rpc: Rpc, admin: AdminClient) -> None:
    topic = await new_topic(admin, "TRANSACTION")
    stream = rpc.Telemetry(timeout=None)
    await stream.write(producer_settings(topic))
    await stream.read()
    addresses = [broker.master_address for broker in (await admin.topic_route(topic)).broker_datas]

    async def is_known() -> bool:
        return topic in await admin.producers(addresses[0] or "")

    await until(is_known)


class _Stream:
    """The attributes of a stream that the table of clients needs."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.peer = "127.0.0.1:1"
        self.user = ""
        self.connection = None
        self.metadata = {"x-mq-language": "GO", "x-mq-client-version": "5"}


def consumer_of(group: str) -> pb.Settings:
    return pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=pb.Resource(name=group)))


def test_the_table_of_clients() -> None:
    clients = Clients()
    came: list[tuple[str, str]] = []
    gone: list[str] = []

    def changed(client: Client) -> None:
        came.append((client.client_id, client.group))

    clients.watch(Watcher(changed, lambda client: gone.append(client.client_id)))
    one, two = _Stream("one"), _Stream("two")
    clients.register(one, consumer_of("g"), 0.0)  # type: ignore[arg-type]
    clients.register(two, consumer_of("g"), 1.0)  # type: ignore[arg-type]
    assert [client.client_id for client in clients.consumers("g")] == ["one", "two"]
    client = clients.register(one, consumer_of("h"), 2.0)  # type: ignore[arg-type]
    assert (client.language, client.version, client.telemetry) == ("GO", "5", one)
    assert [client.client_id for client in clients.consumers("g")] == ["two"]
    assert came == [("one", "g"), ("two", "g"), ("one", "h")]
    clients.stream_over(_Stream("one"))  # type: ignore[arg-type]
    assert client.telemetry is one
    clients.stream_over(one)  # type: ignore[arg-type]
    assert client.telemetry is None
    assert clients.heard("two", 5.0) is not None
    assert [client.client_id for client in clients.expire(3.0)] == ["one"]
    assert gone == ["one"]
    assert clients.remove("one") is None
    assert clients.remove("two") is not None
    assert not len(clients)
    assert not clients.consumers("g")


async def test_a_silent_client_is_taken_for_gone(rpc: Rpc, admin: AdminClient, proxy: Proxy) -> None:
    proxy.config.channel_expired_timeout = 40
    membership = Membership(proxy.config, proxy.clients, proxy.jobs)
    membership.start()
    topic = await new_topic(admin)
    stream = rpc.Telemetry(timeout=None)
    await stream.write(producer_settings(topic))
    await stream.read()
    await until(lambda: not proxy.clients.producers(topic))
    await membership.stop()


async def test_every_method_is_answered(proxy: Proxy) -> None:
    assert proxy.methods == {method.name for method in METHODS.values()}


# -- queues and halves ------------------------------------------------------------------------------------------------


def test_consistent_hash_is_guavas() -> None:
    """Values of Guava's own test, HashingTest.testConsistentHash_linearCongruentialGeneratorCompatibility."""
    golden_100 = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
    assert [consistent_hash(n, 100) for n in range(20)] == golden_100
    assert consistent_hash(10863919174838991, 11) == 6
    assert consistent_hash(2016238256797177309, 11) == 3
    assert consistent_hash(1673758223894951030, 11) == 5
    assert consistent_hash(2, 100001) == 80343
    assert consistent_hash(2201, 100001) == 22152
    assert consistent_hash(2202, 100001) == 15018


def test_queues_take_turns() -> None:
    route = TopicRouteData(
        [QueueData("b", 2, 2, 6), QueueData("a", 1, 1, 6), QueueData("c", 9, 9, 4)],
        [BrokerData("x", name, {0: "h:1"}) for name in "abc"],
    )
    choice = MessageQueueSelector()
    chosen = [choice.choose("t", route, "") for _ in range(6)]
    assert chosen[:3] == chosen[3:]
    assert sorted((q.broker_name, q.queue_id) for q in chosen[:3] if q) == [("a", 0), ("b", 0), ("b", 1)]
    assert choice.choose("t", TopicRouteData(), "") is None


def test_halves_are_remembered_for_a_while() -> None:
    transactions = Transactions(ProxyConfig())
    first, second = (Half("id", "t", "b", n, 100 * n) for n in (1, 2))
    transactions.remember(first, 0.0)
    transactions.remember(second, 1.0)
    transactions.remember(first, 2.0)
    assert transactions.take("t", "other", 3.0) is None
    assert transactions.take("other", "id", 3.0) is None
    assert transactions.take("t", "id", 31.5) == first
    assert transactions.take("t", "id", 31.5) is None
    for n in range(5000):
        transactions.remember(Half(f"{n}", "t", "b", n, n), 100.0 + n)
    assert len(transactions) < 2100


def test_so_many_transactions_are_remembered() -> None:
    transactions = Transactions(ProxyConfig())
    for n in range(PROXY_TRANSACTIONS + 1):
        transactions.remember(Half(f"{n}", "t", "b", n, n), 1.0)
    assert len(transactions) == PROXY_TRANSACTIONS
    assert transactions.take("t", "0", 1.0) is None
    assert transactions.take("t", f"{PROXY_TRANSACTIONS}", 1.0) is not None
