"""Consumers that stay connected while their topic is deleted and recreated read the new topic from its beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from inbox import Inbox
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message

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
