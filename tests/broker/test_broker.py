"""Start and stop of a broker, its registration, and its responses to unknown requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_support import Peer, config
from ports import free_port
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.errors import ConfigError, GantryError, StoreError, StoreLocked
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.bodies.topic_config import TopicConfigTable
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader, GetRouteInfoRequestHeader, TopicRequestHeader
from gantrymq.remoting.client import RemotingClient


async def route(remoting: RemotingClient, server: NameServer, topic: str) -> TopicRouteData | None:
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
    response = await remoting.invoke(server.address, request)
    return decode_json(response.body, TopicRouteData) if response.code == 0 else None


async def is_gone(remoting: RemotingClient, server: NameServer, topic: str) -> bool:
    return await route(remoting, server, topic) is None


async def name_server(tmp_path: Path, port: int = 0) -> NameServer:
    server = NameServer(
        NamesrvConfig(listen_port=port, bind_address="127.0.0.1", kv_config_path=tmp_path / "kvConfig.json")
    )
    await server.start()
    return server


async def test_registers_with_every_name_server_and_leaves(tmp_path: Path, remoting: RemotingClient) -> None:
    servers = [await name_server(tmp_path) for _ in range(2)]
    broker = Broker(config(tmp_path / "store", namesrv_addr=[server.address for server in servers]))
    await broker.start()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await peer.send("orders", b"x")
    async with asyncio.timeout(5):
        for server in servers:
            found = await route(remoting, server, "TBW102")
            assert found is not None
            assert found.broker_datas[0].broker_addrs == {0: broker.address}
            found = await until(lambda server=server: route(remoting, server, "orders"))
            assert (found.queue_datas[0].write_queue_nums, found.queue_datas[0].perm) == (4, 6)
        await broker.stop()
        for server in servers:
            await until(lambda server=server: is_gone(remoting, server, "orders"))
            await server.stop()


async def test_name_server_that_comes_later_is_told(tmp_path: Path, remoting: RemotingClient) -> None:
    port = free_port()
    broker = Broker(config(tmp_path / "store", namesrv_addr=[f"127.0.0.1:{port}"]))
    await broker.start()
    server = await name_server(tmp_path, port)
    async with asyncio.timeout(15):
        broker.topics.create_if_absent("orders", 1)
        await until(lambda: route(remoting, server, "orders"))
    await broker.stop()
    await server.stop()


async def test_topics_made_and_deleted_from_outside(peer: Peer, broker: Broker) -> None:
    header = CreateTopicRequestHeader(
        topic="made",
        default_topic="TBW102",
        read_queue_nums=3,
        write_queue_nums=2,
        perm=6,
        attributes="+message.type=FIFO",
    )
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == ResponseCode.SUCCESS
    listed = decode_json((await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body, TopicConfigTable)
    made = listed.topic_config_table["made"]
    assert (made.read_queue_nums, made.write_queue_nums, made.attributes) == (3, 2, {"message.type": "FIFO"})
    await peer.send("made", b"x")
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic="made"))).code == 0
    assert broker.topics.get("made") is None
    assert (await peer.pull("made")).code == ResponseCode.TOPIC_NOT_EXIST
    await peer.send("made", b"new")
    assert (await peer.pull("made")).ext_fields["maxOffset"] == "1"


@pytest.mark.parametrize(("topic", "queues"), [("TBW102", 1), ("bad!", 1), ("good", 0), ("good", 10**6), ("good", -1)])
async def test_topic_that_is_not_made(peer: Peer, topic: str, queues: int) -> None:
    header = CreateTopicRequestHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6
    )
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == ResponseCode.INVALID_PARAMETER


async def test_unknown_request_code(peer: Peer) -> None:
    response = await peer.ask(9999)
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS


async def test_taken_port_is_named_and_the_store_left_alone(broker: Broker, tmp_path: Path) -> None:
    settings = config(tmp_path / "other")
    settings.listen_port = broker.port
    with pytest.raises(GantryError, match=str(broker.port)):
        await Broker(settings).start()
    assert not (tmp_path / "other").exists()


async def test_the_vip_channel_is_listened_on_when_it_is_asked_for(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = Broker(config(tmp_path / "store", fast_listen_enable=True))
    await broker.start()
    try:
        for port in (broker.port, broker.port - 2):
            peer = Peer(await remoting.connection(f"127.0.0.1:{port}"))
            assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
    finally:
        await broker.stop()


async def test_second_broker_on_one_directory(broker: Broker, tmp_path: Path) -> None:
    second = Broker(config(tmp_path / "store"))
    with pytest.raises(StoreLocked):
        await second.start()


def test_bad_configuration() -> None:
    with pytest.raises(ConfigError, match="brokerId"):
        BrokerConfig(broker_id=1)
    with pytest.raises(ConfigError, match="listenPort"):
        BrokerConfig(listen_port=70_000)


async def test_a_disk_that_takes_no_tables_keeps_no_broker_from_stopping(
    tmp_path: Path, remoting: RemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await peer.send("orders", b"x")
    await broker.topics.written()
    broker.offsets.commit("consumers", "orders", 0, 1)
    directory = tmp_path / "store" / "config"
    directory.rename(tmp_path / "away")
    directory.write_bytes(b"no directory")
    await broker.stop()
    assert "can't write" in caplog.text

    directory.unlink()
    (tmp_path / "away").rename(directory)
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    await broker.stop()


async def test_a_table_that_could_not_be_written_is_written_later(broker: Broker, tmp_path: Path) -> None:
    broker.offsets.commit("consumers", "orders", 0, 1)
    directory = tmp_path / "store" / "config"
    directory.write_bytes(b"no directory")
    with pytest.raises(StoreError):
        broker.persistence.save()
    directory.unlink()
    broker.persistence.save()
    assert b"orders@consumers" in (directory / "consumerOffset.json").read_bytes()
