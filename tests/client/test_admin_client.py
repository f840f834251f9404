"""AdminClient as a library, against a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

import pytest
from constants import change_constant
from wait_until import until

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.admin.trace import decode_trace
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BodyError, BrokerError, ClientError, ConnectFailed, NoRouteInfo, PartialFailure
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import BrokerRequestHeader, RegisterBrokerRequestHeader
from gantrymq.protocol.message import Message, MessageExt, MessageQueue

CLUSTER = "DefaultCluster"
#: An address without a server.
DEAD = "127.0.0.1:1"
T = TypeVar("T")


@pytest.fixture
async def admin(name_server: str) -> AsyncIterator[AdminClient]:
    async with AdminClient(name_server) as admin:
        # Java's broker opens its port some time before it registers.
        await answered(lambda: admin.masters_of(CLUSTER), bool)
        yield admin


@pytest.fixture
async def master(admin: AdminClient) -> str:
    """Returns the only broker's host:port."""
    (address,) = await admin.masters_of(CLUSTER)
    return address


async def answered(ask: Callable[[], Awaitable[T]], holds: Callable[[T], object]) -> T:
    """Returns the first response that `holds`. Repeats the request after errors of the cluster."""

    async def held() -> tuple[T] | tuple[()]:
        try:
            answer = await ask()
        except (BrokerError, ClientError) as e:
            if isinstance(e, BrokerError) and e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return ()
        return (answer,) if holds(answer) else ()

    (answer,) = await until(held)
    return answer


async def make_topic(admin: AdminClient, topic: str, queue_nums: int = 2) -> None:
    await admin.create_topic(TopicConfig(topic, queue_nums, queue_nums), cluster=CLUSTER)
    await answered(lambda: admin.topic_route(topic), lambda route: route.queue_datas)


async def fill(producer: Producer, topic: str, count: int, queue_id: int = 0) -> list[str]:
    """Sends `count` messages with the keys key-0, key-1 and so on to one queue. Returns their unique keys."""
    queue = MessageQueue(topic, "broker-a", queue_id)
    return [
        (await producer.send(Message(topic, b"body %d" % n, tags="TagA", keys=f"key-{n}"), queue=queue)).msg_id
        for n in range(count)
    ]


# -- clusters and topics ----------------------------------------------------------------------------------------


async def test_a_cluster_and_its_brokers(admin: AdminClient, master: str) -> None:
    info = await admin.cluster_info()
    assert info.cluster_addr_table == {CLUSTER: ["broker-a"]}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: master}
    assert await admin.broker_address("broker-a") == master


async def test_a_topic_from_its_making_to_its_end(admin: AdminClient, master: str, unique: str) -> None:
    assert await admin.create_topic(TopicConfig(unique, 3, 5), cluster=CLUSTER) == [master]
    route = await answered(lambda: admin.topic_route(unique), lambda route: route.queue_datas)
    assert [(q.broker_name, q.read_queue_nums, q.write_queue_nums, q.perm) for q in route.queue_datas] == [
        ("broker-a", 3, 5, 6)
    ]
    assert unique in await admin.topic_list()
    assert unique in await admin.topics_of_cluster(CLUSTER)
    assert await admin.clusters_of_topic(unique) == [CLUSTER]
    assert (await admin.topic_config(master, unique)).write_queue_nums == 5
    assert (await admin.topic_configs(master))[unique].read_queue_nums == 3

    assert await admin.update_topic_perm(unique, 4, broker=master) == {master: 6}
    changed = await admin.topic_config(master, unique)
    assert (changed.perm, changed.read_queue_nums, changed.write_queue_nums) == (4, 3, 5)

    assert await admin.delete_topic(unique, CLUSTER) == [master]
    with pytest.raises(NoRouteInfo):
        await admin.topic_route(unique)
    with pytest.raises(BrokerError) as refused:
        await admin.topic_config(master, unique)
    assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST


async def test_many_topics_at_once(admin: AdminClient, master: str, unique: str) -> None:
    configs = [TopicConfig(f"{unique}_{n}", n + 1, n + 1) for n in range(3)]
    assert await admin.create_topics(configs, broker=master) == [master]
    made = await admin.topic_configs(master)
    assert [made[config.topic_name].write_queue_nums for config in configs] == [1, 2, 3]


async def test_changed_permission_keeps_attributes(admin: AdminClient, master: str, unique: str) -> None:
    config = TopicConfig(unique, 2, 2, attributes={"+message.type": "NORMAL"})
    await admin.create_topic(config, broker=master)
    await admin.update_topic_perm(unique, 2, broker=master)
    assert (await admin.topic_config(master, unique)).attributes == {"message.type": "NORMAL"}


async def test_topic_stats_count_messages(admin: AdminClient, producer: Producer, unique: str) -> None:
    await make_topic(admin, unique)
    before_ms = int(time.time() * 1000) - 1
    await fill(producer, unique, 3, queue_id=1)
    full = MessageQueue(unique, "broker-a", 1)
    stats = await answered(lambda: admin.topic_stats(unique), lambda stats: stats.offset_table[full].max_offset == 3)
    assert stats.offset_table[full].min_offset == 0
    assert before_ms < stats.offset_table[full].last_update_timestamp <= time.time() * 1000
    assert stats.offset_table[MessageQueue(unique, "broker-a", 0)].max_offset == 0


async def test_one_of_cluster_and_broker_is_needed(admin: AdminClient, master: str) -> None:
    with pytest.raises(ClientError, match="either a cluster or a broker"):
        await admin.create_topic(TopicConfig("T"))
    with pytest.raises(ClientError, match="either a cluster or a broker"):
        await admin.create_topic(TopicConfig("T"), cluster=CLUSTER, broker=master)


async def test_an_unknown_cluster_names_the_known(admin: AdminClient, name_server: str) -> None:
    with pytest.raises(ClientError, match=f"no cluster 'Nowhere' at {name_server}, which knows {CLUSTER}"):
        await admin.masters_of("Nowhere")
    with pytest.raises(ClientError, match="no broker 'broker-z'"):
        await admin.broker_address("broker-z")


async def test_a_failing_master_is_named_and_the_others_did_it(admin: AdminClient, master: str, unique: str) -> None:
    header = {"broker_name": "broker-dead", "broker_addr": DEAD, "cluster_name": CLUSTER, "broker_id": 0}
    registration = RegisterBrokerRequestHeader(**header, ha_server_addr=DEAD)
    body = encode_register_body(RegisterBrokerBody(TopicConfigTable()))
    (name_server,) = admin.name_servers
    await transport_of(admin).remoting.call(
        name_server, RemotingCommand.request(RequestCode.REGISTER_BROKER, registration, body)
    )
    try:
        with pytest.raises(PartialFailure) as failure:
            await admin.create_topic(TopicConfig(unique, 1, 1), cluster=CLUSTER)
    finally:
        await transport_of(admin).remoting.call(
            name_server, RemotingCommand.request(RequestCode.UNREGISTER_BROKER, BrokerRequestHeader(**header))
        )
    assert failure.value.done == [master]
    assert list(failure.value.failed) == [DEAD]
    assert isinstance(failure.value.failed[DEAD], ConnectFailed)
    assert f"creating topic {unique} failed on {DEAD}" in str(failure.value)
    assert f"done on {master}" in str(failure.value)
    assert (await admin.topic_config(master, unique)).write_queue_nums == 1


async def test_the_next_name_server_is_asked(name_server: str) -> None:
    async with AdminClient([DEAD, name_server]) as admin:
        assert CLUSTER in (await admin.cluster_info()).cluster_addr_table
        with pytest.raises(PartialFailure) as failure:
            await admin.kv_put("namespace", "key", "value")
        assert failure.value.done == [name_server]
    async with AdminClient(DEAD) as admin:
        with pytest.raises(ConnectFailed, match=DEAD):
            await admin.cluster_info()


async def test_a_broker_can_be_asked_without_a_name_server(master: str) -> None:
    async with AdminClient() as admin:
        assert (await admin.broker_config(master))["brokerName"] == "broker-a"
        with pytest.raises(ClientError, match="no NameServer"):
            await admin.cluster_info()
        with pytest.raises(ClientError, match="no NameServer"):
            await admin.topic_route("T")


# -- NameServers ------------------------------------------------------------------------------------------------


async def test_kv_config(admin: AdminClient, unique: str) -> None:
    assert await admin.kv_get(unique, "key") is None
    assert await admin.kv_list(unique) == {}
    await admin.kv_put(unique, "key", "value; =: ü")
    assert await admin.kv_get(unique, "key") == "value; =: ü"
    assert await admin.kv_list(unique) == {"key": "value; =: ü"}
    await admin.kv_delete(unique, "key")
    assert await admin.kv_get(unique, "key") is None


async def test_order_conf_of_one_broker_keeps_the_others(admin: AdminClient, unique: str) -> None:
    assert await admin.order_conf(unique) is None
    await admin.put_order_conf(unique, "broker-a:4;broker-b:8")
    assert await admin.merge_order_conf(unique, "broker-a", 6) == "broker-a:6;broker-b:8"
    assert await admin.order_conf(unique) == "broker-a:6;broker-b:8"
    await admin.delete_order_conf(unique)
    assert await admin.order_conf(unique) is None


async def test_write_permission_is_wiped_and_added(admin: AdminClient, name_server: str, unique: str) -> None:
    await make_topic(admin, unique)
    wiped = await admin.wipe_write_perm("broker-a")
    try:
        assert wiped[name_server] > 0
        assert (await admin.topic_route(unique)).queue_datas[0].perm == 4
    finally:
        added = await admin.add_write_perm("broker-a")
    assert added[name_server] > 0
    assert (await admin.topic_route(unique)).queue_datas[0].perm == 6


async def test_name_server_configuration(admin: AdminClient, name_server: str) -> None:
    before = (await admin.name_server_configs())[name_server]
    assert before["returnOrderTopicConfigToBroker"] == "true"
    await admin.update_name_server_configs({"returnOrderTopicConfigToBroker": "false"})
    assert (await admin.name_server_configs())[name_server]["returnOrderTopicConfigToBroker"] == "false"
    await admin.update_name_server_configs({"returnOrderTopicConfigToBroker": "true"})


# -- brokers ----------------------------------------------------------------------------------------------------


async def test_broker_configuration(admin: AdminClient, master: str) -> None:
    before = await admin.broker_config(master)
    assert before["brokerClusterName"] == CLUSTER
    value = "90000" if before["channelExpiredTimeout"] != "90000" else "91000"
    await admin.update_broker_config([master], {"channelExpiredTimeout": value})
    assert (await admin.broker_config(master))["channelExpiredTimeout"] == value
    await admin.update_broker_config([master], {"channelExpiredTimeout": before["channelExpiredTimeout"]})


async def test_runtime_info(admin: AdminClient, master: str) -> None:
    info = await admin.runtime_info(master)
    assert info["brokerVersionDesc"].startswith("V")
    assert 0 <= float(info["commitLogDiskRatio"]) <= 1


async def test_housekeeping_is_ordered(admin: AdminClient, master: str) -> None:
    await admin.clean_expired_consume_queues([master])
    await admin.delete_expired_commit_log([master])
    await admin.clean_unused_topics([master])


async def test_a_consume_queue(admin: AdminClient, producer: Producer, master: str, unique: str) -> None:
    await make_topic(admin, unique)
    await fill(producer, unique, 3)
    found = await answered(lambda: admin.consume_queue(master, unique, 0, 1), lambda body: body.max_queue_index == 3)
    assert found.min_queue_index == 0
    assert [unit.tags_code for unit in found.queue_data] == [2598919, 2598919]  # "TagA".hashCode()
    assert found.queue_data[0].physic_offset < found.queue_data[1].physic_offset


async def test_counters_of_a_broker(admin: AdminClient, producer: Producer, master: str, unique: str) -> None:
    await make_topic(admin, unique)
    assert await admin.broker_stats(master, "TOPIC_PUT_NUMS", unique) is None
    await fill(producer, unique, 2)
    await answered(lambda: admin.broker_stats(master, "TOPIC_PUT_NUMS", unique), lambda data: data is not None)


# -- groups -----------------------------------------------------------------------------------------------------


async def test_a_group_from_its_making_to_its_end(admin: AdminClient, master: str, unique: str) -> None:
    assert await admin.group_config(master, unique) is None
    config = SubscriptionGroupConfig(unique, retry_max_times=3, consume_broadcast_enable=False)
    assert await admin.create_group(config, cluster=CLUSTER) == [master]
    made = await admin.group_config(master, unique)
    assert made is not None
    assert (made.retry_max_times, made.consume_broadcast_enable, made.consume_enable) == (3, False, True)
    assert await admin.delete_group(unique, cluster=CLUSTER, remove_offsets=True) == [master]
    assert await admin.group_config(master, unique) is None


async def test_many_groups_at_once(admin: AdminClient, master: str, unique: str) -> None:
    configs = [SubscriptionGroupConfig(f"{unique}_{n}", retry_max_times=n) for n in range(3)]
    await admin.create_groups(configs, broker=master)
    made = await admin.group_configs(master)
    assert [made[config.group_name].retry_max_times for config in configs] == [0, 1, 2]


async def test_progress_of_a_group(admin: AdminClient, producer: Producer, master: str, unique: str) -> None:
    await make_topic(admin, unique)
    await fill(producer, unique, 5)
    group = f"{unique}_group"
    await admin.create_group(SubscriptionGroupConfig(group), broker=master)
    await transport_of(admin).api.update_offset(master, group, unique, 0, 2)
    queue = MessageQueue(unique, "broker-a", 0)
    stats = await answered(
        lambda: admin.consume_stats(group, unique), lambda stats: stats.offset_table[queue].broker_offset == 5
    )
    assert stats.offset_table[queue].consumer_offset == 2
    assert stats.total_diff == 3
    assert await admin.groups_of_topic(unique) == [group]
    spans = {span.message_queue.queue: span for span in await admin.consume_time_spans(group, unique)}
    assert 0 < spans[queue].min_time_stamp <= spans[queue].consume_time_stamp <= spans[queue].max_time_stamp
    of_broker = (await admin.broker_consume_stats(master)).by_group[group]
    assert [one.offset_table[queue].consumer_offset for one in of_broker if queue in one.offset_table] == [2]


async def test_clients_that_are_connected(
    admin: AdminClient, producer: Producer, master: str, name_server: str, unique: str
) -> None:
    await make_topic(admin, unique)

    async def ignore(message: MessageExt) -> None:
        pass

    consumer = PushConsumer(name_server, unique, ignore)
    consumer.subscribe(unique, tags="TagA || TagB")
    async with consumer:
        # Without a retry topic, the NameServer has no route of a new group. Java's broker stores the connection before
        # the subscription (ConsumerManager.registerConsumer).
        connection = await answered(
            lambda: admin.consumer_connection(unique, master), lambda found: unique in found.subscription_table
        )
        assert [one.language for one in connection.connection_set] == ["PYTHON"]
        assert connection.subscription_table[unique].sub_string == "TagA || TagB"
        assert connection.message_model == "CLUSTERING"
        await fill(producer, unique, 1)
        await producer.client.heartbeat()
        producers = await admin.producers(master)
        assert producer.group in producers
        of_topic = await admin.producer_connection(producer.group, unique)
        assert {one.client_id for one in of_topic.connection_set} <= {p.client_id for p in producers[producer.group]}
    with pytest.raises(BrokerError) as refused:
        await admin.consumer_connection(unique, master)
    assert refused.value.code == ResponseCode.CONSUMER_NOT_ONLINE


# -- offsets ----------------------------------------------------------------------------------------------------


async def test_offsets_go_back_and_to_the_end(admin: AdminClient, producer: Producer, master: str, unique: str) -> None:
    await make_topic(admin, unique)
    group = f"{unique}_group"
    await admin.create_group(SubscriptionGroupConfig(group), broker=master)
    queue, other = MessageQueue(unique, "broker-a", 0), MessageQueue(unique, "broker-a", 1)
    await fill(producer, unique, 4)
    assert await answered(lambda: admin.skip_accumulated(group, unique), lambda offsets: offsets[queue] == 4) == {
        queue: 4,
        other: 0,
    }
    assert await transport_of(admin).api.query_offset(master, group, unique, 0) == 4
    assert await admin.reset_offset(group, unique, 0) == {queue: 0, other: 0}
    assert await transport_of(admin).api.query_offset(master, group, unique, 0) == 0
    await admin.reset_queue_offset(master, group, unique, 0, 3)
    assert await transport_of(admin).api.query_offset(master, group, unique, 0) == 3


async def test_offsets_are_cloned(admin: AdminClient, producer: Producer, master: str, unique: str) -> None:
    await make_topic(admin, unique)
    await fill(producer, unique, 3)
    source, target = f"{unique}_a", f"{unique}_b"
    with pytest.raises(ClientError, match="has no offsets"):
        await admin.clone_offsets(source, target, unique)
    await admin.create_group(SubscriptionGroupConfig(source), broker=master)
    await admin.create_group(SubscriptionGroupConfig(target), broker=master)
    await transport_of(admin).api.update_offset(master, source, unique, 0, 2)
    cloned = await admin.clone_offsets(source, target, unique)
    assert cloned == {MessageQueue(unique, "broker-a", 0): 2}
    assert await admin.committed_offset(master, target, unique, 0) == 2
    assert await admin.committed_offset(master, target, unique, 1) is None


# -- messages ---------------------------------------------------------------------------------------------------


async def test_a_message_by_its_place(admin: AdminClient, producer: Producer, unique: str) -> None:
    await make_topic(admin, unique)
    sent = await producer.send(Message(unique, b"hello"), queue=MessageQueue(unique, "broker-a", 1))
    assert (await admin.message_by_offset_id(sent.offset_msg_id)).body == b"hello"
    found = await answered(lambda: admin.message_at(sent.queue, sent.queue_offset), lambda message: message is not None)
    assert found is not None
    assert found.msg_id == sent.msg_id
    assert await admin.message_at(sent.queue, 7) is None
    by_id = await admin.message_by_id(unique, sent.offset_msg_id)
    assert by_id is not None
    assert by_id.queue_id == 1


async def test_messages_by_key(admin: AdminClient, producer: Producer, unique: str) -> None:
    await make_topic(admin, unique)
    ids = await fill(producer, unique, 3)
    found = await answered(lambda: admin.messages_by_key(unique, "key-1"), lambda messages: messages)
    assert [(message.body, message.msg_id) for message in found] == [(b"body 1", ids[1])]
    by_id = await answered(lambda: admin.message_by_id(unique, ids[2]), lambda message: message is not None)
    assert by_id is not None
    assert by_id.body == b"body 2"
    assert [message.queue_offset for message in await admin.messages_by_unique_key(unique, ids[0])] == [0]
    assert await admin.messages_by_key(unique, "no such key") == []
    assert await admin.messages_by_key(unique, "key-1", end=datetime(1990, 1, 1, tzinfo=UTC)) == []


async def test_messages_of_a_queue(admin: AdminClient, producer: Producer, unique: str) -> None:
    await make_topic(admin, unique)
    queue = MessageQueue(unique, "broker-a", 0)
    await fill(producer, unique, 70)
    await answered(lambda: admin.message_at(queue, 69), lambda message: message is not None)
    assert [m.queue_offset async for m in admin.messages_of_queue(queue, 3, 67)] == list(range(3, 67))
    assert [m.queue_offset async for m in admin.messages_of_queue(queue, 0, 500)] == list(range(70))
    assert [m async for m in admin.messages_of_queue(queue, 0, 70, "TagB")] == []


async def test_who_has_consumed_a_message(
    admin: AdminClient,
    producer: Producer,
    master: str,
    name_server: str,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change_constant(monkeypatch, "assigned_queues.COMMIT_INTERVAL_S", 0.1)
    await make_topic(admin, unique)
    consumed = asyncio.Event()

    async def consume(message: MessageExt) -> None:
        consumed.set()

    sent = await producer.send(Message(unique, b"hello"), queue=MessageQueue(unique, "broker-a", 0))
    consumer = PushConsumer(name_server, unique, consume, start_from="earliest")
    consumer.subscribe(unique)
    # The first failed message would create this topic, too.
    await make_topic(admin, f"%RETRY%{unique}", 1)
    message = await admin.message_by_offset_id(sent.offset_msg_id)
    async with consumer:
        await until(consumed.is_set)
        track = await answered(
            lambda: admin.message_track(message), lambda track: track and track[0].status == "CONSUMED"
        )
        assert [(one.consumer_group, one.status) for one in track] == [(unique, "CONSUMED")]
    track = await admin.message_track(message)
    assert [(one.consumer_group, one.status) for one in track] == [(unique, "NOT_ONLINE")]


async def test_a_trace(admin: AdminClient, producer: Producer, unique: str) -> None:
    topic = f"{unique}_trace"
    await make_topic(admin, topic, 1)
    lines = [
        [
            "Pub",
            "1700000000000",
            "DefaultRegion",
            "p",
            "T",
            "ID1",
            "TagA",
            "k",
            "127.0.0.1:10911",
            "5",
            "7",
            "0",
            "00",
            "true",
            "127.0.0.1",
        ],
        ["SubBefore", "1700000000100", "DefaultRegion", "c", "request", "ID1", "0", "k"],
        ["SubAfter", "request", "ID1", "9", "false", "k", "0", "1700000000109", "c"],
        ["SubAfter", "request", "ID2", "9", "true", "k", "0", "1700000000109", "c"],
    ]
    body = "".join("\x01".join(line) + "\x02" for line in lines).encode()
    await producer.send(Message(topic, body, keys=["ID1", "ID2"]))
    views = await answered(lambda: admin.message_trace("ID1", topic), lambda views: views)
    assert [(v.msg_type, v.group, v.timestamp, v.cost_time, v.success) for v in views] == [
        ("Pub", "p", 1700000000000, 7, True),
        ("SubAfter", "c", 1700000000109, 9, False),
    ]


@pytest.mark.parametrize("line", ["Pub\x01x", "SubAfter\x011", "Pub" + "\x01a" * 14])
def test_a_broken_trace_has_its_own_error(line: str) -> None:
    with pytest.raises(BodyError, match="trace"):
        decode_trace(line.encode(), "127.0.0.1:1")
