"""The work of bench/instructions.py, which runs this program under valgrind.

Each kind of work runs in two forked processes, with few and with many repetitions. The difference of their instruction
counts is the cost of the additional repetitions, without the start of the interpreter. For each process, the program
prints its id, the kind of work and the number of messages.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from pathlib import Path

from gantrymq.system import clock

_readings = count()


def _advance() -> float:
    """Returns a clock that advances by 1 us with each reading.

    Under valgrind, every time slice of a connection would be too long, and its end has a cost, too.
    """
    return next(_readings) * 1e-6


# Before all imports of these functions, but not in a process that only imports this module.
if __name__ == "__main__":
    clock.monotonic = clock.thread_time = _advance

import client_micro  # noqa: E402
import micro  # noqa: E402

from gantrymq.background.event_loop import new_event_loop  # noqa: E402
from gantrymq.client.consuming.process_queue import FlowLimits, ProcessQueue  # noqa: E402
from gantrymq.client.producing.producer import Producer  # noqa: E402
from gantrymq.client.pulled_messages import decode_pulled  # noqa: E402
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE  # noqa: E402
from gantrymq.protocol.message import Message, MessageQueue  # noqa: E402

BODY = b"x" * 128
#: Timeout of a send, in seconds. Programs are slow under valgrind.
TIMEOUT_S = 600.0
#: The first repetitions create caches and adapt the interpreter's byte code.
REPETITIONS = (3, 9)
#: Requests that are in flight at the same time.
SENDERS, BATCH_SENDERS = 32, 8
SENDS, BATCHES, PULLS, FRAMES = 8, 4, 4, 512
#: The broker gets its requests this many times in a repetition, because the cost of its start varies.
TIMES = 16

#: Work of one kind: takes the number of repetitions, returns the number of messages.
Kind = Callable[[int], Awaitable[int]]


async def send(repetitions: int) -> int:
    async def one(producer: Producer) -> None:
        await producer.send(Message(client_micro.TOPIC, BODY), timeout=TIMEOUT_S)

    return await _produce(one, repetitions, SENDERS, SENDS)


async def send_with_keys(repetitions: int) -> int:
    async def one(producer: Producer) -> None:
        await producer.send(Message(client_micro.TOPIC, BODY, tags="tag", keys="key"), timeout=TIMEOUT_S)

    return await _produce(one, repetitions, SENDERS, SENDS)


async def send_batch(repetitions: int) -> int:
    async def one(producer: Producer) -> None:
        messages = [Message(client_micro.TOPIC, BODY) for _ in range(client_micro.BATCH)]
        await producer.send_batch(messages, timeout=TIMEOUT_S)

    return await _produce(one, repetitions, BATCH_SENDERS, BATCHES) * client_micro.BATCH


async def _produce(one: Callable[[Producer], Awaitable[None]], repetitions: int, senders: int, count: int) -> int:
    """Calls `one` `count` times in each sender and repetition. Returns the number of calls."""
    async with AsyncExitStack() as stack:
        producer, _ = await client_micro.connected(stack)

        async def sender() -> None:
            for _ in range(count):
                await one(producer)

        for _ in range(repetitions):
            await asyncio.gather(*(sender() for _ in range(senders)))
    return repetitions * senders * count


async def consume(repetitions: int) -> int:
    queue = MessageQueue(client_micro.TOPIC, client_micro.BROKER, 3)
    records = client_micro.pulled_records(queue, BODY)
    pending = ProcessQueue(queue, 0, FlowLimits())
    for _ in range(repetitions * PULLS):
        messages, _ = decode_pulled(records, queue, 0, MAX_DECOMPRESSED_SIZE, lambda _: None)
        pending.put(messages)
        for message in messages:
            pending.remove(message)
    return repetitions * PULLS * client_micro.PULLED


async def push(kind: str, repetitions: int) -> int:
    queue = MessageQueue(client_micro.TOPIC, client_micro.BROKER, 3)
    pulls = [client_micro.pulled_records(queue, BODY, number * client_micro.PULLED) for number in range(PULLS)]
    await client_micro.consume(kind, pulls, repetitions)
    return repetitions * PULLS * client_micro.PULLED


async def store(repetitions: int) -> int:
    reads = [
        b"".join(micro.send_frame(number + i, BODY) for i in range(micro.FRAMES_PER_READ))
        for number in range(0, FRAMES, micro.FRAMES_PER_READ)
    ]
    await _serve(reads * TIMES * repetitions)
    return repetitions * TIMES * FRAMES


async def pull(repetitions: int) -> int:
    sends = [micro.send_frame(number * micro.QUEUES, BODY) for number in range(micro.PULL_BATCH)]
    pulls = TIMES * FRAMES // micro.PULL_BATCH
    await _serve([b"".join(sends), *[micro.pull_frame(0)] * pulls * repetitions])
    return repetitions * pulls * micro.PULL_BATCH


async def _serve(reads: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        served = await micro.start_broker(Path(directory), native_sends=True)
        with served.broker.store.waiting():
            served.receive(reads)
        served.connection.connection_lost(None)
        await served.broker.stop()


KINDS: dict[str, Kind] = {
    "client: send, 32 in flight": send,
    "client: send with keys and tags, 32 in flight": send_with_keys,
    "client: send_batch of 32": send_batch,
    "client: a pull of 256, decoded and removed": consume,
    **{f"client: push consumer, {kind}": partial(push, kind) for kind in client_micro.CONSUMERS},
    "broker: sends by native code, 32 in one read": store,
    "broker: pulls of 32 messages": pull,
}


def main() -> int:
    for name, work in KINDS.items():
        for repetitions in REPETITIONS:
            if (child := os.fork()) == 0:
                os._exit(_run(name, work, repetitions))
            _, status = os.waitpid(child, 0)
            if status:
                return 1
    return 0


def _run(name: str, work: Kind, repetitions: int) -> int:
    # A collection would add the cost of all objects of the imported modules at a random message.
    gc.disable()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        messages = runner.run(work(repetitions))
    print(os.getpid(), messages, name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
