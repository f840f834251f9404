"""SQL92 subscriptions in heartbeats, pulls, long polling and retried messages.

The tests also cover `consumerFilter.json`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broker_support import Peer, config, set_request_slice
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.broker.broker import Broker
from gantrymq.broker.tables.consumer_filters import KEPT_MS, ConsumerFilters
from gantrymq.broker.tables.persistence import TablePersistence
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.connection import CheckClientRequestBody
from gantrymq.protocol.bodies.heartbeat import BROADCASTING, CLUSTERING, ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.group import UnregisterClientRequestHeader
from gantrymq.protocol.headers.pop import PopMessageRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.sys_flag import PULL_SUSPEND
from gantrymq.remoting.client import RemotingClient

#: Numbers for expressions that no other test has compiled.
NUMBERS = itertools.count()


def bodies(response: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_messages(response.body)]


def sql(topic: str, expression: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic, expression, sub_version=version, expression_type="SQL92")


async def beat(peer: Peer, *subscriptions: SubscriptionData, model: str = CLUSTERING) -> None:
    data = ConsumerData("consumers", message_model=model, subscription_data_set=list(subscriptions))
    response = await peer.ask(RequestCode.HEART_BEAT, body=encode_json(HeartbeatData("client", [], [data])))
    assert response.code == ResponseCode.SUCCESS


@asynccontextmanager
async def running(directory: Path, **changed: object) -> AsyncIterator[tuple[Broker, Peer]]:
    broker, remoting = Broker(config(directory, **changed)), RemotingClient()
    await broker.start()
    try:
        yield broker, Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    finally:
        await remoting.close()
        await broker.stop()


async def send_amounts(peer: Peer, *amounts: int) -> None:
    for amount in amounts:
        await peer.send("orders", b"%d" % amount, properties={"amount": str(amount)})


async def test_a_pulls_own_expression(peer: Peer) -> None:
    await send_amounts(peer, 5, 50, 7, 70)
    response = await peer.pull("orders", subscription="amount > 10", expression_type="SQL92")
    assert (response.code, bodies(response)) == (ResponseCode.SUCCESS, [b"50", b"70"])
    assert response.ext_fields["nextBeginOffset"] == "4"
    none = await peer.pull("orders", subscription="amount > 100", expression_type="SQL92")
    assert (none.code, none.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "4")


async def test_records_of_every_shape_are_looked_at(peer: Peer) -> None:
    long_topic = "t" * 127
    for topic in ("orders", long_topic):
        for body in (b"", b"x" * 5000):
            await peer.send(topic, body, properties={"a": "1"})
            await peer.send(topic, body)
        response = await peer.pull(topic, subscription="a = 1", expression_type="SQL92")
        assert bodies(response) == [b"", b"x" * 5000]


async def test_a_pull_scans_so_far_and_no_further(peer: Peer) -> None:
    # `maxFilterMessageSize` is the size of 800 units.
    await asyncio.gather(*(peer.send("orders", b"", properties={"a": "1"}) for _ in range(850)))
    await peer.send("orders", b"found", properties={"a": "2"})
    first = await peer.pull("orders", subscription="a = 2", expression_type="SQL92")
    assert (first.code, first.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "800")
    assert bodies(await peer.pull("orders", 800, subscription="a = 2", expression_type="SQL92")) == [b"found"]


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.CHECK_CLIENT_CONFIG])
async def test_others_are_served_while_an_expression_takes_its_time(
    peer: Peer, broker: Broker, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Other clients are served while a long expression is evaluated.

    It repeats two conditions 790 times. None of the 2,000 messages matches it.
    """
    set_request_slice(monkeypatch, 0.001)
    # The request code of pop does not fit into a binary header.
    peer.serialize_type = SerializeType.JSON
    body = encode_batch([(0, b"", b"a\x011\x02b\x013\x02")] * 2000)
    assert (await peer.send("orders", body, code=RequestCode.SEND_BATCH_MESSAGE)).code == ResponseCode.SUCCESS
    # An expression that is not compiled yet.
    expression = " OR ".join(["a = 1 AND b = 2"] * 790) + f" OR c = {next(NUMBERS)}"
    other = Peer(await remoting.connection(f"localhost:{broker.port}"))
    await other.send("others", b"first")
    pop = PopMessageRequestHeader(
        consumer_group="consumers",
        topic="orders",
        queue_id=0,
        max_msg_nums=32,
        invisible_time=10_000,
        poll_time=0,
        init_mode=0,
        exp=expression,
        exp_type="SQL92",
    )
    check = CheckClientRequestBody("client", "consumers", subscription_data=sql("orders", expression))
    asked = {
        RequestCode.PULL_MESSAGE: lambda: peer.pull("orders", subscription=expression, expression_type="SQL92"),
        RequestCode.POP_MESSAGE: lambda: peer.ask(RequestCode.POP_MESSAGE, pop),
        RequestCode.CHECK_CLIENT_CONFIG: lambda: peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=encode_json(check)),
    }
    answer = asyncio.create_task(asked[code]())
    served = 0
    while not answer.done():
        assert (await other.send("others", b"x")).code == ResponseCode.SUCCESS
        served += 1
    response = await answer
    if code == RequestCode.PULL_MESSAGE:
        assert (response.code, response.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "800")
    else:
        assert response.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT)
    assert served > 3


async def test_a_pull_that_takes_many_steps_counts_once(peer: Peer, broker: Broker) -> None:
    body = encode_batch([(0, b"", b"a\x011\x02b\x013\x02")] * 800 + [(0, b"", b"a\x011\x02b\x012\x02")])
    assert (await peer.send("orders", body, code=RequestCode.SEND_BATCH_MESSAGE)).code == ResponseCode.SUCCESS
    expression = " OR ".join(["a = 1 AND b = 2"] * 790)
    stats = broker.context.stats
    await peer.pull("orders", 0, subscription=expression, expression_type="SQL92")
    assert (stats.reads, stats.misses) == (0, 1)
    await peer.pull("orders", 1, subscription=expression, expression_type="SQL92")
    assert (stats.reads, stats.misses) == (1, 1)


async def test_the_expression_of_the_heartbeat(peer: Peer) -> None:
    await send_amounts(peer, 5, 50)
    await beat(peer, sql("orders", "amount > 10"))
    assert bodies(await peer.pull("orders", sys_flag=0, sub_version=1)) == [b"50"]
    newer = await peer.pull("orders", sys_flag=0, sub_version=2)
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    await beat(peer, sql("orders", "amount < 10", version=2))
    assert bodies(await peer.pull("orders", sys_flag=0, sub_version=2)) == [b"5"]
    await beat(peer, SubscriptionData.parse("orders"))
    assert bodies(await peer.pull("orders", sys_flag=0)) == [b"5", b"50"]


@pytest.mark.parametrize("kind", ["SQL92", "TAG"])
async def test_a_new_connection_counts_whatever_its_version(peer: Peer, broker: Broker, kind: str) -> None:
    """The subscription of a new connection applies even if its version is lower, because the clock of its host is slow.

    This is tested while the group is online, and after a restart of all members.
    """
    for tag in ("A", "B"):
        await peer.send("orders", tag.encode(), properties={"TAGS": tag, "kind": tag})

    def wants(tag: str, version: int) -> SubscriptionData:
        subscription = SubscriptionData.parse("orders", f"kind = '{tag}'" if kind == "SQL92" else tag, kind)
        subscription.sub_version = version
        return subscription

    other_client = RemotingClient()
    try:
        other = Peer(await other_client.connection(f"127.0.0.1:{broker.port}"))
        await beat(peer, wants("A", 1000))
        await beat(other, wants("B", 10))
        for version in (10, 1000):
            assert bodies(await peer.pull("orders", sys_flag=0, sub_version=version)) == [b"B"]
    finally:
        await other_client.close()
    # The subscription of the remaining member applies again.
    await until(lambda: len(broker.members.consumers["consumers"].clients) == 1)
    assert bodies(await peer.pull("orders", sys_flag=0, sub_version=1000)) == [b"A"]
    await peer.ask(
        RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader(client_id="client", consumer_group="consumers")
    )
    await beat(peer, wants("B", 10))
    assert bodies(await peer.pull("orders", sys_flag=0, sub_version=10)) == [b"B"]


async def test_a_heartbeat_with_a_bad_expression(peer: Peer) -> None:
    await send_amounts(peer, 5)
    await beat(peer, sql("orders", "amount >"))
    response = await peer.pull("orders", sys_flag=0, sub_version=1)
    assert response.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "column 9" in (response.remark or "")


async def test_a_long_poll_waits_for_a_match(peer: Peer, broker: Broker) -> None:
    await send_amounts(peer, 5)
    await beat(peer, sql("orders", "amount > 10"))
    waiting = asyncio.create_task(peer.pull("orders", 1, suspend_ms=15_000, sys_flag=PULL_SUSPEND, sub_version=1))
    async with asyncio.timeout(5):
        await until(lambda: len(broker.polling))
        await send_amounts(peer, 6, 60)
        response = await waiting
    assert bodies(response) == [b"60"]


async def check(peer: Peer, expression: str, expression_type: str = "SQL92") -> RemotingCommand:
    subscription = SubscriptionData("orders", expression, expression_type=expression_type)
    body = encode_json(CheckClientRequestBody("client", "consumers", subscription))
    return await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)


async def test_check_client_config(peer: Peer) -> None:
    assert (await check(peer, "amount > 10")).code == ResponseCode.SUCCESS
    assert (await check(peer, "a || b", "TAG")).code == ResponseCode.SUCCESS
    assert (await check(peer, "a || b", "")).code == ResponseCode.SUCCESS
    bad = await check(peer, "amount LIKE '1%'")
    assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert bad.remark == "SQL92 filter, column 8: 'LIKE' can't stand here (use CONTAINS, STARTSWITH or ENDSWITH), " + (
        "behind 'amount '"
    )
    assert (await check(peer, "a", "LUA")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    pulled = await peer.send("orders", b"x")
    pulled = await peer.pull("orders", subscription="amount >", expression_type="SQL92")
    assert pulled.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_without_property_filters(tmp_path: Path) -> None:
    async with running(tmp_path, enable_property_filter=False) as (_, peer):
        await send_amounts(peer, 5)
        await beat(peer, sql("orders", "amount > 1"))
        for response in (
            await check(peer, "amount > 1"),
            await peer.pull("orders", subscription="amount > 1", expression_type="SQL92"),
            await peer.pull("orders", sys_flag=0, sub_version=1),
        ):
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert response.remark == "The broker does not support consumer to filter message by SQL92"
        assert bodies(await peer.pull("orders")) == [b"5"]


async def test_retried_messages_are_filtered_by_the_topic_that_they_came_from(tmp_path: Path) -> None:
    async with running(tmp_path, filter_support_retry=True) as (_, peer):
        await beat(peer, sql("orders", "amount > 10"), sql("%RETRY%consumers", "amount IS NOT NULL"))
        for topic, amount in (("orders", "5"), ("orders", "50"), ("others", "5")):
            properties = {"amount": amount, "RETRY_TOPIC": topic}
            await peer.send("%RETRY%consumers", f"{topic} {amount}".encode(), properties=properties)
        response = await peer.pull("%RETRY%consumers", sys_flag=0, sub_version=1)
        assert bodies(response) == [b"orders 50", b"others 5"]


async def test_broadcast_consumers_of_a_group_that_may_not(peer: Peer, broker: Broker) -> None:
    await send_amounts(peer, 5)
    await beat(peer, SubscriptionData.parse("orders"), model=BROADCASTING)
    assert bodies(await peer.pull("orders", sys_flag=0)) == [b"5"]
    group = broker.groups.get("consumers")
    assert group is not None
    group.consume_broadcast_enable = False
    assert (await peer.pull("orders", sys_flag=0)).code == ResponseCode.NO_PERMISSION


async def test_which_broker_to_pull_from(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, peer):
        await send_amounts(peer, 5, 6)
        group = broker.groups.get("consumers")
        assert group is not None
        group.broker_id, group.which_broker_when_consume_slowly = 3, 4

        async def suggested() -> str:
            return (await peer.pull("orders", max_msg_nums=1)).ext_fields["suggestWhichBrokerId"]

        assert await suggested() == "0"
        broker.config.slave_read_enable = True
        assert await suggested() == "3"
        # Only the last byte counts as being in memory.
        broker.store.in_memory_bytes = 1
        assert await suggested() == "4"


async def test_the_file_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, peer):
        await beat(peer, sql("orders", "amount > 10", version=7))
    path = tmp_path / "config" / "consumerFilter.json"
    saved = json.loads(path.read_text())["filterDataByTopic"]["orders"]
    data = saved["groupFilterData"]["consumers"]
    assert saved["topic"] == data["topic"] == "orders"
    assert (data["consumerGroup"], data["expression"], data["expressionType"]) == ("consumers", "amount > 10", "SQL92")
    assert data["clientVersion"] == 7
    assert data["deadTime"] >= data["bornTime"] > 1_600_000_000_000


async def test_a_group_that_leaves_lets_its_filters_die(peer: Peer, broker: Broker) -> None:
    await beat(peer, sql("orders", "amount > 10"))
    found = broker.consumer_filters.find("orders", "consumers")
    assert found is not None
    assert not found.is_dead
    await peer.ask(
        RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader(client_id="client", consumer_group="consumers")
    )
    assert found.is_dead


#: A file written by a Java broker.
OF_JAVA = b"""{"filterDataByTopic":{"TopicTest":{"groupFilterData":{"group_a":{"bloomFilterData":{"bitNum":216,
"bitPos":[149,149,16]},"bornTime":1000,"clientVersion":5,"consumerGroup":"group_a","dead":false,"deadTime":0,
"expression":"a > 5","expressionType":"SQL92","topic":"TopicTest"}},"topic":"TopicTest"}}}"""


def test_a_file_of_java(tmp_path: Path) -> None:
    path = tmp_path / "consumerFilter.json"
    path.write_bytes(OF_JAVA)
    filters = ConsumerFilters(path, persistence=TablePersistence(config(tmp_path), Jobs()))
    filters.load(1_000_000)
    found = filters.find("TopicTest", "group_a")
    assert found is not None
    assert (found.expression, found.dead_time, found.is_dead) == ("a > 5", 970_000, True)
    assert filters.compiled(found)(b"a\x016\x02")
    # When the group returns, its subscription is alive again, and Java's extra fields stay.
    filters.register("group_a", [sql("TopicTest", "a > 6", version=6)], 1_000_001)
    found = filters.find("TopicTest", "group_a")
    assert found is not None
    assert not found.is_dead
    assert not filters.compiled(found)(b"a\x016\x02")
    assert json.loads(filters.encode())["filterDataByTopic"]["TopicTest"]["groupFilterData"]["group_a"][
        "bloomFilterData"
    ] == {"bitNum": 216, "bitPos": [149, 149, 16]}


def test_versions_and_deaths(tmp_path: Path) -> None:
    persistence = TablePersistence(config(tmp_path), Jobs())
    filters = ConsumerFilters(tmp_path / "consumerFilter.json", persistence=persistence)

    def expression() -> tuple[str, int, bool]:
        found = filters.find("orders", "g")
        assert found is not None
        return found.expression, found.client_version, found.is_dead

    filters.register("g", [sql("orders", "a = 1", 5)], 1000)
    # Versions from different hosts are not compared.
    filters.register("g", [sql("orders", "a = 2", 4)], 1001)
    assert expression() == ("a = 2", 4, False)
    filters.register("g", [sql("orders", "a = 1", 6)], 1002)
    assert expression() == ("a = 1", 6, False)
    filters.register("g", [SubscriptionData.parse("others")], 1003)
    assert expression() == ("a = 1", 6, True)
    filters.register("g", [sql("orders", "a = 1", 6)], 1004)
    assert expression() == ("a = 1", 6, False)
    filters.register("g", [], 1005)
    filters.forget_dead(1004 + KEPT_MS)
    assert expression() == ("a = 1", 6, True)
    filters.forget_dead(1005 + KEPT_MS)
    assert filters.find("orders", "g") is None
    persistence.save()
    again = ConsumerFilters(tmp_path / "consumerFilter.json", persistence=persistence)
    again.load(2000)
    assert again.find("orders", "g") is None


def test_made_up_filters_are_limited(tmp_path: Path) -> None:
    persistence = TablePersistence(config(tmp_path), Jobs())
    filters = ConsumerFilters(tmp_path / "consumerFilter.json", persistence=persistence, max_filters=3)

    def subscription(topic: str, expression: str = "a = 1") -> SubscriptionData:
        return SubscriptionData(topic=topic, sub_string=expression, expression_type="SQL92", sub_version=1)

    filters.register("g", [subscription("long", "a" * 20_000), subscription("no/name")], 1)
    filters.register("g", [subscription(f"t{i}") for i in range(9)], 1)
    assert [topic for topic in ("long", "no/name", *(f"t{i}" for i in range(9))) if filters.find(topic, "g")] == [
        "t0",
        "t1",
        "t2",
    ]
    # Unused subscriptions free space at once, and not only after a day.
    filters.register("g", [subscription("t1"), subscription("t2")], 2)
    filters.register("h", [subscription("t9")], 3)
    assert filters.find("t9", "h") is not None
    assert [topic for topic in ("t0", "t1", "t2") if filters.find(topic, "g")] == ["t1", "t2"]


def test_the_text_of_all_filters_is_limited(tmp_path: Path) -> None:
    persistence = TablePersistence(config(tmp_path), Jobs())
    filters = ConsumerFilters(tmp_path / "consumerFilter.json", persistence=persistence, max_characters=30)
    filters.register(
        "g", [sql("long", "a = 12345678", 1), sql("other", "b = 12345678", 1), sql("more", "c = 12345678", 1)], 1
    )
    assert [topic for topic in ("long", "other", "more") if filters.find(topic, "g")] == ["long", "other"]
    filters.register("g", [sql("long", "a = 1", 2), sql("other", "b = 12345678", 1), sql("more", "c = 12345678", 1)], 2)
    assert filters.find("more", "g") is not None


def test_a_damaged_file_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    """The broker starts with a damaged file, because heartbeats restore its content."""
    path = tmp_path / "consumerFilter.json"
    path.write_bytes(b"{")
    persistence = TablePersistence(config(tmp_path), Jobs())
    filters = ConsumerFilters(path, persistence=persistence)
    filters.load()
    filters.register("g", [sql("orders", "a = 1", 1)], 1)
    persistence.save()
    again = ConsumerFilters(path, persistence=persistence)
    again.load()
    assert again.find("orders", "g") is not None
