"""Requests to a broker with as many topics, groups, offsets and messages as an attacker can create."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from every_request import Known, Request
from hostile_support import Peer, Target, UnderAttack, frame, pull_header, send_header
from test_every_request import Attacker, known_to_broker, known_to_name_server
from test_stalls import fill, heartbeat
from wait_until import until

from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.auth import AclRequestHeader, UserRequestHeader
from gantrymq.protocol.headers.namesrv import PutKVConfigRequestHeader, RegisterBrokerRequestHeader
from gantrymq.protocol.headers.offset import QueueRequestHeader, UpdateConsumerOffsetRequestHeader
from gantrymq.protocol.headers.query import QueryConsumeQueueRequestHeader
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader, TopicRequestHeader
from gantrymq.system.clock import now_ms

#: Number of repetitions of each request, and of connections.
_TIMES = 200
_CONNECTIONS = 40
#: Requests that remove what the test needs, or that wait.
_LEFT_OUT = {
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
}


async def create_topics(peer: Peer, count: int) -> None:
    """Creates topics, in lists of the largest allowed length."""
    for start in range(0, count, 1000):
        configs = [TopicConfig(f"topic-{number}", 1, 1) for number in range(start, start + 1000)]
        body = encode_json({"topicConfigList": configs})
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code == ResponseCode.SUCCESS


async def make_large(peer: Peer) -> None:
    """Creates 20,000 topics, 5,000 groups with offsets, and 100,000 messages in one queue."""
    await peer.send("orders", b"x")
    await create_topics(peer, 20_000)
    for start in range(0, 5000, 1000):
        groups = [f"group-{number}" for number in range(start, start + 1000)]
        body = heartbeat(f"attacker@{start}", groups)
        assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
        offsets = [
            UpdateConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=0, commit_offset=1)
            for group in groups
            for topic in ("orders", f"topic-{start}")
        ]
        await asyncio.gather(*(peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header) for header in offsets))
    await fill(peer, "orders", 100_000)


# Alone, the slowest response takes 38 ms. With other tests on the same disk, it took 300 ms.
@pytest.mark.slow
@pytest.mark.alone
async def test_every_request_again_and_again(under_attack: UnderAttack, tmp_path: Path) -> None:
    brokers, name_servers = await known_to_broker(tmp_path / "learning"), await known_to_name_server(tmp_path)
    # A request to the NameServer unregisters the broker.
    async with under_attack(log_may_have=["register with .* fail"]) as broker:
        await make_large(await broker.peer())
        for process, known in ((broker.process, brokers), (broker.name_server, name_servers)):
            for one in known:
                if one.code not in _LEFT_OUT:
                    attackers = [Attacker(process) for _ in range(_CONNECTIONS)]
                    requests = [plausible(one)] * (_TIMES // _CONNECTIONS)
                    await asyncio.gather(*(attacker.ask_all(requests) for attacker in attackers))


def plausible(known: Known) -> Request:
    return Request(known.code, "as it should be", known.fields, known.body)


@pytest.mark.parametrize("queue_nums", [(1 << 31) - 1, 1_000_000])
async def test_a_topic_of_more_queues_than_there_can_be(
    under_attack: UnderAttack, tmp_path: Path, queue_nums: int
) -> None:
    """If the broker creates such a topic at all, each request about it ends soon."""
    brokers = await known_to_broker(tmp_path / "learning")
    async with under_attack() as broker:
        peer = await broker.peer()
        header = CreateTopicRequestHeader(
            topic="orders", default_topic="TBW102", read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=6
        )
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await peer.ask(RequestCode.PULL_MESSAGE, pull_header("orders"))
        for one in brokers:
            if one.code not in _LEFT_OUT:
                fields = one.fields | ({"queueId": "-1"} if "queueId" in one.fields else {})
                requests = [plausible(one), Request(one.code, "all queues", fields, one.body)]
                await Attacker(broker.process).ask_all(requests)


async def test_a_topic_of_as_many_queues_as_there_can_be(under_attack: UnderAttack, tmp_path: Path) -> None:
    """The test uses 4,000 of the queues. Each request about the topic ends soon, and so does its deletion."""
    brokers = await known_to_broker(tmp_path / "learning")
    async with under_attack() as broker:
        peer = await broker.peer()
        header = CreateTopicRequestHeader(
            topic="orders", default_topic="TBW102", read_queue_nums=65_536, write_queue_nums=65_536, perm=6
        )
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == ResponseCode.SUCCESS
        for start in range(0, 4000, 200):
            headers = [send_header("orders", queue_id=queue_id) for queue_id in range(start, start + 200)]
            await asyncio.gather(*(peer.ask(RequestCode.SEND_MESSAGE_V2, header, b"x") for header in headers))
        for one in brokers:
            if one.code not in _LEFT_OUT:
                fields = one.fields | ({"queueId": "-1"} if "queueId" in one.fields else {})
                requests = [plausible(one), Request(one.code, "all queues", fields, one.body)]
                await Attacker(broker.process).ask_all(requests)
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic="orders"))


async def test_topics_that_are_deleted(under_attack: UnderAttack) -> None:
    count = 1000
    async with under_attack() as broker:
        peer = await broker.peer()
        names = [f"topic-{number}" for number in range(count)]
        for start in range(0, count, 50):
            await asyncio.gather(*(peer.send(name, b"x") for name in names[start : start + 50]))
        headers = [TopicRequestHeader(topic=name) for name in names]
        deleted = [peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header) for header in headers]
        assert {answer.code for answer in await asyncio.gather(*deleted)} == {ResponseCode.SUCCESS}


async def test_offsets_of_queues_that_are_none(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        await peer.ask(RequestCode.PULL_MESSAGE, pull_header("orders"))
        for start in range(0, 50_000, 2000):
            headers = [
                UpdateConsumerOffsetRequestHeader(
                    consumer_group="attackers", topic="orders", queue_id=queue_id, commit_offset=1 << 62
                )
                for queue_id in range(start, start + 2000)
            ]
            await asyncio.gather(*(peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header) for header in headers))
        answers = await asyncio.gather(*(peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET) for _ in range(20)))
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}


@pytest.mark.slow
async def test_more_topics_than_one_registration_holds(under_attack: UnderAttack) -> None:
    """Clients could not find a broker whose registration fails."""
    count, name = 80_000, "topic-with-a-name-" + "x" * 90
    async with under_attack() as broker:
        peer = await broker.peer()
        name_server = await broker.peer_of(broker.name_server)
        began = now_ms()
        for start in range(0, count, 1000):
            configs = [TopicConfig(f"{name}-{number}", 1, 1) for number in range(start, start + 1000)]
            await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=encode_json({"topicConfigList": configs}))

        async def is_known() -> bool:
            header = TopicRequestHeader(topic=f"{name}-0")
            return (await name_server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)).code == ResponseCode.SUCCESS

        await until(is_known)
        # Brokers register all topics again every 30 s.
        await until(lambda: now_ms() - began > 35_000, 40)
        assert await is_known()
        assert "register with" not in broker.log


async def test_groups_made_by_pulls(under_attack: UnderAttack) -> None:
    count = 30_000
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        for start in range(0, count, 500):
            headers = [pull_header("orders", consumer_group=f"group-{n}") for n in range(start, start + 500)]
            await asyncio.gather(*(peer.ask(RequestCode.PULL_MESSAGE, header) for header in headers))


@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "2000"}], ids=["level", "timer"])
async def test_many_messages_that_are_due_at_once(under_attack: UnderAttack, properties: dict[str, str]) -> None:
    count = 20_000
    async with under_attack(properties={"messageDelayLevel": "2s"}) as broker:
        peer = await broker.peer()
        await peer.send_many("orders", count, properties)

        async def have_come() -> bool:
            answer = await peer.ask(RequestCode.GET_MAX_OFFSET, QueueRequestHeader(topic="orders", queue_id=0))
            return answer.ext_fields.get("offset") == str(count)

        await until(have_come, 60)


async def test_many_waiting_pulls_whose_time_is_up_at_once(under_attack: UnderAttack) -> None:
    count = 50_000
    async with under_attack() as broker:
        await (await broker.peer()).send("orders", b"x")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(broker.address.rsplit(":", 1)[1]))
        writer.write(frame(RequestCode.PULL_MESSAGE, pull_header("orders", 1, suspend_ms=1500)) * count)
        answered = 0
        while answered < count * 100:
            data = await reader.read(1 << 20)
            assert data
            answered += len(data)
        writer.close()


async def test_all_units_of_a_queue(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        await fill(peer, "orders", 100_000, b"a\x01b\x02")
        for count in (100_000, (1 << 31) - 1):
            header = QueryConsumeQueueRequestHeader(
                topic="orders", queue_id=0, index=0, count=count, consumer_group="attackers"
            )
            for _ in range(5):
                await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, header)


async def test_thousands_of_brokers_at_the_name_server(under_attack: UnderAttack) -> None:
    """One connection registers all of them and then closes."""
    async with under_attack() as broker:
        for end in ("asked", "closed"):
            peer = await broker.peer_of(broker.name_server)
            for start in range(0, 5000, 500):
                headers = [
                    RegisterBrokerRequestHeader(
                        broker_name=f"broker-{number}",
                        broker_addr=f"10.0.{number >> 8}.{number & 255}:10911",
                        cluster_name=f"cluster-{number % 100}",
                        broker_id=number % 3,
                        ha_server_addr="",
                    )
                    for number in range(start, start + 500)
                ]
                await asyncio.gather(*(peer.ask(RequestCode.REGISTER_BROKER, header) for header in headers))
            if end == "asked":
                asked = [peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO) for _ in range(200)]
                assert {answer.code for answer in await asyncio.gather(*asked)} == {ResponseCode.SUCCESS}
            peer.connection.abort()


async def test_thousands_of_values_at_the_name_server(under_attack: UnderAttack) -> None:
    """The NameServer writes each value to a file."""
    async with under_attack() as broker:
        peer = await broker.peer_of(broker.name_server)
        for start in range(0, 1000, 500):
            headers = [
                PutKVConfigRequestHeader(namespace=f"n{number % 7}", key=f"k{number}", value="v" * 1000)
                for number in range(start, start + 500)
            ]
            await asyncio.gather(*(peer.ask(RequestCode.PUT_KV_CONFIG, header) for header in headers))


async def test_hundreds_of_users(under_attack: UnderAttack) -> None:
    """Each user has permissions of its own."""
    policy = encode_json(
        {"policies": [{"entries": [{"resource": "Topic:*", "actions": ["Pub"], "decision": "Allow"}]}]}
    )
    async with under_attack() as broker:
        peer = await broker.peer()
        for start in range(0, 300, 100):
            names = [f"user-{number}" for number in range(start, start + 100)]
            users = [
                peer.ask(
                    RequestCode.AUTH_CREATE_USER,
                    UserRequestHeader(username=name),
                    encode_json({"username": name, "password": "secret"}),
                )
                for name in names
            ]
            assert {answer.code for answer in await asyncio.gather(*users)} == {ResponseCode.SUCCESS}
            acls = [
                peer.ask(RequestCode.AUTH_CREATE_ACL, AclRequestHeader(subject=f"User:{name}"), policy)
                for name in names
            ]
            assert {answer.code for answer in await asyncio.gather(*acls)} == {ResponseCode.SUCCESS}


async def test_a_stop_in_the_middle_of_it(under_attack: UnderAttack) -> None:
    """Producers and long polls continue until the broker closes their connections.

    It stops in time and without errors.
    """
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        request = frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x" * 100)
        messages = encode_batch([(0, b"x", b"")] * 50_000)
        batch = frame(RequestCode.SEND_BATCH_MESSAGE, send_header("orders", batch=True), messages)
        waiting = frame(RequestCode.PULL_MESSAGE, pull_header("innocent", 1 << 40, suspend_ms=60_000))
        floods = (request * 100, batch, waiting * 100, b"")
        attackers = [asyncio.create_task(without_end(broker, data)) for data in floods]
        await peer.send("orders", b"x")
        await broker.probe_no_more()
        broker.process.begin_stop()
        began = now_ms()
        await until(lambda: not broker.process.is_running, 25)
        assert now_ms() - began < 10_000
        await asyncio.gather(*attackers)


async def without_end(broker: Target, data: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(broker.address.rsplit(":", 1)[1]))
    try:
        while True:
            writer.write(data)
            await writer.drain()
            if not await reader.read(1 << 20):
                return
    except ConnectionError:
        return
    finally:
        writer.close()
