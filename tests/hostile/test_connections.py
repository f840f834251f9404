"""Unusual connections do not affect other clients.

They use another protocol, send no data or too much, or are half closed.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
import urllib.request
from contextlib import suppress

import pytest
from hostile_support import UnderAttack, flood, frame, pull_header, send_header
from ports import free_port
from wait_until import until, wait_until

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from gantrymq.protocol.headers.offset import QueueRequestHeader
from gantrymq.remoting.address import parse_address

#: First bytes of other protocols.
_STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "one byte": b"\x16",
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
    "negative length": struct.pack(">i", -1) * 10,
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "PROXY": b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
    "random": random.Random(1).randbytes(5000),
    "length of a header alone": struct.pack(">iI", 16_000_000, 0x00FFFFFF),
    "JSON": struct.pack(">iI", 104, 100) + b"{" * 100,
    "deep JSON": struct.pack(">iI", 4 + 100_000, 100_000) + b'{"extFields":' + b"[" * 99_987,
    "binary": struct.pack(">iI", 104, 100 | 1 << 24) + b"\xff" * 100,
    "encoding 9": struct.pack(">iI", 104, 100 | 9 << 24) + bytes(100),
    "a million fields": struct.pack(">iI", 4 + 9_888_899, 9_888_899)
    + b'{"extFields":{'
    + b",".join(b'"%d":""' % number for number in range(900_000))
    + b"}}",
    "nothing": b"",
}


@pytest.mark.parametrize("server", ["broker", "NameServer"])
async def test_strangers(under_attack: UnderAttack, server: str) -> None:
    async with under_attack() as broker:
        process = broker.process if server == "broker" else broker.name_server
        for _ in range(40):
            sockets = []
            for data in _STRANGERS.values():
                sockets.append(broker.socket(process))
                # The server closes some connections before they have sent everything.
                with suppress(ConnectionError):
                    sockets[-1].sendall(data)
            for one in sockets:
                one.close()


async def test_those_who_speak_slowly(under_attack: UnderAttack) -> None:
    """500 connections that send one byte at a time."""
    request = frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x")[:-1]
    async with under_attack() as broker:
        sockets = [broker.socket() for _ in range(500)]
        for byte in request:
            for one in sockets:
                one.send(bytes([byte]))
            await asyncio.sleep(0)
        for one in sockets:
            one.close()


async def test_those_who_say_no_more_but_stay(under_attack: UnderAttack) -> None:
    """Half-closed connections: the broker closes its own half, too."""
    async with under_attack() as broker:
        await (await broker.peer()).send("orders", b"x")
        before = broker.descriptors()
        sockets = [broker.socket() for _ in range(500)]
        for number, one in enumerate(sockets):
            one.sendall(frame(RequestCode.PULL_MESSAGE, pull_header("orders", 1, suspend_ms=60_000))[: number % 400])
            one.shutdown(socket.SHUT_WR)
        await until(lambda: broker.descriptors() <= before)
        for one in sockets:
            one.close()


async def test_silent_ones_that_are_cut_off(under_attack: UnderAttack) -> None:
    """2,000 connections at a time, ended by RST, as after a loss of power."""
    async with under_attack() as broker:
        before = broker.descriptors()
        sockets = [broker.socket() for _ in range(2000)]
        await until(lambda: broker.descriptors() > before + 1500)
        for number, one in enumerate(sockets):
            one.sendall(frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x" * 1000)[: number % 1200])
            cut_off(one)
        await until(lambda: broker.descriptors() <= before + 10)


def cut_off(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


async def test_clients_that_are_cut_off_while_they_wait(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        for _ in range(10):
            sockets = [broker.socket() for _ in range(100)]
            for one in sockets:
                one.sendall(frame(RequestCode.PULL_MESSAGE, pull_header("orders", 1, suspend_ms=60_000)) * 20)
            for one in sockets:
                cut_off(one)
            assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS


#: Requests that a server rejects, or that contain strange names.
_REFUSED = (
    frame(12345),
    frame(-1),
    frame(RequestCode.VIEW_MESSAGE_BY_ID, offset="-1"),
    frame(RequestCode.GET_ROUTEINFO_BY_TOPIC),
    frame(RequestCode.UNREGISTER_CLIENT, clientID="a\nb", producerGroup="\n"),
    frame(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE),
)


async def test_floods_that_could_fill_the_log(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        for request in _REFUSED:
            with broker.socket() as attacker, broker.socket(broker.name_server) as other:
                await asyncio.gather(flood(attacker, request * 20_000), flood(other, request * 20_000))
        await until(lambda: broker.descriptors() < 40)


async def test_half_messages_that_are_too_old(under_attack: UnderAttack) -> None:
    """The broker does not check them, and does not log a line for each."""
    half = send_header("orders", {"TRAN_MSG": "true", "PGROUP": "attackers"}, born_timestamp=1)
    given_up = ["got no answer to its last check"]
    async with under_attack(properties={"transactionCheckInterval": "500"}, log_may_have=given_up) as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        with broker.socket() as attacker:
            await flood(attacker, frame(RequestCode.SEND_MESSAGE_V2, half, b"x") * 20_000)

            async def are_given_up() -> bool:
                header = QueueRequestHeader(topic="TRANS_CHECK_MAX_TIME_TOPIC", queue_id=0)
                answer = await peer.ask(RequestCode.GET_MAX_OFFSET, header)
                return int(answer.ext_fields.get("offset", 0)) >= 10_000

            await until(are_given_up, 60)


async def test_answers_that_nobody_asked_for(under_attack: UnderAttack) -> None:
    answer = RemotingCommand.response(0, "a\nb", body=b"x" * 100)
    answer.flag |= RESPONSE_FLAG
    async with under_attack() as broker:
        with broker.socket() as attacker, broker.socket(broker.name_server) as other:
            await asyncio.gather(flood(attacker, answer.encode() * 100_000), flood(other, answer.encode() * 100_000))


async def test_requests_that_want_no_answer(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        await (await broker.peer()).send("orders", b"x")
        request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_header("orders"), b"x")
        request.flag |= ONEWAY_FLAG
        with broker.socket() as attacker:
            await flood(attacker, request.encode() * 100_000)
            # The response to this request shows that all earlier ones are handled.
            attacker.setblocking(True)
            await asyncio.to_thread(attacker.sendall, frame(RequestCode.GET_BROKER_CONFIG))
            assert await asyncio.to_thread(attacker.recv, 4)


async def test_handshakes(under_attack: UnderAttack) -> None:
    """TLS on a server with a self-made certificate. Some clients complete the handshake, most do not."""
    pytest.importorskip("cryptography")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with under_attack() as broker:
        silent = []
        for _ in range(300):
            silent.append(broker.socket())
            silent[-1].sendall(_STRANGERS["TLS"][:50])
        host, port = parse_address(broker.address)
        for _ in range(10):
            opened = await asyncio.gather(*(asyncio.open_connection(host, port, ssl=context) for _ in range(20)))
            for _, writer in opened:
                writer.close()
        for one in silent:
            one.close()


async def test_the_page_of_figures(under_attack: UnderAttack) -> None:
    """Incomplete requests and unknown paths do not keep others from the metrics page."""
    port = free_port()
    async with under_attack(properties={"metricsPort": str(port)}):
        texts = (b"GET /metrics HTTP/1.1\r\nX: ", b"", b"GET /" + b"x" * 100_000, bytes(50), b"POST / HTTP/1.1\r\n\r\n")
        sockets = []
        for number in range(300):
            sockets.append(socket.create_connection(("127.0.0.1", port), timeout=10))
            texts = (
                b"GET /metrics HTTP/1.1\r\nX: ",
                b"",
                b"GET /" + b"x" * 100_000,
                b"\x00" * 50,
                b"POST / HTTP/1.1\r\n\r\n",
            )
            try:
                sockets[-1].sendall(texts[number % len(texts)])
            except OSError:
                continue
        for one in sockets:
            one.close()

        def figures() -> bytes:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    return bytes(answer.read())
            except OSError:
                return b""

        assert b"rocketmq" in await asyncio.to_thread(wait_until, figures)
