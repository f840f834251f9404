"""Calls that are cheap to make and dear to answer, beside an innocent client of the proxy."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterable

import pytest
from hostile_support import Target, UnderAttack
from proxy_peer import ProxyPeer, message, signed

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
    """5 KB each, which inflate to 2.5 million messages of a batch."""
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
        ("QueryRoute", b"\x12\x02\x12\x00", 60_000),
        ("ReceiveMessage", b"\x12\x04\x22\x02\x1a\x00", 2_000),
    ],
    ids=["addresses", "many small"],
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
