"""Registered brokers that accept connections and never respond."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from console_target import console_under_attack

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.topic_config import RegisterBrokerBody, TopicConfigTable, encode_register_body
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader

HANGING = 60


@pytest.mark.slow
async def test_brokers_that_never_answer(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    async with console_under_attack(tmp_path, record=record_property) as target, AsyncExitStack() as attackers:
        # The NameServer removes a broker when the connection that registered it closes.
        admin = await attackers.enter_async_context(AdminClient(target.cluster.namesrv_addr))
        for number in range(HANGING):
            silent = attackers.enter_context(socket.create_server(("127.0.0.1", 0)))
            header = RegisterBrokerRequestHeader(
                broker_name=f"hanging-{number}",
                broker_addr=f"127.0.0.1:{silent.getsockname()[1]}",
                cluster_name="DefaultCluster",
                ha_server_addr="127.0.0.1:2",
                broker_id=0,
            )
            body = encode_register_body(RegisterBrokerBody(TopicConfigTable()))
            request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)
            await transport_of(admin).remoting.call(target.cluster.namesrv_addr, request)
        async with target.visitor() as visitor:

            async def is_shown() -> bool:
                page = (await visitor.get("/api/v1/brokers?size=500")).json()
                return len(page["unasked"]) >= HANGING

            async with asyncio.timeout(60):
                while not await is_shown():
                    await asyncio.sleep(0.2)
            # The innocent visitor continues for as long as two rounds of probes take.
            await asyncio.sleep(12)
