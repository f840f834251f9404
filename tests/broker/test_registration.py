"""The registration of a broker with a NameServer, and the data that the NameServer returns."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_support import config, longest_step
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.registration import body_of, parts_of
from gantrymq.errors import GantryError, RequestRefused
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.bodies.topic_config import (
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    decode_register_body,
)
from gantrymq.protocol.codes import VERSION_5_0_0, RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer


class RecordingNameServer:
    """Stores the topic tables that it receives.

    While `refuses` is true, it refuses registrations. It also refuses each one that contains `refused_topic`. While
    `disconnects` is true, it closes the connection after each response to a registration.
    """

    def __init__(self) -> None:
        self.registered: list[TopicConfigTable] = []
        self.order_topics: dict[str, str] = {}
        self.refuses = False
        self.refused = 0
        self.refused_topic = ""
        self.disconnects = False
        self._server = RemotingServer(
            {
                RequestCode.REGISTER_BROKER: self._register,
                RequestCode.UNREGISTER_BROKER: lambda connection, request: RemotingCommand.response(),
            },
            ListenOptions("127.0.0.1"),
        )

    async def start(self) -> str:
        await self._server.start()
        return f"127.0.0.1:{self._server.port}"

    async def stop(self) -> None:
        await self._server.stop()

    def lose_connections(self) -> None:
        for connection in list(self._server.connections):
            connection.abort()

    def _register(self, connection: Connection, request: RemotingCommand) -> Reply:
        if self.refuses:
            self.refused += 1
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "not now")
        header = request.read_header(RegisterBrokerRequestHeader)
        body = decode_register_body(request.body, compressed=header.compressed, version=request.version)
        if self.refused_topic in body.topic_config_serialize_wrapper.topic_config_table:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{self.refused_topic} is no topic")
        self.registered.append(body.topic_config_serialize_wrapper)
        response = RemotingCommand.response(body=encode_json(KVTable(self.order_topics)))
        if not self.disconnects:
            return response
        connection.reply(request, response)
        connection.close()
        return None

    async def told(self, count: int) -> TopicConfigTable:
        """Waits for registration number `count` and returns its table."""
        await until(lambda: len(self.registered) >= count)
        return self.registered[count - 1]


@pytest.fixture
async def name_server() -> AsyncIterator[RecordingNameServer]:
    server = RecordingNameServer()
    yield server
    await server.stop()


@pytest.fixture
async def registered(name_server: RecordingNameServer, tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(config(tmp_path / "store", namesrv_addr=[await name_server.start()]))
    await broker.start()
    yield broker
    await broker.stop()


async def test_a_new_topic_is_registered_alone(name_server: RecordingNameServer, registered: Broker) -> None:
    everything = await name_server.told(1)
    assert len(everything.topic_config_table) > 10
    registered.topics.create_if_absent("orders", 3)
    one = await name_server.told(2)
    assert list(one.topic_config_table) == ["orders"]
    assert one.topic_config_table["orders"].write_queue_nums == 3
    assert one.data_version.counter == everything.data_version.counter + 1


async def test_what_a_name_server_refused_it_is_told_in_full(
    name_server: RecordingNameServer, registered: Broker
) -> None:
    await name_server.told(1)
    name_server.refuses = True
    registered.topics.create_if_absent("orders", 3)
    await until(lambda: name_server.refused)
    name_server.refuses = False
    everything = await name_server.told(2)
    assert {"orders", "TBW102"} <= everything.topic_config_table.keys()


async def test_a_deleted_topic_makes_a_full_registration(name_server: RecordingNameServer, registered: Broker) -> None:
    registered.topics.create_if_absent("orders", 3)
    await name_server.told(2)
    registered.topics.remove("orders")
    assert "TBW102" in (await name_server.told(3)).topic_config_table


async def test_a_lost_connection_makes_a_full_registration(
    name_server: RecordingNameServer, registered: Broker
) -> None:
    """After a lost connection, the broker registers again at once, because the NameServer has removed it.

    The next periodic registration can be up to 30 s away.
    """
    await name_server.told(1)
    for count in (2, 3):
        name_server.lose_connections()
        await until(lambda: len(name_server.registered) == count, 5)  # noqa: B023
        assert "TBW102" in name_server.registered[-1].topic_config_table


async def test_a_name_server_that_closes_each_connection_is_not_flooded(tmp_path: Path) -> None:
    connections = 0

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    closing = await asyncio.start_server(close, "127.0.0.1")
    broker = Broker(config(tmp_path / "store", namesrv_addr=[f"127.0.0.1:{closing.sockets[0].getsockname()[1]}"]))
    began = asyncio.get_running_loop().time()
    await broker.start()
    try:
        await until(lambda: connections >= 3)
        # The pauses are 0.5 s and 1 s.
        assert asyncio.get_running_loop().time() - began > 1.4
    finally:
        await broker.stop()
        closing.close()


async def test_a_name_server_that_disconnects_after_each_registration_is_not_flooded(
    name_server: RecordingNameServer, tmp_path: Path
) -> None:
    name_server.disconnects = True
    loop = asyncio.get_running_loop()
    broker = Broker(config(tmp_path / "store", namesrv_addr=[await name_server.start()]))
    await broker.start()
    try:
        await name_server.told(1)
        began = loop.time()
        await name_server.told(5)
        # The pauses are 0.1 s, 0.2 s, 0.4 s and 0.8 s.
        assert loop.time() - began > 1.4
        # After a connection that lasts until the following registration, the first pause is short again.
        name_server.disconnects = False
        await name_server.told(6)
        broker.topics.create_if_absent("orders", 3)
        assert list((await name_server.told(7)).topic_config_table) == ["orders"]
        name_server.lose_connections()
        lost = loop.time()
        assert "TBW102" in (await name_server.told(8)).topic_config_table
        assert loop.time() - lost < 2.5
    finally:
        await broker.stop()


async def test_order_topics_of_the_name_server_are_marked(name_server: RecordingNameServer, registered: Broker) -> None:
    topic = registered.topics.create_if_absent("orders", 3)
    assert not topic.order
    await name_server.told(2)
    name_server.order_topics = {"orders": "broker-a:3", "unknown": "broker-a:1"}
    registered.topics.create_if_absent("more", 1)
    await until(lambda: registered.topics.table.topic_config_table["orders"].order)
    assert registered.topics.get("unknown") is None


async def test_a_topic_made_while_another_name_server_hangs_is_told(
    name_server: RecordingNameServer, tmp_path: Path
) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(swallow, "127.0.0.1")
    addresses = [await name_server.start(), f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"]
    broker = Broker(config(tmp_path / "store", namesrv_addr=addresses, register_broker_timeout_mills=1000))
    starting = asyncio.create_task(broker.start())
    await name_server.told(1)
    broker.topics.create_if_absent("orders", 3)
    await starting
    try:
        assert "orders" in (await name_server.told(2)).topic_config_table
    finally:
        await broker.stop()
        silent.close()


async def test_a_name_server_that_hangs_keeps_no_broker_from_starting(
    name_server: RecordingNameServer, tmp_path: Path
) -> None:
    hung = socket.create_server(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{hung.getsockname()[1]}", await name_server.start()]
    broker = Broker(config(tmp_path / "store", namesrv_addr=addresses))
    began = asyncio.get_running_loop().time()
    await broker.start()
    try:
        assert asyncio.get_running_loop().time() - began < 10
        await name_server.told(1)
        broker.topics.create_if_absent("orders", 3)
        assert "orders" in (await name_server.told(2)).topic_config_table
    finally:
        await broker.stop()
        hung.close()


async def register_times(name_server: RecordingNameServer, broker: Broker, count: int) -> list[TopicConfigTable]:
    """Waits for the next `count` registrations and returns their tables."""
    already = len(name_server.registered)
    await name_server.told(already + count)
    return name_server.registered[already : already + count]


async def test_more_topics_than_a_frame_holds_are_registered_in_parts(
    name_server: RecordingNameServer, registered: Broker
) -> None:
    await name_server.told(1)
    topics = [TopicConfig(f"topic-{n}-{'x' * 110}", 1, 1) for n in range(70_000)]
    registered.topics.put(*topics)
    registered.topics.config_changed()
    everything = set(registered.topics.table.topic_config_table)
    await until(lambda: {name for part in name_server.registered[1:] for name in part.topic_config_table} >= everything)
    parts = name_server.registered[1:]
    assert len(parts) == 4
    for part in parts:
        assert len(encode_json(part)) < 9 * 1024 * 1024
    versions = {(part.data_version.timestamp, part.data_version.counter) for part in parts}
    assert len(versions) == len(parts)


@pytest.mark.parametrize("count", [20, 21, 22, 39, 40, 41])
async def test_all_registrations_may_be_split(name_server: RecordingNameServer, registered: Broker, count: int) -> None:
    await name_server.told(1)
    registered.config.enable_split_registration = True
    registered.config.split_registration_size = 20
    there = len(registered.topics.table.topic_config_table)
    registered.topics.put(*(TopicConfig(f"topic-{n}") for n in range(count)))
    registered.topics.config_changed()
    parts = await register_times(name_server, registered, (there + count + 19) // 20)
    assert max(len(part.topic_config_table) for part in parts) == 20
    assert {name for part in parts for name in part.topic_config_table} == set(
        registered.topics.table.topic_config_table
    )


def test_what_the_broker_may_not_do_no_topic_may() -> None:
    topics = {f"topic-{n}": TopicConfig(f"topic-{n}", attributes={"a": "b"}) for n in range(250)}
    [part] = parts_of(topics, PERM_READ, 1000)
    version = DataVersion(counter=7)
    body = decode_register_body(body_of(part, version), compressed=False, version=VERSION_5_0_0)
    table = body.topic_config_serialize_wrapper
    assert table.data_version == version
    assert {topic.perm for topic in table.topic_config_table.values()} == {PERM_READ}
    assert table.topic_config_table["topic-249"].attributes == {"a": "b"}
    assert {topic.perm for topic in topics.values()} == {PERM_READ | PERM_WRITE}
    [nothing] = parts_of({}, PERM_READ | PERM_WRITE, 1)
    body = decode_register_body(body_of(nothing, version), compressed=False, version=VERSION_5_0_0)
    assert not body.topic_config_serialize_wrapper.topic_config_table


async def test_a_topic_that_a_name_server_refuses_hides_few_others(
    name_server: RecordingNameServer, registered: Broker
) -> None:
    await name_server.told(1)
    registered.config.split_registration_size = 10
    name_server.refused_topic = "bad"
    registered.topics.put(*(TopicConfig(f"topic-{n}") for n in range(100)), TopicConfig("bad"))
    await until(lambda: len({name for part in name_server.registered[1:] for name in part.topic_config_table}) > 100)
    registered.topics.remove("bad")
    await until(lambda: not registered.jobs.failing())


async def test_a_registration_that_fails_is_a_failing_job(
    name_server: RecordingNameServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name_server.refuses = True
    address = await name_server.start()
    broker = Broker(config(tmp_path / "store", namesrv_addr=[address]))
    await broker.start()
    try:
        await until(lambda: name_server.refused >= 3)
        [job] = broker.jobs.failing()
        assert (job.name, "not now" in job.last_error) == (f"register with {address}", True)
        assert not [record for record in caplog.records if record.exc_info]
        name_server.refuses = False
        await until(lambda: not broker.jobs.failing())
        name_server.refuses = True
        broker.topics.config_changed()
        await until(broker.jobs.failing)
        # The broker stops registering with it.
        broker.config.namesrv_addr = []
        broker.context.events.config_changed.publish()
        await until(lambda: not broker.jobs.failing())
        assert address not in " ".join(report.name for report in broker.jobs)
    finally:
        await broker.stop()


async def test_a_broker_whose_metrics_port_is_taken_is_registered_nowhere(
    name_server: RecordingNameServer, tmp_path: Path
) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    settings = config(tmp_path / "store", namesrv_addr=[await name_server.start()], metrics_port=taken.getsockname()[1])
    broker = Broker(settings)
    with pytest.raises(GantryError, match="metrics"):
        await broker.start()
    assert not name_server.registered
    taken.close()


async def test_a_large_table_is_registered_beside_the_loop(tmp_path: Path) -> None:
    topics = {f"topic-{n}": TopicConfig(f"topic-{n}", 4, 4) for n in range(50_000)}
    loop = asyncio.get_running_loop()
    parts = loop.run_in_executor(None, parts_of, topics, PERM_READ | PERM_WRITE, len(topics))
    assert await longest_step(parts.done) < 0.005
    bodies = [decode_json(body_of(part, DataVersion()), RegisterBrokerBody) for part in await parts]
    assert sum(len(body.topic_config_serialize_wrapper.topic_config_table) for body in bodies) == 50_000
