"""Clients and NameServers that do not respond to the broker's requests, or respond with nonsense."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hostile_support import Peer, Target, UnderAttack, flood, frame, send_header
from wait_until import until

from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RESPONSE_FLAG, RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.system.clock import now_ms

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _hung(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads everything and responds with nothing."""
    while await reader.read(1 << 16):
        pass


async def _deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Does not read at all."""
    await asyncio.Event().wait()


async def _leaving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Closes the connection at the first request."""
    await reader.read(1)
    writer.close()


async def _stammering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Starts a large response and never finishes it."""
    await reader.read(1)
    writer.write(struct.pack(">iI", 16_000_000, 100))
    while True:
        writer.write(b"x")
        await asyncio.sleep(0.05)


async def _mad(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Responds to each request with a different invalid body, large or small."""
    frames = FrameReader()
    number = 0
    while data := await reader.read(1 << 16):
        for request in frames.feed(data):
            number += 1
            bodies = (b"", b"\x00" * 1000, b'{"table":5}', b"[" * 100_000, b"x" * 4_000_000)
            answer = RemotingCommand.response((0, 1, -7, 99999)[number % 4], "a\nb" * 100, body=bodies[number % 5])
            answer.opaque = request.opaque + (number % 3 == 2)
            answer.flag |= RESPONSE_FLAG
            writer.write(answer.encode() * (1 + number % 2))


async def _flooding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends endless requests itself."""
    request = frame(RequestCode.GET_BROKER_CONFIG) * 1000
    try:
        while True:
            writer.write(request)
            await writer.drain()
    except ConnectionError:
        return


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """Starts a server. Yields its address."""
    tasks = set[asyncio.Task[None]]()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def test_name_servers(under_attack: UnderAttack) -> None:
    """A broker with only faulty NameServers works for clients that have its address, and stops in time."""
    async with AsyncExitStack() as stack:
        bad = [
            await stack.enter_async_context(serving(serve))
            for serve in (_hung, _deaf, _leaving, _stammering, _mad, _flooding)
        ]
        bad += ["127.0.0.1:1", "no-such-host.invalid:9876"]
        loop = asyncio.get_running_loop()
        began = loop.time()
        failing = ["register with .* fail"]
        async with under_attack(properties={"namesrvAddr": ";".join(bad)}, log_may_have=failing) as broker:
            started_in = loop.time() - began
            peer = await broker.peer()
            for number in range(50):
                assert (await peer.send(f"topic-{number}", b"x")).code == ResponseCode.SUCCESS
            began = loop.time()
        assert started_in < 15
        assert loop.time() - began < 15


async def client_of_broker(broker: Target, serve: Serve) -> asyncio.Task[None]:
    """Registers a member of a group that responds with `serve`."""
    host, port = broker.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    consumer = ConsumerData("group", subscription_data_set=[SubscriptionData("orders")])
    data = HeartbeatData("member@1", producer_data_set=[ProducerData("group")], consumer_data_set=[consumer])
    writer.write(frame(RequestCode.HEART_BEAT, body=encode_json(data)))
    await reader.read(1)

    async def run() -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    return asyncio.create_task(run())


@pytest.mark.parametrize("serve", [_hung, _deaf, _leaving, _stammering, _mad], ids=lambda serve: serve.__name__[1:])
async def test_members_of_a_group(under_attack: UnderAttack, serve: Serve) -> None:
    """Administrators and other clients let the broker query a member, thousands of times at once."""
    reply = send_header(
        "DefaultCluster_REPLY_TOPIC", {"REPLY_TO_CLIENT": "member@1", "CORRELATION_ID": "1"}, producer_group="group"
    )
    asked = [
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "group", "clientId": "member@1"}, b""),
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "orders", "group": "group"}, b""),
        (
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "orders", "group": "group", "timestamp": "0", "isForce": "true"},
            b"",
        ),
    ]
    half = {"TRAN_MSG": "true", "PGROUP": "group", "UNIQ_KEY": "1", "CHECK_IMMUNITY_TIME_IN_SECONDS": "0"}
    properties = {"transactionTimeOut": "0", "transactionCheckInterval": "500"}
    async with under_attack(properties=properties) as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        member = await client_of_broker(broker, serve)
        for _ in range(50):
            header = send_header("orders", half, born_timestamp=now_ms())
            await peer.ask(RequestCode.SEND_MESSAGE_V2, header, b"x")
        with broker.socket() as attacker:
            requests = b"".join(frame(code, body=body, **fields) for code, fields, body in asked)
            requests += frame(RequestCode.SEND_REPLY_MESSAGE_V2, reply, b"x" * 1000)
            await flood(attacker, requests * 2000)
            await is_served(peer)
        await is_served(peer)
        member.cancel()


async def is_served(peer: Peer) -> None:
    async def is_answered() -> bool:
        return (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS

    await until(is_answered)
