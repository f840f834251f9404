"""After a crash, every message without an acknowledgement is redelivered.

It comes from its queue or from the revive log.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from broker_support import config
from pop_support import PopPeer

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.remoting.client import RemotingClient

TOPIC = "orders"
SENT = {b"%03d" % i for i in range(60)}


async def test_nothing_is_lost(tmp_path: Path) -> None:
    """Copies the files at three moments and starts a new broker on each copy.

    This simulates a SIGKILL of the first broker.
    """
    client = RemotingClient()
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    acked: set[bytes] = set()
    crashes: list[tuple[Path, set[bytes]]] = []
    try:
        broker.topics.put(TopicConfig(TOPIC, 2, 2))
        peer = PopPeer(await client.connection(f"127.0.0.1:{broker.port}"))
        for i, body in enumerate(sorted(SENT)):
            await peer.send(TOPIC, body, queue_id=i % 2)
        for turn, invisible_ms in enumerate((1_500, 60_000, 5_000)):
            # With 1.5 s, the checkpoint goes to the log at once, and the group's offset advances past it.
            taken = await peer.messages(TOPIC, count=10, invisible_ms=invisible_ms)
            assert len(taken) == 10
            for one in taken[turn::2]:
                await peer.ack(one)
                acked.add(one.body)
            broker.persistence.save()
            crash = tmp_path / f"crash{turn}"
            shutil.copytree(broker.config.store.store_path_root_dir, crash)
            crashes.append((crash, set(acked)))
    finally:
        await broker.stop()
    await asyncio.gather(*(hand_out(crash, SENT - acked_then, client) for crash, acked_then in crashes))
    await client.close()


async def hand_out(directory: Path, expected: set[bytes], client: RemotingClient) -> None:
    """Pops from a broker on this store until all expected messages are received."""
    broker = Broker(config(directory))
    await broker.start()
    found: set[bytes] = set()
    try:
        peer = PopPeer(await client.connection(f"127.0.0.1:{broker.port}"))
        async with asyncio.timeout(20):
            while not expected <= found:
                for one in await peer.messages(TOPIC, poll_ms=5_000):
                    found.add(one.body)
                    await peer.ack(one)
    finally:
        await broker.stop()
