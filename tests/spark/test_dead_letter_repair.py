"""Tests dead_letter_repair.py before a group has its first dead-letter message."""

from __future__ import annotations

import asyncio

from example_support import example
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.testing.embedded import EmbeddedCluster


def test_it_waits_for_the_first_dead_letter_message(cluster: EmbeddedCluster) -> None:
    repair, group = example("dead_letter_repair"), "flawless"

    async def run() -> None:
        assert not await repair.has_dead_letters(cluster.name_server, group, once=True)
        waiting = asyncio.create_task(repair.has_dead_letters(cluster.name_server, group, once=False, poll_s=0.05))
        async with AdminClient(cluster.name_server) as admin:
            await admin.create_topic(TopicConfig(f"%DLQ%{group}", 1, 1), cluster="DefaultCluster")
        await until(waiting.done)
        assert await waiting

    asyncio.run(run())
