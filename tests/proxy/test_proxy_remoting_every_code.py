"""Every request code on the remoting port: fields missing, negative and huge, and invalid bodies."""

from __future__ import annotations

import asyncio
import logging

import pytest
from proxy_support import new_topic

from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.proxy.proxy import Proxy
from gantrymq.remoting.client import RemotingClient

#: Names of header fields that select the target of a request, and its duration.
NAMES = ("topic", "b", "originTopic", "bname", "n", "queueId", "consumerGroup", "group", "extraInfo", "i", "properties")
TIMES = ("suspendTimeoutMillis", "pollTime")
TEXTS = ("", " ", "\x00", "-1", "9" * 30, "☃ %|../", "x" * 30_000)
BODIES = (b"", b"{", b"[]", b"null", b'{"mqSet": [1]}', b'{"brokerName": {}}', b"\xff" * 1000, b"[" * 100_000)


def requests(code: int, topic: str) -> list[RemotingCommand]:
    good = {"topic": topic, "b": topic, "bname": "broker-a", "n": "broker-a", "consumerGroup": "g", "queueId": "0"}
    found = [RemotingCommand.request(code), RemotingCommand.request(code, fields=good)]
    found += [RemotingCommand.request(code, fields={**good, name: text}) for name in NAMES for text in TEXTS]
    # Durations of more than a day count as zero.
    found += [RemotingCommand.request(code, fields={**good, name: text}) for name in TIMES for text in ("-1", "9" * 30)]
    return found + [RemotingCommand.request(code, fields=good, body=body) for body in BODIES]


@pytest.mark.parametrize("code", RequestCode, ids=lambda code: code.name)
async def test_each_code(code: RequestCode, proxy: Proxy, admin: AdminClient, caplog: pytest.LogCaptureFixture) -> None:
    topic = await new_topic(admin)
    client = RemotingClient()
    route = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic})
    assert (await client.invoke(proxy.remoting_address, route)).code == 0
    answers = await asyncio.gather(
        *(client.invoke(proxy.remoting_address, request, 15_000) for request in requests(code, topic))
    )
    assert all(answer.remark is None or len(answer.remark) <= 2000 for answer in answers)
    # The proxy still works.
    assert (await client.invoke(proxy.remoting_address, route)).code == 0
    await client.close()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
