"""Tests reads after a broker of a plain topic is killed. The NameServer remembers it although the route omits it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from killable_cluster import Killable
from ports import free_port
from wait_until import until

from gantrymq.arrow.cluster_client import BrokersAway, ClusterClient, run
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.filters import PushedFilters
from gantrymq.arrow.name_server_client import LOST_BROKERS_NAMESPACE
from gantrymq.arrow.planning import plan_batch
from gantrymq.arrow.rows import read_ranges
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ConnectFailed, NoRouteInfo
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import BrokerRequestHeader, RegisterBrokerRequestHeader
from gantrymq.protocol.message import Message
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.reader import RocketMQStreamReader
from gantrymq.spark.versions import ReadAllAvailable
from gantrymq.testing.processes import ProcessCluster

BODY = pa.schema([("body", ARROW_TYPES["body"])])
ALL = ReadAllAvailable()
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killable]:
    with Killable(tmp_path_factory.mktemp("lost"), brokers=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(brokers: Killable) -> Iterator[Killable]:
    """Restarts the killed broker after a test."""
    yield brokers
    if not brokers.brokers[1].is_running:
        brokers.start_again()


@pytest.fixture
def topic(cluster: Killable) -> str:
    """Creates a topic with 40 messages, 10 in each of its two queues on each broker."""
    topic = f"lost-{next(_numbers)}"

    async def make() -> None:
        async with AdminClient(cluster.namesrv_addr) as admin:
            await admin.ensure_topic(topic, queues=2)
        async with Producer(cluster.namesrv_addr, "numbers") as producer:
            for number in range(40):
                await producer.send(Message(topic, b"%d" % number))

    asyncio.run(make())
    return topic


async def _make_on(broker: str, name_server: str, topic: str) -> None:
    """Creates a topic with one queue on `broker` and returns when the NameServer has its route."""
    remoting = RemotingClient()
    api = BrokerApi(remoting)
    await api.create_topic(broker, TopicConfig(topic, read_queue_nums=1, write_queue_nums=1))

    async def is_known() -> bool:
        with suppress(NoRouteInfo):
            await api.route(name_server, topic)
            return True
        return False

    await until(is_known)
    await remoting.close()


def options_for(cluster: ProcessCluster, topic: str, **more: str) -> ReadOptions:
    given = {"nameserver": cluster.namesrv_addr, "retrytimeoutms": "300"} | more
    return ReadOptions.parse(given if {"assign", "subscribepattern"} & given.keys() else given | {"subscribe": topic})


def numbers(options: ReadOptions) -> list[int]:
    async def plan() -> list[list[int]]:
        async with ClusterClient(options.name_servers, options.retry_timeout_ms) as cluster:
            return await plan_batch(cluster, options, PushedFilters())

    return sorted(
        int(n)
        for ranges in run(plan())
        for batch in read_ranges(ranges, options, BODY)
        for n in batch.column("body").to_pylist()
    )


@pytest.mark.parametrize("by_pattern", [False, True])
def test_a_batch_waits_for_a_lost_broker_and_fails_in_the_end(
    cluster: Killable, topic: str, by_pattern: bool, caplog: pytest.LogCaptureFixture
) -> None:
    naming = {"subscribepattern": f"{topic}|other"} if by_pattern else {}
    cluster.kill()
    with pytest.raises(BrokersAway, match=f"broker-b is away, which has queues of topic {topic}") as caught:
        numbers(options_for(cluster, topic, **naming))
    assert "(option retryTimeoutMs)" in "".join(caught.value.__notes__)
    with caplog.at_level(logging.WARNING):
        assert len(numbers(options_for(cluster, topic, failondataloss="false", **naming))) == 20
    assert "broker-b is away" in caplog.text
    starting = threading.Thread(target=cluster.start_again)
    starting.start()
    try:
        assert numbers(options_for(cluster, topic, retrytimeoutms="30000", **naming)) == list(range(40))
    finally:
        starting.join()


def test_queues_of_the_others_alone_can_be_read(cluster: Killable, topic: str) -> None:
    cluster.kill()
    assert len(numbers(options_for(cluster, topic, assign=json.dumps({topic: ["broker-a:0", "broker-a:1"]})))) == 20


def test_a_topic_that_only_the_lost_broker_had(cluster: Killable, caplog: pytest.LogCaptureFixture) -> None:
    only = f"lost-{next(_numbers)}"

    asyncio.run(_make_on(cluster.brokers[1].address, cluster.namesrv_addr, only))
    cluster.kill()
    for naming in ({}, {"subscribepattern": only}):
        with pytest.raises(BrokersAway, match=f"broker-b is away, which has queues of topic {only}"):
            numbers(options_for(cluster, only, **naming))
    with caplog.at_level(logging.WARNING):
        assert numbers(options_for(cluster, only, failondataloss="false", subscribepattern=only)) == []
    assert f"broker-b is away, which has queues of topic {only}" in caplog.text


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_broker_that_is_given_up_is_not_waited_for(cluster: Killable, topic: str, is_killed: bool) -> None:
    """A broker that was stopped cleanly counts as lost too, because it may be restarting."""
    if is_killed:
        cluster.kill()
    else:
        cluster.brokers[1].stop()

    async def give_up() -> None:
        async with AdminClient(cluster.namesrv_addr) as admin:
            await admin.kv_delete(LOST_BROKERS_NAMESPACE, "broker-b")

    with pytest.raises(BrokersAway):
        numbers(options_for(cluster, topic))
    asyncio.run(give_up())
    assert len(numbers(options_for(cluster, topic))) == 20


def test_a_stream_begins_without_it_and_a_run_of_what_is_available_does_not(
    cluster: Killable, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_for(cluster, topic, startingoffsets="earliest")
    cluster.kill()
    stream = RocketMQStreamReader(options, BODY)
    with caplog.at_level(logging.WARNING):
        start = stream.initialOffset()
    assert f"broker-b is away, which has queues of topic {topic}" in caplog.text
    end = stream.latestOffset(start, ALL)
    assert sum(len(batch) for p in stream.partitions(start, end) for batch in stream.read(p)) == 20
    with pytest.raises(BrokersAway, match="broker-b is away"):
        stream.prepareForTriggerAvailableNow()
    cluster.start_again()
    stream.prepareForTriggerAvailableNow()
    rest = stream.latestOffset(end, ALL)
    assert sum(len(batch) for p in stream.partitions(end, rest) for batch in stream.read(p)) == 20
    stream.stop()


async def test_any_name_server_may_know(cluster: Killable, topic: str, tmp_path: Path) -> None:
    """A NameServer that started later, or one of Apache's, has no record of lost brokers."""
    with ProcessCluster(tmp_path, brokers=0) as newer:
        async with ClusterClient([newer.namesrv_addr, cluster.namesrv_addr], 300) as both:
            assert set(await both.brokers_elsewhere(topic)) == {"broker-a", "broker-b"}
            assert await both.lost_brokers([topic]) == {}
            await asyncio.to_thread(cluster.kill)
            assert set(await both.brokers_elsewhere(topic)) == {"broker-a"}
            assert await both.lost_brokers([topic]) == {topic: {"broker-b"}}
            assert (await both.lost_brokers(None))[topic] == {"broker-b"}
        await asyncio.to_thread(cluster.start_again)


async def test_no_answer_does_not_say_that_no_broker_is_lost(cluster: Killable, topic: str) -> None:
    """If the query fails, an incomplete topic must not look complete."""
    nobody = f"127.0.0.1:{free_port()}"
    async with ClusterClient([nobody], 300) as alone, ClusterClient([nobody, cluster.namesrv_addr], 300) as both:
        for topics in ([topic], None):
            with pytest.raises(ConnectFailed):
                await alone.lost_brokers(topics)
            assert (await both.lost_brokers(topics)).get(topic, set()) == set()


async def test_a_static_topics_table_names_its_brokers(tmp_path: Path) -> None:
    """The table also names brokers that unregistered, and also works with Apache's NameServers."""
    server = NameServer(
        NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=tmp_path / "kvConfig.json")
    )
    await server.start()
    brokers = RemotingClient()
    for number, name in enumerate(("broker-a", "broker-b", "broker-c")):
        queues = {} if name == "broker-c" else {"0": 0}
        mapping = {"topic": "static", "bname": name, "totalQueues": 2, "currIdMap": queues}
        table = TopicConfigTable(
            {topic: TopicConfig(topic) for topic in ("static", "other")},
            DataVersion(0, 1, 1),
            topic_queue_mapping_info_map={"static": mapping},
        )
        header = RegisterBrokerRequestHeader(
            broker_name=name, broker_addr=f"10.0.0.{number}:1", cluster_name="c", broker_id=0, ha_server_addr=""
        )
        body = encode_register_body(RegisterBrokerBody(table, []), compress=False)
        header.body_crc32 = zlib.crc32(body) & 0x7FFFFFFF
        await brokers.call(server.address, RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body))
    for number, name in ((1, "broker-b"), (2, "broker-c")):
        gone = BrokerRequestHeader(broker_name=name, broker_addr=f"10.0.0.{number}:1", cluster_name="c", broker_id=0)
        await brokers.call(server.address, RemotingCommand.request(RequestCode.UNREGISTER_BROKER, gone))
    async with ClusterClient([server.address], 300) as cluster:
        assert await cluster.brokers_elsewhere("static") == {
            "broker-a": f"NameServer {server.address}",
            "broker-b": "its table of queues",
        }
        assert await cluster.lost_brokers(["static"]) == {"static": {"broker-b", "broker-c"}}
    await brokers.close()
    await server.stop()
