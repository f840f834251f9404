"""Servers that send too many requests to their clients."""

from __future__ import annotations

import asyncio
import threading

import pytest
from scripted import ScriptedGroupBroker, ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.protocol.bodies.consumer import ConsumeMessageDirectlyResult
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.group import ConsumeMessageDirectlyResultRequestHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.record import encode_host, encode_record
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection

HOST = encode_host("127.0.0.1", 10911)


async def test_who_asks_and_takes_no_answers_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the pending responses would use much memory, for example 187 MB."""
    gone = asyncio.Event()
    question = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO).encode()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        try:
            while True:
                # Sends few requests at a time: a client with many pending responses stops reading.
                writer.write(question)
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            gone.set()
        finally:
            writer.close()

    server = await asyncio.start_server(ask, "127.0.0.1", 0)
    answers = 0

    def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        nonlocal answers
        answers += 1
        return RemotingCommand.response(body=bytes(100_000))

    client = RemotingClient({RequestCode.GET_CONSUMER_RUNNING_INFO: answer})
    try:
        port = server.sockets[0].getsockname()[1]
        await client.connection(f"127.0.0.1:{port}")
        await asyncio.wait_for(gone.wait(), 20)
    finally:
        await client.close()
        server.close()
        await server.wait_closed()
    assert "takes no answers" in caplog.text
    # Only as much as fits into the write buffer and the kernel's buffer.
    assert answers * 100_000 < 64 * 1024 * 1024


class AskingBroker(ScriptedGroupBroker):
    """Stores its consumer's connection."""

    connection: Connection | None = None

    def _heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.connection = connection
        return super()._heartbeat(connection, request)


async def test_messages_to_consume_on_demand_take_their_turn() -> None:
    """Otherwise direct consumption would use an unlimited number of threads."""
    go_on = threading.Event()
    begun = 0

    def handle(message: MessageExt) -> None:
        nonlocal begun
        begun += 1
        go_on.wait(20)

    broker, name_server = AskingBroker(), ScriptedNameServer({})
    async with serving([name_server, broker]):
        name_server.routes["topic"] = route_over({"broker": broker.address}, queue_nums=1)
        consumer = PushConsumer(name_server.address, "group", handle, concurrency=2)
        consumer.subscribe("topic")
        async with consumer:
            await until(lambda: broker.connection)
            assert broker.connection is not None
            header = ConsumeMessageDirectlyResultRequestHeader(consumer_group="group", client_id="client")
            record = encode_record(0, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, 0, b"body", b"topic", b"")
            answers = [
                broker.connection.start_request(
                    RemotingCommand.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, record), 20_000
                )
                for _ in range(30)
            ]
            await until(lambda: begun)
            await asyncio.sleep(0.1)
            assert begun == 1
            assert sum(thread.name.startswith("gantrymq-handler") for thread in threading.enumerate()) == 3
            go_on.set()
            results = [
                decode_json(answer.body, ConsumeMessageDirectlyResult) for answer in await asyncio.gather(*answers)
            ]
    assert begun == 30
    assert {result.consume_result for result in results} == {"CR_SUCCESS"}
