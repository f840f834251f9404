"""Calls that are cheap to make and expensive to execute, beside an innocent client of the proxy."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterable

import pytest
from hostile_support import Target, UnderAttack, stop_in_time
from proxy_peer import ProxyPeer, message, signed

from gantrymq.client.admin.client import AdminClient
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb

MIB = 1024 * 1024
ROOT = ("root", "root-secret")
WITH_USERS = {
    "properties": {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username": "root", "password": "root-secret"}',
    },
    "proxy_properties": {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "innerClientAuthenticationCredentials": '{"accessKey": "root", "secretKey": "root-secret"}',
    },
    "prober_user": ROOT,
}


def of_proxy(target: Target) -> str:
    assert target.proxy is not None
    return target.proxy.address


async def peers(target: Target, count: int) -> list[ProxyPeer]:
    return [await ProxyPeer.connect(of_proxy(target)) for _ in range(count)]


async def closed(attackers: Iterable[ProxyPeer]) -> None:
    await asyncio.gather(*(peer.close() for peer in attackers))


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("user", [None, ROOT], ids=["stranger", "user"])
async def test_gzip_bombs(under_attack: UnderAttack, user: tuple[str, str] | None) -> None:
    """Requests of 5 KB that inflate to a batch of 2.5 million messages."""
    bomb = message(gzip.compress(b"\x0a\x00" * (5 * MIB // 2), 9), is_gzip=True)
    async with under_attack(proxy=True, **WITH_USERS) as target:
        attackers = await peers(target, 4)
        metadata = signed(*user) if user is not None else {}
        for _ in range(50):
            for peer in attackers:
                peer.call("SendMessage", bomb, grpc_encoding="gzip", **metadata)
        await asyncio.gather(*(peer.taken() for peer in attackers))
        await asyncio.sleep(2)
        await closed(attackers)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "element", "size"),
    [
        ("AckMessage", b"\x1a\x00", 2 * MIB - 16),
        ("SendMessage", b"\x0a\x02\x1a\x00", 4 * MIB - 16),
        ("SendMessage", b"\x0a\x02\x1a\x00", 190_000),
        ("QueryRoute", b"\x12\x02\x12\x00", 60_000),
        ("ReceiveMessage", b"\x12\x04\x22\x02\x1a\x00", 2_000),
    ],
    ids=["acknowledgements", "messages", "fewer messages", "addresses", "many small"],
)
async def test_messages_of_many_elements(under_attack: UnderAttack, method: str, element: bytes, size: int) -> None:
    payload = message(element * (size // len(element)))
    async with under_attack(proxy=True) as target:
        attackers = await peers(target, 6)
        for _ in range(max(2, min(500, 2 * MIB // size))):
            for peer in attackers:
                peer.call(method, payload)
            await asyncio.gather(*(peer.taken() for peer in attackers))
        await closed(attackers)


@pytest.mark.alone
@pytest.mark.slow
async def test_messages_of_4_mib_from_many_connections(under_attack: UnderAttack) -> None:
    """SendMessage without a topic: the proxy decodes each message before it can reject it."""
    body = b"x" * (4 * MIB - 1024)
    sent = rpc_pb.SendMessageRequest(messages=[pb.Message(body=body)])
    payload = message(sent.SerializeToString())
    async with under_attack(proxy=True) as target:
        attackers = await peers(target, 40)
        for _ in range(2):
            for peer in attackers:
                peer.call("SendMessage", payload)
            await asyncio.gather(*(peer.taken() for peer in attackers))
        await closed(attackers)


@pytest.mark.alone
@pytest.mark.slow
async def test_streams_of_settings(under_attack: UnderAttack) -> None:
    """Open streams with three commands each, and 60,000 empty topics per command."""
    topics = [pb.Resource()] * 60_000
    settings = rpc_pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing(topics=topics)))
    payload = message(settings.SerializeToString())
    async with under_attack(proxy=True) as target:
        attackers = await peers(target, 4)
        for _ in range(10):
            for peer in attackers:
                peer.call("Telemetry", payload * 3, ends=False)
            await asyncio.gather(*(peer.taken() for peer in attackers))
        await closed(attackers)


@pytest.mark.alone
@pytest.mark.slow
async def test_many_acknowledgements(under_attack: UnderAttack) -> None:
    """1,000 calls at once from each of ten connections, with ten receipt handles each that the proxy did not issue."""
    entries = [rpc_pb.AckMessageEntry(message_id=f"01{n:030X}", receipt_handle="1 2 3 4 5 6 7 8") for n in range(10)]
    request = rpc_pb.AckMessageRequest(group=pb.Resource(name="g"), topic=pb.Resource(name="t"), entries=entries)
    async with under_attack(proxy=True) as target:
        await called_at_once(target, "AckMessage", message(request.SerializeToString()))


def many_acknowledgements() -> bytes:
    entries = [rpc_pb.AckMessageEntry(message_id=f"{n}", receipt_handle="1 2 3 4 5 6 7 8") for n in range(4096)]
    return rpc_pb.AckMessageRequest(
        group=pb.Resource(name="g"), topic=pb.Resource(name="t"), entries=entries
    ).SerializeToString()


def many_messages() -> bytes:
    """Returns messages to a topic that does not exist. The proxy checks all of them first."""
    system = pb.SystemProperties(message_id="0" * 32, message_type=pb.NORMAL, tag="tag", keys=["key"])
    sent = pb.Message(topic=pb.Resource(name="absent"), body=b"x", system_properties=system)
    return rpc_pb.SendMessageRequest(messages=[sent] * 4096).SerializeToString()


def many_subscriptions() -> bytes:
    entries = [
        pb.SubscriptionEntry(topic=pb.Resource(name=f"t{n}"), expression=pb.FilterExpression(expression="a || b"))
        for n in range(10_000)
    ]
    subscription = pb.Subscription(group=pb.Resource(name="g"), subscriptions=entries)
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription)
    return rpc_pb.TelemetryCommand(settings=settings).SerializeToString()


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("AckMessage", many_acknowledgements),
        ("SendMessage", many_messages),
        ("Telemetry", many_subscriptions),
    ],
    ids=["acknowledgements", "messages", "subscriptions"],
)
async def test_valid_requests_of_many_elements(
    under_attack: UnderAttack, method: str, request_of: Callable[[], bytes]
) -> None:
    """The largest requests that the proxy accepts, from ten connections."""
    payload = message(request_of())
    async with under_attack(proxy=True) as target:
        attackers = await peers(target, 10)
        for _ in range(5):
            for peer in attackers:
                peer.call(method, payload)
            await asyncio.gather(*(peer.taken() for peer in attackers))
        await asyncio.sleep(1)
        await closed(attackers)


@pytest.mark.alone
@pytest.mark.slow
async def test_routes_of_many_queues(under_attack: UnderAttack) -> None:
    """1,000 calls at once from each of ten connections, for a topic with 1,024 queues."""
    async with under_attack(proxy=True) as target:
        await called_at_once(target, "QueryRoute", await large_route(target))


async def called_at_once(target: Target, method: str, payload: bytes) -> None:
    attackers = await peers(target, 10)
    for peer in attackers:
        for _ in range(1000):
            peer.call(method, payload)
    await asyncio.gather(*(peer.taken() for peer in attackers))
    await asyncio.sleep(1)
    await closed(attackers)


@pytest.mark.alone
@pytest.mark.slow
async def test_a_proxy_with_busy_connections_ends_in_time(under_attack: UnderAttack) -> None:
    """Each of 400 connections waits for the responses to 1,000 calls."""
    async with under_attack(proxy=True) as target:
        payload = await large_route(target)
        await target.probe_no_more()
        attackers = await peers(target, 400)
        for peer in attackers:
            for _ in range(1000):
                peer.call("QueryRoute", payload)
        assert target.proxy is not None
        await asyncio.to_thread(stop_in_time, target.proxy)
        await closed(attackers)


@pytest.mark.alone
@pytest.mark.slow
async def test_a_proxy_with_open_connections_ends_in_time(under_attack: UnderAttack) -> None:
    """400 connections, a quarter each: idle, with an open stream, half of a message, half of a frame."""
    settings = message(rpc_pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing())).SerializeToString())
    async with under_attack(proxy=True) as target:
        await target.probe_no_more()
        attackers = await peers(target, 400)
        for n, peer in enumerate(attackers):
            if n % 4 == 1:
                peer.call("Telemetry", settings, ends=False)
            elif n % 4 == 2:
                peer.call("SendMessage", message(b"x" * 1000)[:500], ends=False)
            elif n % 4 == 3:
                peer.send_half_a_frame()
        assert all(await asyncio.gather(*(peer.taken() for peer in attackers)))
        assert target.proxy is not None
        await asyncio.to_thread(stop_in_time, target.proxy)
        await closed(attackers)


async def large_route(target: Target) -> bytes:
    async with AdminClient(target.name_server.address) as admin:
        await admin.ensure_topic("large", queues=1024)
    request = rpc_pb.QueryRouteRequest(
        topic=pb.Resource(name="large"),
        endpoints=pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=8081)]),
    )
    return message(request.SerializeToString())
