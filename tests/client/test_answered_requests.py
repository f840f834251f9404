"""docs/compatibility.md lists the broker requests that each kind of client supports. Sends all of them to each kind."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from wait_until import until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.lite_push_consumer import LitePushConsumer
from gantrymq.client.popping.lite_simple_consumer import LiteSimpleConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import NoRouteInfo
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer

TEXT = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("\n## Requests of a broker to its clients\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (\d+) \| (\w+) \| ([^|]+) \|$", SECTION, re.MULTILINE)
#: A code that no client supports. Its response shows that all earlier requests were handled.
LAST = 99_999


class Server:
    """Stores the connection of the client that queries a route."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.server = RemotingServer({RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route}, ListenOptions("127.0.0.1"))

    def _route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.connection = connection
        return RemotingCommand.response(ResponseCode.TOPIC_NOT_EXIST, "as scripted")


class Listener:
    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


async def ignore(message: object) -> None:
    """Does nothing."""


def consumer(kind: Callable[..., Any], address: str, *args: object) -> Any:
    made = kind(address, "group", *args)
    made.subscribe("topic")
    return made


#: How to create each kind of client, and how to make it connect.
Kind = tuple[Callable[[str], Any], Callable[[Any], Awaitable[object]] | None]
KINDS: dict[str, Kind] = {
    "Producer": (lambda to: Producer(to, "group"), lambda it: it.queues("topic")),
    "TransactionProducer": (lambda to: TransactionProducer(to, "group", Listener()), lambda it: it.queues("topic")),
    "PushConsumer": (lambda to: consumer(PushConsumer, to, ignore), None),
    "LitePullConsumer": (lambda to: consumer(LitePullConsumer, to), None),
    "SimpleConsumer": (lambda to: consumer(SimpleConsumer, to), lambda it: it.receive()),
    "LiteSimpleConsumer": (lambda to: LiteSimpleConsumer(to, "group", "topic"), lambda it: it.receive()),
    "LitePushConsumer": (lambda to: LitePushConsumer(to, "group", "topic", ignore), None),
}


@pytest.mark.parametrize("name", KINDS)
async def test_what_a_client_answers_is_documented(name: str) -> None:
    make, connect = KINDS[name]
    server = Server()
    await server.server.start()
    try:
        async with make(f"127.0.0.1:{server.server.port}") as client:
            if connect is not None:
                with suppress(NoRouteInfo):
                    await connect(client)
            await until(lambda: server.connection)
            assert server.connection is not None
            answered = await _answered(server.connection)
    finally:
        await server.server.stop()
    documented = {int(code) for code, _, kinds in ROWS if name in kinds.split(", ")}
    assert {RequestCode(code).name for code in answered} == {RequestCode(code).name for code in documented}


async def _answered(connection: Connection) -> set[int]:
    """Returns the codes that are not rejected.

    The requests have no header, so they have no effect; some get no response.
    """
    answers = {
        code: connection.start_request(RemotingCommand.request(code), 20_000) for code in [*map(int, RequestCode), LAST]
    }
    await answers.pop(LAST)
    refused = {
        code
        for code, answer in answers.items()
        if answer.done() and answer.result().code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    }
    for answer in answers.values():
        answer.cancel()
    return set(answers) - refused


def test_the_table_names_codes_and_kinds() -> None:
    assert ROWS
    assert all(RequestCode(int(code)).name == name for code, name, _ in ROWS)
    assert {kind for _, _, kinds in ROWS for kind in kinds.split(", ")} == set(KINDS)
