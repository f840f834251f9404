"""SIGKILL at random moments while transactions run.

No half message is lost, none is delivered without a commit, and each commit is delivered once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter
from pathlib import Path

from transaction_support import TIMEOUT_S, Producer, all_messages
from wait_until import until

from gantrymq.errors import GantryError
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK

ROUNDS = 8

BROKER = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
from broker_support import config
from gantrymq.broker.broker import Broker

async def serve():
    times = dict(transaction_time_out=30, transaction_check_interval=10, transaction_op_batch_interval=20)
    broker = Broker(config(Path(sys.argv[2]), flush_consumer_offset_interval=15, transaction_check_max=10**6, **times))
    await broker.start()
    print(broker.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""


def verdict_of(body: bytes) -> int:
    """Returns the end of a transaction from the first letter of its body. Some transactions never end."""
    return {b"c": TRANSACTION_COMMIT, b"r": TRANSACTION_ROLLBACK}.get(body[:1], 0)


def verdict_of_message(message: MessageExt) -> int:
    return verdict_of(message.body)


async def write(producer: Producer, rng: random.Random, tag: str, acknowledged: set[bytes]) -> None:
    """Sends half messages until the broker is killed.

    Most of them are ended at once, and others only in response to a check.
    """
    with contextlib.suppress(GantryError):
        for n in range(1_000_000):
            body = f"{rng.choice('ccru')} {tag} {n}".encode()
            half = await producer.prepare("orders", body)
            acknowledged.add(body)
            if verdict_of(body) and rng.random() < 0.7:
                await producer.end(half, verdict_of(body))


async def run_broker(root: Path) -> tuple[asyncio.subprocess.Process, int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BROKER, str(Path(__file__).parent), str(root), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    return process, int(await asyncio.wait_for(process.stdout.readline(), 30))


async def test_no_transaction_is_lost_or_comes_uncommitted(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    acknowledged: set[bytes] = set()
    for number in range(ROUNDS):
        process, port = await run_broker(tmp_path)
        producer = Producer(verdict_of_message)
        try:
            await producer.connect(port)
            writers = [write(producer, rng, f"{number}-{writer}", acknowledged) for writer in range(4)]
            writing = asyncio.gather(*writers)
            await until(lambda enough=20 * (number + 1): len(acknowledged) >= enough)
            await asyncio.sleep(rng.random() * 0.3)
        finally:
            process.kill()
            await process.wait()
        await writing
        await producer.client.close()
    wanted = {body for body in acknowledged if body.startswith(b"c")}
    assert len(wanted) > 50

    process, port = await run_broker(tmp_path)
    producer = Producer(verdict_of_message)
    try:
        await producer.connect(port)
        unknown = {body for body in acknowledged if body.startswith(b"u")}
        async with asyncio.timeout(3 * TIMEOUT_S):
            while unknown:
                unknown.discard((await producer.question())[1].body)
            missing = wanted
            while missing:
                messages = await all_messages(producer, "orders")
                missing = wanted - {message.body for message in messages}
        assert {message.body[:1] for message in messages} == {b"c"}
        assert [body for body, times in Counter(message.body for message in messages).items() if times > 1] == []
    finally:
        await producer.client.close()
        process.kill()
        await process.wait()
