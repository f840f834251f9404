"""The file with the brokers that a NameServer had before its restart."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from namesrv_support import broker_header, registration, topics_body
from step_timer import StepTimer
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.known_brokers import MAX_FILE_BYTES, KnownBrokersFile
from gantrymq.namesrv.lost_brokers import KEPT_MS, NAMESPACE
from gantrymq.namesrv.route_table import RouteTable
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.awaited_brokers import REGISTRATION_PERIOD_MS
from gantrymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import BrokerRequestHeader, KVConfigRequestHeader
from gantrymq.protocol.headers.topic import DeleteTopicInNamesrvRequestHeader, TopicRequestHeader
from gantrymq.protocol.private_fields import AWAITED_BROKERS_FIELD, UPTIME_FIELD
from gantrymq.remoting.client import RemotingClient
from gantrymq.system.clock import monotonic, now_ms

A, B = "10.0.0.1:10911", "10.0.0.2:10911"


@asynccontextmanager
async def running(config: NamesrvConfig) -> AsyncIterator[NameServer]:
    server = NameServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def register(client: RemotingClient, server: NameServer, name: str, address: str, *topics: str) -> None:
    await client.call(server.address, registration(broker_header(name, address), topics_body(*topics)))


async def route(client: RemotingClient, server: NameServer, topic: str) -> RemotingCommand:
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicRequestHeader(topic=topic))
    return await client.invoke(server.address, request)


def awaited(response: RemotingCommand) -> str | None:
    return response.ext_fields.get(AWAITED_BROKERS_FIELD)


@contextmanager
def killed(config: NamesrvConfig) -> Iterator[None]:
    """Restores the current file at the end, as if the NameServer were killed now."""
    data = config.known_brokers_path.read_bytes()
    yield
    config.known_brokers_path.write_bytes(data)


@pytest.fixture
async def known(config: NamesrvConfig, client: RemotingClient) -> NamesrvConfig:
    """Returns the configuration of a stopped NameServer.

    At the stop, broker-a had topics A and AB, and broker-b had B and AB.
    """
    async with running(config) as server:
        await register(client, server, "broker-a", A, "A", "AB")
        await register(client, server, "broker-b", B, "B", "AB")
    return config


def test_the_file_is_beside_that_of_the_kv_configuration(tmp_path: Path) -> None:
    config = NamesrvConfig(kv_config_path=tmp_path / "kv-9876.json")
    assert config.known_brokers_path == tmp_path / "kv-9876.brokers.json"
    assert NamesrvConfig(known_brokers_path=tmp_path / "b").known_brokers_path == tmp_path / "b"


async def test_brokers_are_away_after_a_restart_until_they_register(
    known: NamesrvConfig, client: RemotingClient
) -> None:
    async with running(known) as server:
        assert awaited(await route(client, server, "AB")) == "broker-a;broker-b"
        assert (await route(client, server, "AB")).code == ResponseCode.TOPIC_NOT_EXIST
        await register(client, server, "broker-a", A, "A", "AB")
        response = await route(client, server, "AB")
        assert (response.code, awaited(response)) == (ResponseCode.SUCCESS, "broker-b")
        assert 0 <= int(response.ext_fields[UPTIME_FIELD]) < 30_000
        await register(client, server, "broker-b", B, "B", "AB")
        assert awaited(await route(client, server, "AB")) is None


async def test_clients_of_other_languages_get_the_response_of_javas_name_server(
    known: NamesrvConfig, client: RemotingClient
) -> None:
    async with running(known) as server:
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicRequestHeader(topic="AB"))
        request.language = LanguageCode.JAVA
        assert (await client.invoke(server.address, request)).ext_fields == {}


async def test_a_name_server_that_is_killed_has_written_its_brokers(
    config: NamesrvConfig, client: RemotingClient
) -> None:
    async with running(config) as server:
        await register(client, server, "broker-a", A, "A", "AB")
        await until(lambda: config.known_brokers_path.exists() and b'"A"' in config.known_brokers_path.read_bytes())
        with killed(config):
            await server.stop()
    async with running(config) as server:
        assert awaited(await route(client, server, "A")) == "broker-a"


async def test_what_is_removed_stays_removed(known: NamesrvConfig, client: RemotingClient) -> None:
    async with running(known) as server:
        by_name = KVConfigRequestHeader(namespace=NAMESPACE, key="broker-b")
        await client.call(server.address, RemotingCommand.request(RequestCode.DELETE_KV_CONFIG, by_name))
        topic = DeleteTopicInNamesrvRequestHeader(topic="A")
        await client.call(server.address, RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic))
    async with running(known) as server:
        assert awaited(await route(client, server, "AB")) == "broker-a"
        assert awaited(await route(client, server, "A")) is None
        assert awaited(await route(client, server, "B")) is None


async def test_a_broker_that_was_away_before_is_away_for_72_hours_in_all(
    known: NamesrvConfig, client: RemotingClient
) -> None:
    path = known.known_brokers_path
    async with running(known) as server:
        await register(client, server, "broker-a", A, "A", "AB")
        await register(client, server, "broker-b", B, "B", "AB")
        header = BrokerRequestHeader(broker_name="broker-b", broker_addr=B, cluster_name="DefaultCluster", broker_id=0)
        await client.call(server.address, RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header))
        await until(lambda: "lostTime" in json.loads(path.read_bytes())["brokers"]["broker-b"])
    content = json.loads(path.read_bytes())
    assert "lostTime" not in content["brokers"]["broker-a"]
    assert abs(content["brokers"]["broker-b"]["lostTime"] - now_ms()) < 60_000
    for lost_time, lost in ((now_ms() - KEPT_MS + 60_000, "broker-a;broker-b"), (now_ms() - KEPT_MS, "broker-a")):
        content["brokers"]["broker-b"]["lostTime"] = lost_time
        path.write_text(json.dumps(content))
        async with running(known) as server:
            assert server.table.lost.of("AB") == lost
            # The former NameServer's route also lacked this broker.
            assert awaited(await route(client, server, "AB")) == "broker-a"


def test_a_broker_is_awaited_for_one_registration_period(known: NamesrvConfig) -> None:
    table = RouteTable(known)
    file = KnownBrokersFile(known.known_brokers_path, table, Jobs())
    file.load()
    started_ms = int(monotonic() * 1000)
    table.expire(started_ms)
    assert table.lost.awaited("AB") == "broker-a;broker-b"
    table.expire(started_ms + REGISTRATION_PERIOD_MS)
    assert table.lost.awaited("AB") is None
    assert table.lost.of("AB") == "broker-a;broker-b"
    assert {broker.is_away for broker in table.lost} == {True}


@pytest.mark.parametrize("data", [b'{"brokers":', b"[]", b'{"brokers":{"a":{}},"topics":[]}', b"\0" * 100])
async def test_a_damaged_file_is_a_warning(
    config: NamesrvConfig, client: RemotingClient, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    config.known_brokers_path.parent.mkdir()
    config.known_brokers_path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        async with running(config) as server:
            await register(client, server, "broker-a", A, "A", "AB")
            assert awaited(await route(client, server, "A")) is None
    assert "known brokers" in caplog.text
    assert "is damaged" in caplog.text
    assert json.loads(config.known_brokers_path.read_bytes())["brokers"] == {
        "broker-a": {"clusterName": "DefaultCluster"}
    }


async def test_a_file_that_can_not_be_written_does_not_end_the_name_server(
    tmp_path: Path, client: RemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=tmp_path / "kvConfig.json",
        known_brokers_path=tmp_path / "file" / "brokers.json",
    )
    async with running(config) as server:
        await register(client, server, "broker-a", A, "A", "AB")
        await until(lambda: [report.name for report in server.jobs.failing()] == ["write the known brokers"])
        assert (await route(client, server, "A")).code == ResponseCode.SUCCESS
    assert "not on the disk" in caplog.text


async def test_a_large_table_is_copied_in_a_short_step(config: NamesrvConfig) -> None:
    table = RouteTable(config)
    file = KnownBrokersFile(config.known_brokers_path, table, Jobs())
    topics = topics_body(*(f"topic-{number}" for number in range(200_000)))
    table.register(broker_header("broker-a", A), topics, zone_name=None, connection=object(), now_ms=0)
    # Garbage collection is on here: a list of 200,000 pairs would trigger it.
    timer = StepTimer()
    with timer.step():
        table.copy_of_topics()
    assert timer.longest < 0.05
    await file.stop()
    entries = json.loads(config.known_brokers_path.read_bytes())["topics"]
    assert {name for entry in entries for name in entry["names"]} == set(table.all_topics().topic_list)


async def test_the_file_is_no_larger_than_its_limit(config: NamesrvConfig, caplog: pytest.LogCaptureFixture) -> None:
    table = RouteTable(config)
    file = KnownBrokersFile(config.known_brokers_path, table, Jobs())
    for number in range(3):
        # Each broker has its own topics, so that every entry names one broker.
        name = f"{number}".rjust(200, "b")
        topics = topics_body(*(f"{number}-{topic}".rjust(120, "t") for topic in range(100_000)))
        table.register(broker_header(name, f"10.0.0.{number}:1"), topics, zone_name=None, connection=object(), now_ms=0)
    await file.stop()
    data = config.known_brokers_path.read_bytes()
    assert MAX_FILE_BYTES - 2_000_000 < len(data) <= MAX_FILE_BYTES
    assert len(json.loads(data)["brokers"]) == 3
    assert caplog.text.count("reached its limit") == 1
