"""SIGKILL while a transaction of thousands of messages is committed.

After the restart, each message is stored exactly once, or none of them is.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

from half_range_support import end_all, end_many, prepare_many
from test_transaction_kill import run_broker
from transaction_support import TIMEOUT_S, Producer, all_messages

from gantrymq.errors import GantryError
from gantrymq.protocol.half_ranges import HalfRange

KILLS = 5
BATCHES = 6
OF_BATCH = 500
COUNT = BATCHES * OF_BATCH


async def test_a_commit_is_carried_out_whenever_the_broker_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    seen: list[int] = []
    ranges: list[HalfRange] = []
    for number in range(KILLS + 1):
        process, port = await run_broker(tmp_path)
        producer = Producer()
        try:
            await producer.connect(port)
            if number:
                await check_commit(producer, f"orders-{number - 1}", ranges, seen)
            if number == KILLS:
                break
            topic = f"orders-{number}"
            ranges = [
                await prepare_many(producer, topic, [b"%d" % n for n in range(OF_BATCH * i, OF_BATCH * (i + 1))])
                for i in range(BATCHES)
            ]
            assert await count_of(producer, topic) == 0
            ending = asyncio.create_task(end_many(producer, ranges, topics=topic))
            await asyncio.sleep(rng.random() * 0.1)
            process.kill()
            with contextlib.suppress(GantryError):
                await ending
        finally:
            await producer.client.close()
            if process.returncode is None:
                process.kill()
            await process.wait()
    print(f"visible when the broker was up again: {seen}")


async def check_commit(producer: Producer, topic: str, ranges: Sequence[HalfRange], seen: list[int]) -> None:
    count = await count_of(producer, topic)
    seen.append(count)
    # The broker completes a commit that has begun, without another request of the driver.
    async with asyncio.timeout(TIMEOUT_S):
        while 0 < count < COUNT:
            count = await count_of(producer, topic)
    # The driver repeats its request, because it got no response.
    await end_all(producer, ranges, topics=topic)
    assert await count_of(producer, topic) == COUNT


async def count_of(producer: Producer, topic: str) -> int:
    """Returns the number of messages of the transaction, and checks that they are the first ones, once each."""
    bodies = [message.body for message in await all_messages(producer, topic)]
    assert bodies == [b"%d" % n for n in range(len(bodies))]
    return len(bodies)
