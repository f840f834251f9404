"""Two NameServers, one of which goes down and restarts: working clients are not affected."""

from __future__ import annotations

from pathlib import Path

from ports import free_port
from wait_until import until

from gantrymq import Message, MessageExt, Producer, PushConsumer
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.topic import GetRouteInfoRequestHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.config import StoreConfig

#: The shortest `registerNameServerPeriod` of a broker, in milliseconds.
HEARTBEAT_MS = 10_000
TOPIC = "orders"


async def name_server(directory: Path, port: int) -> NameServer:
    server = NameServer(
        NamesrvConfig(listen_port=port, bind_address="127.0.0.1", kv_config_path=directory / f"kv-{port}.json")
    )
    await server.start()
    return server


async def route(remoting: RemotingClient, address: str) -> TopicRouteData | None:
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=TOPIC))
    response = await remoting.invoke(address, request)
    return decode_json(response.body, TopicRouteData) if response.code == 0 else None


async def has_both(remoting: RemotingClient, address: str) -> bool:
    known = await route(remoting, address)
    return known is not None and len(known.broker_datas) == 2


async def test_work_goes_on_while_one_is_away(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    servers = [await name_server(tmp_path, port) for port in ports]
    addresses = [server.address for server in servers]
    brokers = [
        Broker(
            BrokerConfig(
                broker_name=f"broker-{name}",
                bind_address="127.0.0.1",
                listen_port=0,
                namesrv_addr=addresses,
                register_name_server_period=HEARTBEAT_MS,
                store=StoreConfig(tmp_path / name, mapped_file_size_commit_log=1 << 20),
            )
        )
        for name in "ab"
    ]
    for broker in brokers:
        await broker.start()
        broker.topics.create_if_absent(TOPIC, 2)
    remoting = RemotingClient()
    received: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        received.append(message.body)

    consumer = PushConsumer(addresses, "readers", handle, start_from="earliest")
    consumer.subscribe(TOPIC)
    async with Producer(addresses, "writers") as producer, consumer:
        for address in addresses:
            await until(lambda address=address: has_both(remoting, address))
        for number in range(10):
            await producer.send(Message(TOPIC, b"%d" % number))
        await servers[0].stop()
        for number in range(10, 20):
            await producer.send(Message(TOPIC, b"%d" % number))
        # The client queries routes from the remaining NameServer.
        await producer.send(Message("a-topic-that-is-new", b"x"))
        await until(lambda: len(received) == 20)
        servers[0] = await name_server(tmp_path, ports[0])

        async def know_the_same() -> bool:
            return await route(remoting, addresses[0]) == await route(remoting, addresses[1])

        # With the next registration, not with the one after it.
        await until(know_the_same, HEARTBEAT_MS / 1000 + 8)
        await producer.send(Message(TOPIC, b"20"))
        await until(lambda: len(received) == 21)
    assert sorted(received, key=int) == [b"%d" % number for number in range(21)]
    await remoting.close()
    for broker in brokers:
        await broker.stop()
    for server in servers:
        await server.stop()
