"""Strangers on the replication port: clients are not affected, and a slave's log is not delayed."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from random import Random
from struct import pack

from hostile_support import UnderAttack
from ports import free_port

from gantrymq.replication.frames import encode_opening, encode_report

#: First bytes of other protocols.
_RUBBISH = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    b"\xff" * 1000,
    bytes(100_000),
    pack(">q", -2),
    pack(">q", (1 << 63) - 1),
    pack(">qq", 0, 1 << 50),
    encode_opening(1 << 50) + encode_report(1 << 50, 1, checked=True),
    encode_opening(1)[:11],
    Random(1).randbytes(5000),
    b"",
]


async def test_strangers_at_the_port_for_slaves(under_attack: UnderAttack) -> None:
    """Many kinds of strangers at once.

    There are connections with garbage, 1,000 silent ones, 30 that request the log without reading, and 10 that read
    it repeatedly.
    """
    port = free_port()
    async with under_attack(properties={"haListenPort": str(port)}) as broker:
        peer = await broker.peer()
        for _ in range(60):
            await peer.send("orders", bytes(500_000))
        sockets = []
        for number in range(1000):
            one = socket.create_connection(("127.0.0.1", port))
            one.setblocking(False)
            sockets.append(one)
            if number % 2:
                with suppress(OSError):
                    one.sendall(_RUBBISH[number // 2 % len(_RUBBISH)])
            if number % 50 == 0:
                await asyncio.sleep(0)
        for _ in range(30):
            one = socket.create_connection(("127.0.0.1", port))
            one.sendall(pack(">q", 1))
            sockets.append(one)
        await asyncio.gather(*(follow(port, number) for number in range(10)))
        for one in sockets:
            one.close()


async def follow(port: int, broker_id: int) -> None:
    """Reads the log like an empty slave, several times: 30 MB each."""
    got = 0
    for number in range(1, 6):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_opening(1) + encode_report(0, broker_id, checked=True))
        async with asyncio.timeout(30):
            while got < number * 30_000_000:
                data = await reader.read(1 << 20)
                assert data, "a slave that reads was left"
                got += len(data)
        writer.close()
