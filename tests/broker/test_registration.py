"""What a broker tells a NameServer, and what it learns from it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_support import config
from waiting import until

from gantrymq.broker.broker import Broker
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.bodies.topic_config import TopicConfigTable, decode_register_body
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.server import RemotingServer


class RecordingNameServer:
    """Keeps the topic tables that it is told; refuses registrations while `refuses`."""

    def __init__(self) -> None:
        self.registered: list[TopicConfigTable] = []
        self.order_topics: dict[str, str] = {}
        self.refuses = False
        self.refused = 0
        self._server = RemotingServer(
            {
                RequestCode.REGISTER_BROKER: self._register,
                RequestCode.UNREGISTER_BROKER: lambda connection, request: RemotingCommand.response(),
            },
            host="127.0.0.1",
        )

    async def start(self) -> str:
        await self._server.start()
        return f"127.0.0.1:{self._server.port}"

    async def stop(self) -> None:
        await self._server.stop()

    def _register(self, connection: Connection, request: RemotingCommand) -> Reply:
        if self.refuses:
            self.refused += 1
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "not now")
        header = request.read_header(RegisterBrokerRequestHeader)
        body = decode_register_body(request.body, compressed=header.compressed, version=request.version)
        self.registered.append(body.topic_config_serialize_wrapper)
        return RemotingCommand.response(body=encode_json(KVTable(self.order_topics)))

    async def told(self, count: int) -> TopicConfigTable:
        """The table of the registration with this number, once it has come."""
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
