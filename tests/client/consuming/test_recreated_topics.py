"""Consumers that stay connected while their topic is deleted and recreated read the new topic from its beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from constants import change_constant
from inbox import Inbox
from scripted import ScriptedGroupBroker, record, serving_routes
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.offset import OffsetResponseHeader
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.message import Message
from gantrymq.protocol.private_fields import TOPIC_BEGIN_FIELD
from gantrymq.remoting.connection import Connection, RequestHandler

CLUSTER = "DefaultCluster"


@asynccontextmanager
async def consuming(
    kind: str, name_server: str, group: str, topic: str, directory: Path
) -> AsyncIterator[Callable[[], list[bytes]]]:
    """Yields a function that returns the sorted bodies received so far."""
    options: dict[str, Any] = {"start_from": "earliest"}
    if "broadcasting" in kind:
        options |= {"broadcasting": True, "offset_directory": directory}
    inbox = Inbox()
    if not kind.startswith("lite"):
        push = PushConsumer(name_server, group, inbox, orderly=kind == "orderly", **options)
        push.subscribe(topic)
        async with push:
            yield lambda: inbox.bodies
        return
    lite = LitePullConsumer(name_server, group, auto_commit="without" not in kind, **options)
    lite.subscribe(topic)

    async def poll() -> None:
        while True:
            inbox.messages += await lite.poll(timeout=1)

    async with lite:
        polling = asyncio.create_task(poll())
        try:
            yield lambda: inbox.bodies
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    "kind", ["push", "orderly", "broadcasting", "lite", "lite broadcasting", "lite without auto-commit"]
)
async def test_all_of_the_new_topic_is_read(
    name_server: str, producer: Producer, unique: str, tmp_path: Path, kind: str, count: int
) -> None:
    """The new queue ends before, at or behind the consumer's offset in the old one."""
    sent: list[bytes] = []

    async def send(name: str, count: int) -> None:
        for n in range(count):
            sent.append(f"{name} {n}".encode())
            await producer.send(Message(unique, sent[-1]))

    async with AdminClient(name_server) as admin:
        await admin.ensure_topic(unique, queues=1)
        await send("old", 2)
        async with consuming(kind, name_server, unique, unique, tmp_path) as came:
            await until(lambda: came() == sorted(sent))
            for name in ("new", "newer"):
                await admin.delete_topic(unique, CLUSTER)
                await admin.ensure_topic(unique, queues=1)
                await send(name, count)
                await until(lambda: came() == sorted(sent))


class RecreatedTopic(ScriptedGroupBroker):
    """Has the first messages of the recreated topic in a tier. Its responses to pulls have the minimum offset 0.

    The first two requests for the first offset are refused.
    """

    def __init__(self) -> None:
        self.requests = 0
        super().__init__([(ResponseCode.SUCCESS, 2, record(0) + record(1))])

    def handlers(self) -> dict[int, RequestHandler]:
        return super().handlers() | {RequestCode.GET_MIN_OFFSET: self._min_offset}

    def _min_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.requests += 1
        if self.requests < 3:
            return RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "the tier is not known yet")
        return RemotingCommand.response(header=OffsetResponseHeader(offset=20))

    def _pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        if request.read_header(PullMessageRequestHeader).queue_offset == 2:
            self.pull_answers.append((ResponseCode.SUCCESS, 3, record(2)))
            self.more = {TOPIC_BEGIN_FIELD: "500"}
        return super()._pull(connection, request)


async def test_the_new_topic_begins_in_a_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "queue_puller.RETRY_DELAY_S", 0.01)
    broker = RecreatedTopic()
    inbox = Inbox()
    async with serving_routes(broker) as address:
        consumer = PushConsumer(address, "group", inbox, start_from="earliest")
        consumer.subscribe("topic")
        async with consumer:
            await until(lambda: len(broker.pulls) == 5)
    assert [pull.queue_offset for pull in broker.pulls] == [0, 2, 2, 2, 20]
    assert len(inbox.bodies) == 2
