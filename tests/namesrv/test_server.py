"""Start and stop of a NameServer: closed connections, silent brokers, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from namesrv_support import broker_header, registration, topics_body
from ports import free_port
from wait_until import until

from gantrymq.errors import ConfigError, GantryError
from gantrymq.namesrv import handlers as handlers_module
from gantrymq.namesrv import server as server_module
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer, reachable
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import (
    BrokerHeartbeatRequestHeader,
    BrokerRequestHeader,
    KVConfigRequestHeader,
    NotifyMinBrokerIdChangeRequestHeader,
    PutKVConfigRequestHeader,
)
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer


async def test_a_closed_connection_takes_exactly_its_broker(server: NameServer, client: RemotingClient) -> None:
    other = RemotingClient()
    await client.call(server.address, registration(broker_header("a", "10.0.0.1:1"), topics_body("A", "B")))
    await other.call(server.address, registration(broker_header("b", "10.0.0.2:1"), topics_body("A", "C")))
    await other.close()
    await until(lambda: server.table.route("C") is None)
    route = server.table.route("A")
    assert route is not None
    assert [b.broker_name for b in route.broker_datas] == ["a"]


async def test_the_connection_of_the_last_registration_counts(server: NameServer, client: RemotingClient) -> None:
    first = RemotingClient()
    for name, address in (("a", "10.0.0.1:1"), ("b", "10.0.0.2:1")):
        await first.call(server.address, registration(broker_header(name, address), topics_body("A", "B")))
    await client.call(server.address, registration(broker_header("a", "10.0.0.1:1"), topics_body("A", "B")))
    await first.close()
    await until(lambda: "b" not in server.table.cluster_info().broker_addr_table)
    assert "a" in server.table.cluster_info().broker_addr_table


async def test_a_silent_broker_goes_and_its_connection_is_closed(server: NameServer, client: RemotingClient) -> None:
    # Opened before the registration. Later the client could open a new connection, without a registered broker.
    connection = await client.connection(server.address)
    await client.call(server.address, registration(broker_header(timeout_ms=100), topics_body("A", "B")))
    await until(lambda: connection.is_closed)
    assert server.table.route("A") is None
    assert server.table.cluster_info().cluster_addr_table == {}


async def test_heartbeats_keep_a_broker(
    server: NameServer, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks = 1000.0, 0

    def look() -> float:
        nonlocal looks
        looks += 1
        return now

    monkeypatch.setattr(handlers_module, "monotonic", lambda: now)
    monkeypatch.setattr(server_module, "monotonic", look)
    await client.call(server.address, registration(broker_header(timeout_ms=200), topics_body("A", "B")))
    header = BrokerHeartbeatRequestHeader(
        cluster_name="DefaultCluster", broker_addr="10.0.0.1:10911", broker_name="broker-a"
    )
    for _ in range(3):
        now += 0.15
        await client.call(server.address, RemotingCommand.request(RequestCode.BROKER_HEARTBEAT, header))
        looked = looks
        await until(lambda looked=looked: looks > looked)
        assert server.table.route("A") is not None
    now += 0.25
    await until(lambda: server.table.route("A") is None)


async def test_brokers_are_told_of_the_lowest_id(
    server: NameServer, client: RemotingClient, config: NamesrvConfig
) -> None:
    config.notify_min_broker_id_changed = True
    told: list[NotifyMinBrokerIdChangeRequestHeader] = []

    def notified(connection: Connection, request: RemotingCommand) -> None:
        told.append(request.read_header(NotifyMinBrokerIdChangeRequestHeader))

    broker = RemotingServer({RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: notified}, ListenOptions("127.0.0.1"))
    await broker.start()
    slave, master = f"127.0.0.1:{broker.port}", "127.0.0.1:1"
    body = topics_body("A", TopicConfig("B"))
    await client.call(server.address, registration(broker_header("a", slave, broker_id=1, acting=True), body))
    await client.call(server.address, registration(broker_header("a", master, broker_id=0, acting=True), body))
    await until(lambda: len(told) == 1)
    gone = BrokerRequestHeader(broker_name="a", broker_addr=master, cluster_name="DefaultCluster", broker_id=0)
    await client.call(server.address, RemotingCommand.request(RequestCode.UNREGISTER_BROKER, gone))
    await until(lambda: len(told) == 2)
    await broker.stop()
    assert told == [
        NotifyMinBrokerIdChangeRequestHeader(
            min_broker_id=0, min_broker_addr=master, broker_name="a", ha_broker_addr=master
        ),
        NotifyMinBrokerIdChangeRequestHeader(
            min_broker_id=1, min_broker_addr=slave, broker_name="a", offline_broker_addr=master
        ),
    ]


async def test_a_taken_port_is_named_and_stop_does_no_harm(config: NamesrvConfig) -> None:
    config.listen_port = free_port()
    server = NameServer(config)
    await server.start()
    with pytest.raises(GantryError, match=f"127.0.0.1:{config.listen_port}"):
        await NameServer(config).start()
    await server.stop()
    await server.stop()
    # The port is free again, even if the server was created but not started.
    for _ in range(2):
        await NameServer(config).stop()


async def test_kv_config_outlives_the_server(config: NamesrvConfig, client: RemotingClient) -> None:
    for value in ("first", "second"):
        server = NameServer(config)
        await server.start()
        put = PutKVConfigRequestHeader(namespace="n", key=value, value="v")
        await client.call(server.address, RemotingCommand.request(RequestCode.PUT_KV_CONFIG, put))
        await server.stop()
    server = NameServer(config)
    await server.start()
    for key in ("first", "second"):
        get = RemotingCommand.request(RequestCode.GET_KV_CONFIG, KVConfigRequestHeader(namespace="n", key=key))
        assert (await client.call(server.address, get)).ext_fields == {"value": "v"}
    await server.stop()
    assert config.kv_config_path.read_bytes() == b'{"configTable":{"n":{"first":"v","second":"v"}}}'


async def test_a_damaged_kv_config_is_not_overwritten(config: NamesrvConfig) -> None:
    config.kv_config_path.parent.mkdir()
    config.kv_config_path.write_bytes(b'{"configTable":{"n":')
    with pytest.raises(ConfigError, match=r"kvConfig\.json is damaged"):
        await NameServer(config).start()
    assert config.kv_config_path.read_bytes() == b'{"configTable":{"n":'


async def test_a_kv_config_that_can_t_be_written_changes_nothing(config: NamesrvConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config.kv_config_path = tmp_path / "file" / "kvConfig.json"
    server = NameServer(config)
    with pytest.raises(ConfigError, match=r"file/kvConfig\.json"):
        await server.start()


@pytest.mark.parametrize(
    ("bind_address", "address"), [("0.0.0.0", "127.0.0.1:9876"), ("::", "[::1]:9876"), ("10.0.0.1", "10.0.0.1:9876")]
)
def test_the_address_is_one_to_connect_to(bind_address: str, address: str) -> None:
    assert reachable(bind_address, 9876) == address
