"""Deduplication ids in a store that moves between this project's broker and Apache's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from programs import consume
from servers import gantry_broker, gantry_namesrv, java_broker

from gantrymq import AdminClient, Message, Producer, SyncProducer
from gantrymq.protocol.bodies.topic_config import TopicConfig

pytestmark = pytest.mark.interop(feature="deduplication", clients="gantry", servers="java gantry")


def _send(namesrv: str, topic: str, *ids: str) -> list[int]:
    """Sends a message with each id. Returns their queue offsets."""
    with SyncProducer(Producer(namesrv, "interop")) as producer:
        return [
            producer.send(Message(topic, own.encode(), deduplicate_id=own), timeout=20.0).queue_offset for own in ids
        ]


@pytest.mark.timeout(300)
def test_ids_of_both_brokers_are_known_afterwards(tmp_path: Path, topic: str) -> None:
    """Java's broker stores every message, and keeps the attribute. This project's broker reads all ids from the log."""
    store = tmp_path / "store"
    namesrv = gantry_namesrv(tmp_path / "namesrv")

    async def make_topic() -> None:
        config = TopicConfig(topic, 1, 1, attributes={"+deduplication.window.ms": "3600000"})
        async with AdminClient(namesrv.address) as admin:
            await admin.create_topic(config, cluster="DefaultCluster")

    try:
        for turn, start_broker in enumerate((gantry_broker, java_broker, gantry_broker)):
            broker = start_broker(
                tmp_path / f"broker{turn}",
                namesrv.address,
                storePathRootDir=store,
                storePathCommitLog=store / "commitlog",
            )
            try:
                if turn == 0:
                    asyncio.run(make_topic())
                    assert _send(namesrv.address, topic, "a", "b", "a") == [0, 1, 0]
                elif turn == 1:
                    assert _send(namesrv.address, topic, "a", "c") == [2, 3]
                else:
                    assert _send(namesrv.address, topic, "a", "b", "c", "d") == [0, 1, 3, 4]
                received = consume(namesrv.address, topic, (2, 4, 5)[turn], group=f"interop_turn{turn}")
                assert len(received) == (2, 4, 5)[turn]
            finally:
                broker.stop()
    finally:
        namesrv.kill()
