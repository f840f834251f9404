"""NameServers by DNS and from the page of an address server."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker_support import Peer, config, name_server
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.errors import GantryError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.route import ClusterInfo
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.remoting.client import RemotingClient


class AddressServer:
    """A web server with one page. It counts the requests and keeps the path of the last one."""

    def __init__(self) -> None:
        self.text = ""
        self.status = "200 OK"
        self.path = ""
        self.requests = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._respond, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        self.path = request.split()[1].decode()
        self.requests += 1
        writer.write(f"HTTP/1.0 {self.status}\r\n\r\n{self.text}".encode())
        writer.close()


@pytest.fixture
async def address_server() -> AsyncIterator[AddressServer]:
    server = AddressServer()
    yield server
    await server.stop()


@pytest.fixture
async def name_servers(tmp_path: Path) -> AsyncIterator[list[NameServer]]:
    servers = [name_server(tmp_path / "first"), name_server(tmp_path / "second")]
    for server in servers:
        await server.start()
    yield servers
    for server in servers:
        await server.stop()


async def has_broker(remoting: RemotingClient, server: NameServer) -> bool:
    response = await remoting.call(server.address, RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO))
    return "broker-a" in decode_json(response.body, ClusterInfo).broker_addr_table


@pytest.mark.parametrize("sends_heartbeats", [False, True])
async def test_the_page_of_an_address_server(
    sends_heartbeats: bool,
    address_server: AddressServer,
    name_servers: list[NameServer],
    remoting: RemotingClient,
    tmp_path: Path,
) -> None:
    first, second = name_servers
    domain = await address_server.start()
    address_server.text = f"{first.address}\n"
    broker = Broker(
        config(
            tmp_path / "store",
            fetch_namesrv_addr_by_address_server=True,
            fetch_namesrv_addr_interval=20,
            rmq_address_server_domain=domain,
            rmq_address_server_sub_group="cell",
            enable_slave_acting_master=sends_heartbeats,
            broker_not_active_timeout_millis=1_000,
            broker_heartbeat_interval=50,
        )
    )
    await broker.start()
    try:
        assert address_server.path == "/rocketmq/cell"
        assert await has_broker(remoting, first)
        # The changed page replaces the NameServer.
        address_server.text = second.address
        await until(lambda: has_broker(remoting, second))

        async def is_gone() -> bool:
            return not await has_broker(remoting, first)

        await until(is_gone)
        # While the page fails, the last NameServers stay.
        address_server.status, so_far = "500 Internal Server Error", address_server.requests
        await until(lambda: address_server.requests > so_far)
        assert broker.config.name_servers == [second.address]
        assert await has_broker(remoting, second)
        # `namesrvAddr` replaces the page, and is the only key that is saved.
        peer = Peer(await remoting.connection(broker.address))
        text = f"namesrvAddr={first.address}".encode()
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text)).code == ResponseCode.SUCCESS
        await until(lambda: has_broker(remoting, first))
    finally:
        await broker.stop()


async def test_a_broker_starts_without_an_address_server(
    address_server: AddressServer, name_servers: list[NameServer], remoting: RemotingClient, tmp_path: Path
) -> None:
    domain = await address_server.start()
    address_server.text = "sorry"
    broker = Broker(
        config(
            tmp_path / "store",
            fetch_namesrv_addr_by_address_server=True,
            fetch_namesrv_addr_interval=20,
            rmq_address_server_domain=domain,
        )
    )
    await broker.start()
    try:
        assert address_server.path == "/rocketmq/nsaddr"
        assert broker.config.name_servers == []
        address_server.text = name_servers[0].address
        # The retry after a failure comes within 10 s.
        await until(lambda: has_broker(remoting, name_servers[0]), 30)
    finally:
        await broker.stop()


async def test_dns(name_servers: list[NameServer], remoting: RemotingClient, tmp_path: Path) -> None:
    port = int(name_servers[0].address.rpartition(":")[2])
    broker = Broker(
        config(tmp_path / "store", namesrv_addr=[f"localhost:{port}"], fetch_name_srv_addr_by_dns_lookup=True)
    )
    await broker.start()
    try:
        assert broker.config.name_servers == [f"127.0.0.1:{port}"]
        assert broker.config.namesrv_addr == [f"localhost:{port}"]
        assert await has_broker(remoting, name_servers[0])
        # An invalid host name is an error, and the last addresses stay.
        peer = Peer(await remoting.connection(broker.address))
        text = f"namesrvAddr={'x' * 64}.local:9876".encode()
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text)).code == ResponseCode.SUCCESS
        assert broker.config.name_servers == [f"127.0.0.1:{port}"]
        text = f"namesrvAddr=localhost:{name_servers[1].address.rpartition(':')[2]}".encode()
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text)).code == ResponseCode.SUCCESS
        await until(lambda: has_broker(remoting, name_servers[1]))
    finally:
        await broker.stop()


class Resolver:
    """Resolves one host to the addresses in `ips`, but fails while `fails` is true.

    It does not respond for the host `hangs`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: str, ips: list[str], hangs: str = "") -> None:
        self.ips = ips
        self.fails = False
        loop = asyncio.get_running_loop()
        ordinary = loop.getaddrinfo

        async def getaddrinfo(name: str, port: int, **options: Any) -> Any:
            if name == hangs:
                await asyncio.Event().wait()
            if name == host and self.fails:
                raise socket.gaierror(socket.EAI_AGAIN, "try again")
            if name != host:
                return await ordinary(name, port, **options)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in self.ips]

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[list[NameServer]]:
    """NameServers with the same port on two addresses."""
    servers = [name_server(tmp_path / "first")]
    await servers[0].start()
    port = int(servers[0].address.rpartition(":")[2])
    root = tmp_path / "second"
    settings = NamesrvConfig(
        bind_address="127.0.0.2",
        listen_port=port,
        kv_config_path=root / "kvConfig.json",
        config_store_path=root / "namesrv.properties",
    )
    servers.append(NameServer(settings))
    await servers[1].start()
    yield servers
    for server in servers:
        await server.stop()


@pytest.mark.skipif(sys.platform == "darwin", reason="127.0.0.2 is no address there")
async def test_a_name_server_that_dns_omits_keeps_the_broker(
    pair: list[NameServer],
    name_servers: list[NameServer],
    remoting: RemotingClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = pair
    port = int(first.address.rpartition(":")[2])
    resolver = Resolver(monkeypatch, "name-servers", ["127.0.0.1", "127.0.0.2"])
    broker = Broker(
        config(
            tmp_path / "store",
            namesrv_addr=[f"name-servers:{port}"],
            fetch_name_srv_addr_by_dns_lookup=True,
            update_name_server_addr_period=20,
        )
    )
    await broker.start()
    try:
        await until(lambda: has_broker(remoting, first))
        await until(lambda: has_broker(remoting, second))
        resolver.ips = ["127.0.0.1"]
        await until(lambda: broker.config.name_servers == [f"127.0.0.1:{port}"])
        # The broker unregisters from a NameServer that is removed from `namesrvAddr`.
        peer = Peer(await remoting.connection(broker.address))
        text = f"namesrvAddr=localhost:{name_servers[0].address.rpartition(':')[2]}".encode()
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text)).code == ResponseCode.SUCCESS

        async def is_gone() -> bool:
            return not await has_broker(remoting, first)

        await until(is_gone)
        await until(lambda: has_broker(remoting, name_servers[0]))
        assert await has_broker(remoting, second)
    finally:
        await broker.stop()


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_host_that_is_not_resolved_does_not_affect_the_others(
    hangs: bool,
    name_servers: list[NameServer],
    remoting: RemotingClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports = [int(server.address.rpartition(":")[2]) for server in name_servers]
    bad = "hangs.local" if hangs else f"{'x' * 64}.local"
    resolver = Resolver(monkeypatch, "name-server", ["127.0.0.1"], hangs="hangs.local")
    broker = Broker(
        config(
            tmp_path / "store",
            namesrv_addr=[f"{bad}:9876", f"name-server:{ports[0]}"],
            fetch_name_srv_addr_by_dns_lookup=True,
            update_name_server_addr_period=20,
        )
    )
    await broker.start()
    try:
        await until(lambda: has_broker(remoting, name_servers[0]), 60)
        [report] = [job for job in broker.jobs if job.name == "look up the NameServers"]
        assert bad in report.last_error
        # The last addresses of the failed host stay.
        if not hangs:
            peer = Peer(await remoting.connection(broker.address))
            addresses = f"name-server:{ports[0]};localhost:{ports[1]}"
            text = f"namesrvAddr={addresses}".encode()
            assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text)).code == ResponseCode.SUCCESS
            await until(lambda: has_broker(remoting, name_servers[1]))
            resolver.fails = True
            failures = report.failures
            await until(lambda: report.failures > failures)
            assert broker.config.name_servers == [f"127.0.0.1:{port}" for port in ports]
    finally:
        await broker.stop()


async def test_a_broker_that_cannot_start_is_not_registered(
    name_servers: list[NameServer], remoting: RemotingClient, tmp_path: Path
) -> None:
    addresses = [f"localhost:{name_servers[0].address.rpartition(':')[2]}"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = config(tmp_path / "store", namesrv_addr=addresses, metrics_port=taken.getsockname()[1])
        settings.fetch_name_srv_addr_by_dns_lookup = True
        with pytest.raises(GantryError, match="metricsPort"):
            await Broker(settings).start()
    # The registration of another broker takes longer than one that the failed start could have left behind.
    settings = config(tmp_path / "other", namesrv_addr=addresses)
    settings.broker_name = "broker-b"
    other = Broker(settings)
    await other.start()
    try:
        assert not await has_broker(remoting, name_servers[0])
    finally:
        await other.stop()
