"""A queue that lost its end in a crash of its broker. The lost offsets now belong to other messages.

`tests/broker/test_reused_offsets.py` tests what the broker does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scripted import ScriptedGroupBroker, ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.private_fields import RECOVERED_END_FIELD, RECOVERY_FIELD
from gantrymq.protocol.record import encode_host, encode_record
from gantrymq.remoting.connection import Connection

HOST = encode_host("127.0.0.1", 10911)


def records(*offsets: int) -> bytes:
    return b"".join(
        encode_record(0, 0, offset, 5000 + offset, 0, 1, HOST, 2, HOST, 0, 0, b"%d" % offset, b"topic", b"")
        for offset in offsets
    )


FOUND = ResponseCode.SUCCESS


class CrashedBroker(ScriptedGroupBroker):
    """Adds to each response the recovery fields in `recoveries`: an id and a recovered end, or None."""

    def __init__(
        self, answers: list[tuple[ResponseCode, int, bytes]], recoveries: list[tuple[int, int] | None]
    ) -> None:
        super().__init__(answers)
        self._recoveries = recoveries

    def _pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        response = super()._pull(connection, request)
        recovery = self._recoveries[len(self.pulls) - 1] if response is not None else None
        if response is not None and recovery is not None:
            response.ext_fields[RECOVERY_FIELD] = str(recovery[0])
            response.ext_fields[RECOVERED_END_FIELD] = str(recovery[1])
        return response


@asynccontextmanager
async def consuming(broker: ScriptedGroupBroker) -> AsyncIterator[list[bytes]]:
    received: list[bytes] = []

    async def receive(message: MessageExt) -> None:
        received.append(message.body)

    name_server = ScriptedNameServer({})
    async with serving([name_server, broker]):
        name_server.routes["topic"] = route_over({"broker": broker.address}, queue_nums=1)
        consumer = PushConsumer(name_server.address, "group", receive, start_from="earliest")
        consumer.subscribe("topic")
        async with consumer:
            yield received


@pytest.mark.parametrize("before", [None, (1, 0)], ids=["no crash before", "an earlier crash"])
async def test_a_consumer_goes_back_to_the_recovered_end(before: tuple[int, int] | None) -> None:
    """It had received offsets 0 to 2. The crash lost offsets 1 and 2, and two other messages have them."""
    answers = [
        (FOUND, 3, records(0, 1, 2)),
        (FOUND, 4, records(3)),
        (FOUND, 4, records(1, 2, 3)),
    ]
    broker = CrashedBroker(answers, [before, (7, 1), (7, 1)])
    async with consuming(broker) as received:
        await until(lambda: len(broker.pulls) == 4)
        await until(lambda: len(received) == 6)
    assert [pull.queue_offset for pull in broker.pulls] == [0, 3, 1, 4]
    assert received == [b"0", b"1", b"2", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "recoveries",
    [
        [None, (7, 3), (7, 3)],
        [(7, 1), (7, 1), (7, 1)],
        [(7, 1), None, (7, 1)],
    ],
    ids=["nothing was lost", "the crash was before the first pull", "a response of a slave"],
)
async def test_a_consumer_goes_on(recoveries: list[tuple[int, int] | None]) -> None:
    answers = [(FOUND, 3, records(0, 1, 2)), (FOUND, 4, records(3)), (FOUND, 5, records(4))]
    broker = CrashedBroker(answers, recoveries)
    async with consuming(broker) as received:
        await until(lambda: len(broker.pulls) == 4)
        await until(lambda: len(received) == 5)
    assert [pull.queue_offset for pull in broker.pulls] == [0, 3, 4, 5]


async def test_a_negative_recovered_end_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    answers = [(FOUND, 3, records(0, 1, 2)), (FOUND, 4, records(3)), (FOUND, 4, records(3))]
    broker = CrashedBroker(answers, [None, (7, -5), (7, 3)])
    async with consuming(broker) as received:
        await until(lambda: len(received) == 4)
    assert [pull.queue_offset for pull in broker.pulls][:3] == [0, 3, 3]
    assert all(offset >= 0 for offset in broker.committed.values())
    assert "its queue was recovered up to -5" in caplog.text
