"""`receive` ends within its timeout plus a second, regardless of the servers' behaviour."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from broken_records import LogBroker, good
from scripted import ScriptedNameServer, route_over, serving

from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.errors import ProtocolError, RemotingError
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RESPONSE_FLAG, RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.remoting.responses import encode_reply

Answer = Callable[[RemotingCommand], bytes]

#: Additional time on a busy machine, in seconds. Without the timeout, one call took 11 s.
MOST_S = 5.0


def silent(request: RemotingCommand) -> bytes:
    return b""


def cut(request: RemotingCommand) -> bytes:
    """Returns half of a response. The rest is never sent."""
    frame = encode_reply(request, RemotingCommand.response(body=good(0)))
    return frame[: len(frame) // 2]


def nonsense(request: RemotingCommand) -> bytes:
    return b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{"


def without_header(request: RemotingCommand) -> bytes:
    return encode_reply(request, RemotingCommand.response(body=good(0)))


@asynccontextmanager
async def server(answer: Answer, to: set[int]) -> AsyncIterator[str]:
    """Starts a server that uses `answer` for the codes in `to`, and responds with success to all others."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        try:
            while data := await reader.read(65536):
                for request in frames.feed(data):
                    if not request.flag & RESPONSE_FLAG:
                        writer.write(
                            answer(request) if request.code in to else encode_reply(request, RemotingCommand.response())
                        )
        except ConnectionError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


@pytest.mark.parametrize("answer", [silent, cut, nonsense, without_header])
@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.HEART_BEAT])
@pytest.mark.parametrize("await_ms", [0, 300])
async def test_a_broker_that_does_not_answer_as_it_should(answer: Answer, code: RequestCode, await_ms: int) -> None:
    name_server = ScriptedNameServer({})
    async with serving([name_server]), server(answer, {code}) as address:
        name_server.routes["topic"] = route_over({"broker": address}, queue_nums=1)
        consumer = SimpleConsumer(name_server.address, "group")
        consumer.subscribe("topic")
        async with consumer:
            began = time.monotonic()
            with pytest.raises((RemotingError, ProtocolError)):
                await consumer.receive(timeout=await_ms / 1000)
            assert time.monotonic() - began < await_ms / 1000 + MOST_S


async def test_a_name_server_that_is_silent() -> None:
    async with server(silent, {RequestCode.GET_ROUTEINFO_BY_TOPIC}) as address:
        consumer = SimpleConsumer(address, "group")
        async with consumer:
            # A subscription before the start would make the start wait for the topic's route.
            consumer.subscribe("topic")
            began = time.monotonic()
            with pytest.raises(RemotingError, match=r"answered in 0\.2 s"):
                await consumer.receive(timeout=0.2)
            assert time.monotonic() - began < 0.2 + MOST_S


@pytest.mark.parametrize("answer", [silent, cut, nonsense, without_header])
async def test_the_other_brokers_messages_come_in_time(answer: Answer) -> None:
    broker, name_server = LogBroker([good(0)]), ScriptedNameServer({})
    codes = {RequestCode.POP_MESSAGE, RequestCode.HEART_BEAT}
    async with serving([name_server, broker]), server(answer, codes) as address:
        name_server.routes["topic"] = route_over({"bad": address, "broker": broker.address}, queue_nums=1)
        consumer = SimpleConsumer(name_server.address, "group")
        consumer.subscribe("topic")
        async with consumer:
            began = time.monotonic()
            (message,) = await consumer.receive(timeout=2)
            assert message.body == b"good 0"
            assert time.monotonic() - began < 2 + MOST_S
