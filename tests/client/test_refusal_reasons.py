"""Clients act on the reason in a response, not on its remark, unless the server is Java's."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import gantrymq
from gantrymq.client.failover import is_role_change
from gantrymq.errors import BrokerError, RefusalReason, RequestRefused
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.java_remarks import REMARKS, JavaRemark
from gantrymq.protocol.private_fields import REASON_FIELD
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer

ROLE_CHANGES = {RefusalReason.NOT_MASTER, RefusalReason.MAY_BE_STORED, RefusalReason.NOT_ENOUGH_REPLICAS}


_SEARCHES = ("startswith", "endswith", "find", "index", "match", "search")


async def refusal(answer: Callable[[], Reply]) -> BrokerError:
    """Returns the error of a call to a server with this response."""

    def handle(connection: Connection, request: RemotingCommand) -> Reply:
        return answer()

    server = RemotingServer({RequestCode.GET_BROKER_RUNTIME_INFO: handle}, ListenOptions("127.0.0.1", 0))
    await server.start()
    client = RemotingClient()
    try:
        request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        with pytest.raises(BrokerError) as raised:
            await client.call(f"127.0.0.1:{server.port}", request)
        return raised.value
    finally:
        await client.close()
        await server.stop()


@pytest.mark.parametrize("reason", RefusalReason)
async def test_a_reason_needs_no_remark(reason: RefusalReason) -> None:
    def refuse() -> Reply:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "other words", reason)

    error = await refusal(refuse)
    assert (error.reason, error.remark) == (reason, "other words")
    assert is_role_change(error) == (reason in ROLE_CHANGES)
    assert ("access_key" in str(error)) == (reason is RefusalReason.NO_CREDENTIALS)


@pytest.mark.parametrize("java", REMARKS, ids=lambda java: java.text)
async def test_java_s_remarks(java: JavaRemark) -> None:
    assert (await refusal(lambda: RemotingCommand.response(java.code, f"[x] {java.text}: y"))).reason is java.reason
    other = ResponseCode.TOPIC_NOT_EXIST
    assert (await refusal(lambda: RemotingCommand.response(other, java.text))).reason is None


async def test_a_reason_of_a_later_version_is_none() -> None:
    fields = {REASON_FIELD: "MOON_PHASE"}
    error = await refusal(lambda: RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "x", fields=fields))
    assert error.reason is None


def test_no_program_decides_by_a_remark() -> None:
    """Only `java_remarks.py` compares remarks. All other code uses codes and reasons."""
    found = []
    package = Path(gantrymq.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            compared: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                compared = [node.left, *node.comparators]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SEARCHES:
                compared = [node.func.value, *node.args]
            if any(isinstance(part, ast.Attribute) and part.attr == "remark" for part in compared):
                found.append(f"{path.relative_to(package)}:{node.lineno}")
    assert not found
