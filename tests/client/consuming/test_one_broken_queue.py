"""A queue with every kind of unreadable record between readable ones: each consumer receives all readable ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from broken_records import BAD_BODIES, BAD_RECORDS, MAX_BODY_SIZE, LogBroker, good, serving_topic
from constants import change_constant
from wait_until import until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.errors import ProtocolError
from gantrymq.protocol.bodies.pop import (
    MODE_POP,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    QueueAssignment,
)
from gantrymq.protocol.bodies.queue_map import QueueObject
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.pop import ChangeInvisibleTimeResponseHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.connection import Connection, RequestHandler

BROKEN = BAD_BODIES | BAD_RECORDS
GOOD = {b"good %d" % offset for offset in range(0, 2 * len(BROKEN) + 1, 2)}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "queue_puller.RETRY_DELAY_S", 0.01)


class BrokenQueue(LogBroker):
    """Readable records at even offsets, and each kind of unreadable record at odd ones. Supports pops, too."""

    def __init__(self) -> None:
        records = [good(0)]
        for number, make in enumerate(BROKEN.values()):
            records += [make(2 * number + 1), good(2 * number + 2)]
        super().__init__(records)

    def handlers(self) -> dict[int, RequestHandler]:
        return super().handlers() | {
            RequestCode.QUERY_ASSIGNMENT: self._assignment,
            RequestCode.ACK_MESSAGE: lambda connection, request: RemotingCommand.response(),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._changed,
        }

    def _assignment(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        mine = []
        if decode_json(request.body, QueryAssignmentRequestBody).topic == "topic":
            mine.append(QueueAssignment(QueueObject("broker", 0, "topic"), MODE_POP))
        return RemotingCommand.response(body=encode_json(QueryAssignmentResponseBody(mine)))

    def _changed(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        answer = ChangeInvisibleTimeResponseHeader(pop_time=1, invisible_time=60_000, revive_qid=0)
        return RemotingCommand.response(header=answer)


def take(message: MessageExt, bodies: list[bytes]) -> None:
    """Stores the body. Raises an error for an unreadable one."""
    assert message.topic == "topic"
    assert message.queue_id == 0
    bodies.append(message.body)


async def push(address: str, bodies: list[bytes], threads: bool = False, **options: object) -> None:
    async def handle(message: MessageExt) -> None:
        take(message, bodies)

    consumer = PushConsumer(
        address,
        "group",
        (lambda message: take(message, bodies)) if threads else handle,
        start_from="earliest",
        max_body_size=MAX_BODY_SIZE,
        **options,  # type: ignore[arg-type]
    )
    consumer.subscribe("topic")
    async with consumer:
        await until(lambda: set(bodies) >= GOOD)
        if options.get("client_rebalance", True):
            await until(lambda: consumer.lag() and not any(consumer.lag().values()))


async def lite(address: str, bodies: list[bytes]) -> None:
    consumer = LitePullConsumer(address, "group", start_from="earliest", max_body_size=MAX_BODY_SIZE)
    consumer.subscribe("topic")
    async with consumer, asyncio.timeout(20):
        while not set(bodies) >= GOOD:
            for message in await consumer.poll():
                try:
                    take(message, bodies)
                except ProtocolError:
                    assert message.queue_offset % 2


async def simple(address: str, bodies: list[bytes]) -> None:
    consumer = SimpleConsumer(address, "group", max_body_size=MAX_BODY_SIZE)
    consumer.subscribe("topic")
    async with consumer:
        for message in await consumer.receive():
            try:
                # A simple consumer has no assigned queues, so it accepts all messages of the topic.
                message.queue_id = 0
                take(message, bodies)
            except ProtocolError:
                assert message.queue_offset % 2
            await consumer.ack(message)


CONSUMERS: dict[str, Callable[[str, list[bytes], Path], Awaitable[None]]] = {
    "push": lambda to, bodies, _: push(to, bodies),
    "push in threads": lambda to, bodies, _: push(to, bodies, threads=True),
    "orderly": lambda to, bodies, _: push(to, bodies, orderly=True),
    "orderly in threads": lambda to, bodies, _: push(to, bodies, threads=True, orderly=True),
    "broadcasting": lambda to, bodies, directory: push(to, bodies, broadcasting=True, offset_directory=directory),
    "popping": lambda to, bodies, _: push(to, bodies, client_rebalance=False),
    "lite pull": lambda to, bodies, _: lite(to, bodies),
    "simple": lambda to, bodies, _: simple(to, bodies),
}


@pytest.mark.parametrize("kind", CONSUMERS)
async def test_all_good_ones_are_delivered(kind: str, tmp_path: Path) -> None:
    bodies: list[bytes] = []
    async with serving_topic(BrokenQueue()) as address:
        await CONSUMERS[kind](address, bodies, tmp_path)
    # Records of another topic or queue are readable, but not part of this queue.
    odd = {b"good %d" % (2 * number + 1) for number, name in enumerate(BROKEN) if name == "record of another queue"}
    assert set(bodies) - GOOD <= (odd if kind == "simple" else set())
