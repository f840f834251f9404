"""Requests that are expensive to decode or to execute are rejected in every form."""

from __future__ import annotations

import grpc
import pytest
from proxy_support import Rpc, message, new_topic

from gantrymq.client.admin.client import AdminClient
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip], ids=["plain", "gzip"])
async def test_calls_other_than_sends_are_small(rpc: Rpc, compression: grpc.Compression) -> None:
    # Decoding 130 MiB of this takes 13 s. With gzip, it is 130 KiB.
    entries = [rpc_pb.AckMessageEntry()] * (2 * 1024 * 1024)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await rpc.AckMessage(rpc_pb.AckMessageRequest(entries=entries), compression=compression)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_entries_of_an_acknowledgement(rpc: Rpc) -> None:
    request = rpc_pb.AckMessageRequest(
        group=pb.Resource(name="g"), topic=pb.Resource(name="t"), entries=[rpc_pb.AckMessageEntry()] * 4097
    )
    response = await rpc.AckMessage(request)
    assert (response.status.code, response.status.message) == (
        pb.BAD_REQUEST,
        "4097 messages are acknowledged at once: at most 4096 are taken",
    )


@pytest.mark.parametrize("mib", [6, 100])
async def test_a_body_that_no_broker_takes(rpc: Rpc, admin: AdminClient, mib: int) -> None:
    topic = await new_topic(admin)
    response = await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(topic, bytes(mib * 1024 * 1024))]))
    assert response.status.code == pb.MESSAGE_BODY_TOO_LARGE
    # The connection stays open.
    response = await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(topic, b"small")]))
    assert response.status.code == pb.OK


async def test_messages_of_a_batch(rpc: Rpc, admin: AdminClient) -> None:
    topic = await new_topic(admin)
    response = await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(topic, b"x")] * 4097))
    assert response.status.code == pb.BAD_REQUEST
    assert response.status.message == "4097 messages in one request: at most 4096 are taken"


@pytest.mark.parametrize("method", ["QueryRoute", "QueryAssignment"])
async def test_what_routes_repeat_for_each_queue(rpc: Rpc, admin: AdminClient, method: str) -> None:
    topic = await new_topic(admin)
    endpoints = pb.Endpoints(addresses=[pb.Address(host="h" * 100, port=1)] * 100)
    if method == "QueryRoute":
        response = await rpc.QueryRoute(rpc_pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=endpoints))
    else:
        response = await rpc.QueryAssignment(
            rpc_pb.QueryAssignmentRequest(
                topic=pb.Resource(name=topic), group=pb.Resource(name="g"), endpoints=endpoints
            )
        )
    assert response.status.code == pb.ILLEGAL_ACCESS_POINT


async def test_topics_of_a_client(rpc: Rpc) -> None:
    settings = pb.Settings(
        client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name="t")] * 10_001), user_agent=pb.UA()
    )
    stream = rpc.Telemetry()
    await stream.write(rpc_pb.TelemetryCommand(settings=settings))
    with pytest.raises(grpc.aio.AioRpcError, match="10001 topics in one client's settings: at most 10000"):
        await stream.read()
