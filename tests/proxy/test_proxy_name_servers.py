"""NameServers that accept connections and never respond."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from proxy_support import Rpc, message, new_topic
from running_proxy import HOST, running_proxy

from gantrymq.client.admin.client import AdminClient
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.system import randomness
from gantrymq.testing.embedded import EmbeddedCluster

#: Timeout in seconds. A NameServer has 3 s; beside other tests, the machine can take twice as long.
ANSWERED_S = 6


@pytest.fixture
async def hung() -> AsyncIterator[str]:
    """Yields the address of a NameServer that reads requests without a response."""

    async def read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass
        writer.close()

    async with await asyncio.start_server(read_all, HOST, 0) as server:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"


def requests(rpc: Rpc, topic: str) -> list[Any]:
    """Returns twenty route queries and twenty sends, all at once."""
    route = rpc_pb.QueryRouteRequest(
        topic=pb.Resource(name=topic),
        endpoints=pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=HOST, port=1)]),
    )
    sends = [rpc_pb.SendMessageRequest(messages=[message(topic)]) for _ in range(20)]
    return [
        *(rpc.QueryRoute(route, timeout=ANSWERED_S) for _ in range(20)),
        *(rpc.SendMessage(send, timeout=ANSWERED_S) for send in sends),
    ]


async def test_the_only_one_hangs(hung: str) -> None:
    async with running_proxy(hung) as proxy, grpc.aio.insecure_channel(proxy.address) as channel:
        answers = await asyncio.gather(*requests(Rpc(channel, "host@1"), "any"))
    assert {answer.status.code for answer in answers} == {pb.PROXY_TIMEOUT}
    assert hung in answers[0].status.message


async def test_one_of_two_hangs(
    hung: str, cluster: EmbeddedCluster, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await new_topic(admin)
    # The first NameServer is random.
    monkeypatch.setattr(randomness, "randrange", lambda stop: 0)
    async with (
        running_proxy(f"{hung};{cluster.name_server}") as proxy,
        grpc.aio.insecure_channel(proxy.address) as channel,
    ):
        answers = await asyncio.gather(*requests(Rpc(channel, "host@1"), topic))
    assert {answer.status.code for answer in answers} == {pb.OK}
