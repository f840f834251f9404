"""Test clusters for commands that inspect one: a NameServer in the test's event loop, and registered brokers only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import NoRouteInfo
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.topic_config import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader
from gantrymq.remoting.client import RemotingClient

CLUSTER = "DefaultCluster"


@asynccontextmanager
async def name_server(directory: Path, **options: Any) -> AsyncIterator[NameServer]:
    server = NameServer(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=directory / "kvConfig.json",
            config_store_path=directory / "namesrv.properties",
            **options,
        )
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def register(
    client: RemotingClient, server: NameServer, name: str, address: str, *topics: TopicConfig, broker_id: int = 0
) -> None:
    header = RegisterBrokerRequestHeader(
        broker_name=name, broker_addr=address, cluster_name=CLUSTER, broker_id=broker_id, ha_server_addr=""
    )
    table = {topic.topic_name: topic for topic in (*topics, TopicConfig(CLUSTER), TopicConfig(name))}
    body = encode_register_body(RegisterBrokerBody(TopicConfigTable(table)))
    await client.call(server.address, RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body))


async def create(admin: AdminClient, topic: TopicConfig, *, broker: str | None = None) -> None:
    """Creates a topic and returns when the NameServer has its route."""
    brokers = await admin.create_topic(topic, cluster=None if broker else CLUSTER, broker=broker)

    async def is_known() -> bool:
        with suppress(NoRouteInfo):
            queues = (await admin.topic_route(topic.topic_name)).queue_datas
            return sum(data.perm == topic.perm for data in queues) >= len(brokers)
        return False

    await until(is_known)
