"""Strangers on the replication port of a broker with access control: they read nothing, and do not count as slaves."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from random import Random
from struct import pack

from hostile_support import UnderAttack
from ports import free_port

from gantrymq.replication.frames import encode_opening, encode_report

#: Bytes after the first 16 in place of a signature.
_RESPONSES = [
    b"",
    encode_report(1 << 50, 1, checked=True),
    pack(">qi", -2, 0),
    pack(">qi", -2, 1 << 30),
    pack(">qi", -2, 52) + bytes(52),
    pack(">qi", -2, 68) + bytes(48) + pack(">HH", 8, 8) + b"administ",
    Random(1).randbytes(5000),
]


async def test_strangers_at_a_guarded_port_for_slaves(under_attack: UnderAttack) -> None:
    """1,000 connections with invalid handshakes. The broker closes those that send nothing more."""
    port = free_port()
    credentials = json.dumps({"accessKey": "broker", "secretKey": "secret12"})
    properties = {
        "haListenPort": str(port),
        "authenticationEnabled": "true",
        "innerClientAuthenticationCredentials": credentials,
        # The innocent client does not sign its requests.
        "authenticationWhitelist": ",".join(map(str, range(1000))),
    }
    async with under_attack(properties=properties) as broker:
        peer = await broker.peer()
        await peer.send("orders", b"a secret" * 1000)
        sockets = []
        for number in range(1000):
            one = socket.create_connection(("127.0.0.1", port))
            one.setblocking(False)
            sockets.append(one)
            with suppress(OSError):
                one.sendall(encode_opening(1) + _RESPONSES[number % len(_RESPONSES)])
            if number % 50 == 0:
                await asyncio.sleep(0)
        got = [await read_to_end(one) for one in sockets]
        # They receive a nonce at most.
        assert max(map(len, got)) <= 28
        assert not any(b"a secret" in data for data in got)


async def read_to_end(one: socket.socket) -> bytes:
    loop, got = asyncio.get_running_loop(), b""
    with suppress(OSError):
        async with asyncio.timeout(60):
            while data := await loop.sock_recv(one, 4096):
                got += data
    one.close()
    return got
