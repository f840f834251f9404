"""Invalid requests for every request code of the broker.

The broker answers each one and serves other clients meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import re

import pytest
from broker_support import Peer, server_of
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.errors import RequestTimeout
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.client import RemotingClient

_MISSING = re.compile(r"(\w+): Object missing required field `(\w+)`")
#: Values that each number, name, timestamp or offset must survive.
ABSURD = [
    "",
    "-1",
    "0",
    "99999999999999999999999999",
    "9223372036854775807",
    "-9223372036854775808",
    "2147483647",
    "1e3",
    "NaN",
    "true",
    "x" * 5000,
    "a\x01b\x02c",
    "..//%\u2603",
]
#: An end request of a producer that has no result yet. Java does not answer it either.
UNANSWERED = (RequestCode.END_TRANSACTION, "commitOrRollback", "0")
BODIES = [b"", b"\x00" * 40, b"{}", b"[]", b'{"a":', b"null", b"\xff" * 9, b'{"topicConfigList":[{}]}', b"1" * 3000]


async def answer(peer: Peer, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
    if code >= 1 << 15:
        # The code does not fit into a binary header.
        peer = Peer(peer.connection)
    try:
        return await peer.ask(code, body=body, fields=fields, timeout_ms=20_000)
    except RequestTimeout:
        raise AssertionError(f"no answer to {code} {fields} {body!r}") from None


async def required_fields(peer: Peer, code: int) -> dict[str, str]:
    """Finds the required fields of a header from the errors about missing fields."""
    fields: dict[str, str] = {}
    while True:
        response = await answer(peer, code, fields)
        found = _MISSING.search(response.remark or "")
        if found is None:
            return fields
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert found[2] not in fields
        fields[found[2]] = "1"


def unexpected(records: list[logging.LogRecord]) -> list[str]:
    return [record.getMessage() for record in records if record.exc_info]


async def test_every_code_names_the_field_that_is_missing(broker: Broker, peer: Peer) -> None:
    with_fields = 0
    for code in sorted(broker.handlers):
        if await required_fields(peer, code):
            with_fields += 1
    assert with_fields > 30
    assert (await peer.send("orders", b"still here")).code == ResponseCode.SUCCESS


@pytest.mark.timeout(240)
async def test_absurd_values_are_answered(broker: Broker, peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    for code in sorted(broker.handlers):
        fields = await required_fields(peer, code)
        for name in fields:
            for value in ABSURD:
                if (code, name, value) == UNANSWERED:
                    continue
                caplog.clear()
                await answer(peer, code, fields | {name: value})
                assert not unexpected(caplog.records), (code, name, value)
    assert (await peer.send("orders", b"still here")).code == ResponseCode.SUCCESS


async def test_absurd_bodies_are_answered(broker: Broker, peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    for code in sorted(broker.handlers):
        fields = await required_fields(peer, code)
        for body in BODIES:
            caplog.clear()
            await answer(peer, code, fields, body)
            assert not unexpected(caplog.records), (code, body)
    assert (await peer.send("orders", b"still here")).code == ResponseCode.SUCCESS


async def test_two_thousand_connections(broker: Broker) -> None:
    clients = [RemotingClient() for _ in range(2000)]
    try:
        peers = []
        for start in range(0, len(clients), 200):
            batch = clients[start : start + 200]
            connections = await asyncio.gather(*(client.connection(broker.address) for client in batch))
            peers += [Peer(connection) for connection in connections]
        answers = await asyncio.gather(*(peer.send("orders", b"x", queue_id=i % 4) for i, peer in enumerate(peers)))
        assert {response.code for response in answers} == {ResponseCode.SUCCESS}
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    await until(lambda: not server_of(broker).connections)


async def test_a_client_that_dies_in_a_long_poll_leaves_nothing(broker: Broker, peer: Peer) -> None:
    client = RemotingClient()
    dying = Peer(await client.connection(broker.address))
    await peer.send("orders", b"x")
    waiting = asyncio.create_task(dying.pull("orders", 1, suspend_ms=60_000))
    await until(lambda: len(broker.polling))
    dying.connection.abort()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: not len(broker.polling))
    assert (await peer.send("orders", b"y")).code == ResponseCode.SUCCESS
    await client.close()
