"""Texts from servers and other clients occupy only one line of the log."""

from __future__ import annotations

import pytest
from scripted import ScriptedGroupBroker, ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.errors import BrokerError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.record import encode_host, encode_record

FORGED = "x\n2026-01-01 00:00:00 INFO all is well \x1b[2J"
HOST = encode_host("127.0.0.1", 10911)


class Remarks(ScriptedGroupBroker):
    """Has `remark` in its responses."""

    remark = FORGED


async def fail(message: MessageExt) -> None:
    raise ValueError("as scripted")


async def test_remarks_and_ids_forge_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    properties = f"UNIQ_KEY\x01{FORGED}".encode()
    record = encode_record(0, 0, 0, 5000, 0, 1, HOST, 2, HOST, 0, 0, b"body", b"topic", properties)
    broker = Remarks([(ResponseCode.SUCCESS, 1, record), (ResponseCode.SYSTEM_ERROR, 1, b"")])
    name_server = ScriptedNameServer({})
    async with serving([name_server, broker]):
        name_server.routes["topic"] = route_over({"broker": broker.address}, queue_nums=1)
        consumer = PushConsumer(name_server.address, "group", fail, start_from="earliest")
        consumer.subscribe("topic")
        async with consumer:
            await until(lambda: broker.sent_back)
            await until(lambda: "answered code" in caplog.text)
    lines = [record.getMessage() for record in caplog.records if "all is well" in record.getMessage()]
    assert any("handler failed" in line for line in lines)
    assert any("can't pull" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_an_error_is_one_line_wherever_it_is_printed() -> None:
    error = BrokerError(1, FORGED, "127.0.0.1:1")
    assert str(error).isprintable()
    assert error.remark == FORGED
    assert str(BrokerError(1, "naïve 消息", "a:1")) == "a:1 answered code 1: naïve 消息"
