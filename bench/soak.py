"""Soak: producers and three groups whose consumers come and go, for minutes; see README.md.

Checked as it goes: what was acknowledged reaches every group, the orderly group never skips a message of a key, every
consumer that had time to gets messages, and the broker's memory stays flat. Exit status 1 when one of these fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_FIRST_OFFSET
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.testing.processes import ProcessCluster

TOPIC = "soak"
KEYS = 64
PRODUCERS = 4
#: Each group has so many consumers, fewer than the topic has queues.
CONSUMERS = 3
#: A consumer stays between so long and twice as long, s.
STAY_S = 20.0
#: One that stayed so long must have had messages.
FAIR_S = 15.0
#: How long after the last send a group may take to have everything, s.
CATCH_UP_S = 60.0
#: Anonymous memory of the broker: what the last third has more than the second, at most, in MiB.
MAX_GROWTH_MIB = 8.0


@dataclass
class Group:
    """What one consumer group received."""

    name: str
    counts: dict[int, Counter[int]] = field(default_factory=lambda: {key: Counter() for key in range(KEYS)})
    #: By key: the highest number received.
    highest: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(KEYS), -1))
    gaps: list[str] = field(default_factory=list)
    received: int = 0
    starved: list[str] = field(default_factory=list)
    consumers: int = 0

    def take(self, body: bytes) -> None:
        key, number = map(int, body.split(b" "))
        if number > self.highest[key] + 1:
            self.gaps.append(f"key {key}: {number} after {self.highest[key]}")
        self.highest[key] = max(self.highest[key], number)
        self.counts[key][number] += 1
        self.received += 1

    def missing(self, sent: dict[int, int]) -> int:
        """How many of the messages that were acknowledged it hasn't got."""
        return sum(1 for key, count in sent.items() for number in range(count) if not self.counts[key][number])


class Stop:
    """Says when the producers stop, and when the consumers do."""

    def __init__(self, minutes: float) -> None:
        self.sending_until = time.monotonic() + 60 * minutes
        self.done = asyncio.Event()

    @property
    def is_sending(self) -> bool:
        return time.monotonic() < self.sending_until


async def produce(names: str, number: int, rate: float, stop: Stop, sent: dict[int, int]) -> None:
    """One producer: its own keys, each key's messages one after the other."""
    keys = [key for key in range(KEYS) if key % PRODUCERS == number]
    async with Producer(names, "soak-producers") as producer:
        next_at = time.monotonic()
        while stop.is_sending:
            key = random.choice(keys)
            message = Message(TOPIC, b"%d %d" % (key, sent[key]))
            while True:
                # Not acknowledged may be stored nevertheless: the same number again, not the next.
                try:
                    await producer.send_with(message, select_by_hash, key)
                    break
                except GantryError as e:
                    print(f"a send failed, again: {e}", file=sys.stderr)
            sent[key] += 1
            next_at += 1 / rate
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))


async def push(names: str, group: Group, orderly: bool, until: Callable[[], Awaitable[None]]) -> int:
    """One push consumer's life; how many messages it had."""
    had = 0

    async def handle(message: MessageExt) -> None:
        nonlocal had
        had += 1
        group.take(message.body)

    consumer = PushConsumer(
        names, group.name, handle, orderly=orderly, consume_from_where=CONSUME_FROM_FIRST_OFFSET, pull_batch_size=64
    )
    consumer.subscribe(TOPIC)
    async with consumer:
        await until()
    return had


async def pop(names: str, group: Group, until: Callable[[], Awaitable[None]]) -> int:
    """One simple consumer's life; how many messages it had."""
    had = 0
    consumer = SimpleConsumer(names, group.name)
    consumer.subscribe(TOPIC)

    async def receive() -> None:
        nonlocal had
        while True:
            for message in await consumer.receive(invisible_ms=10_000, await_ms=5000):
                group.take(message.body)
                had += 1
                await consumer.ack(message)

    async with consumer:
        task = asyncio.create_task(receive())
        await until()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return had


async def seat(names: str, group: Group, kind: str, stop: Stop) -> None:
    """One place in a group: a consumer comes, stays a while, leaves, and the next one comes."""
    while not stop.done.is_set():
        stay_s = random.uniform(STAY_S, 2 * STAY_S)
        began = time.monotonic()

        async def until(stay_s: float = stay_s) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(stay_s):
                    await stop.done.wait()

        if kind == "pop":
            had = await pop(names, group, until)
        else:
            had = await push(names, group, kind == "orderly", until)
        group.consumers += 1
        if not had and time.monotonic() - began > FAIR_S and stop.is_sending:
            group.starved.append(f"a {kind} consumer had nothing in {time.monotonic() - began:.0f} s")


def anonymous_mib(pid: int) -> float:
    """A process's memory without the pages of its files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def watch(pid: int, memory: list[float], sent: dict[int, int], groups: list[Group], stop: Stop) -> None:
    """Samples the broker's memory each second, and reports each 10 s."""
    began = time.monotonic()
    while not stop.done.is_set():
        memory.append(anonymous_mib(pid))
        if len(memory) % 10 == 0:
            received = ", ".join(f"{group.name} {group.received:,}" for group in groups)
            print(
                f"{time.monotonic() - began:5.0f} s: sent {sum(sent.values()):,}; received {received}; "
                f"{memory[-1]:.1f} MiB",
                flush=True,
            )
        await asyncio.sleep(1)


async def soak(cluster: ProcessCluster, minutes: float, rate: float) -> list[str]:
    """Runs it all; what went wrong."""
    names = cluster.namesrv_addr
    stop = Stop(minutes)
    sent = dict.fromkeys(range(KEYS), 0)
    kinds = {"soak-concurrent": "concurrent", "soak-orderly": "orderly", "soak-pop": "pop"}
    groups = [Group(name) for name in kinds]
    memory: list[float] = []
    async with Producer(names, "soak-producers") as producer:
        for key in range(KEYS):
            await producer.send_with(Message(TOPIC, b"%d 0" % key), select_by_hash, key)
            sent[key] = 1
    tasks = [asyncio.create_task(watch(cluster.brokers[0].pid, memory, sent, groups, stop))]
    tasks += [
        asyncio.create_task(seat(names, group, kinds[group.name], stop)) for group in groups for _ in range(CONSUMERS)
    ]
    await asyncio.gather(*(produce(names, number, rate / PRODUCERS, stop, sent) for number in range(PRODUCERS)))
    deadline = time.monotonic() + CATCH_UP_S
    while any(group.missing(sent) for group in groups) and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
    stop.done.set()
    await asyncio.gather(*tasks)

    problems = []
    for group in groups:
        total = sum(sent.values())
        print(f"{group.name}: {group.received:,} received of {total:,} sent, {group.consumers} consumers came and went")
        if missing := group.missing(sent):
            problems.append(f"{group.name}: {missing:,} messages never came")
        if group.gaps and kinds[group.name] == "orderly":
            problems.append(f"{group.name}: out of order {len(group.gaps)} times, first {group.gaps[0]}")
        problems += group.starved
    third = len(memory) // 3
    before, after = max(memory[third : 2 * third]), max(memory[2 * third :])
    print(f"the broker's anonymous memory: {before:.1f} MiB at most in the second third, {after:.1f} MiB in the last")
    if after - before > MAX_GROWTH_MIB:
        problems.append(f"the broker's memory grew from {before:.1f} to {after:.1f} MiB")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long messages are sent (%(default)s)")
    parser.add_argument("--rate", type=float, default=500.0, help="messages per second (%(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ProcessCluster(Path(directory)) as cluster:
        problems = asyncio.run(soak(cluster, args.minutes, args.rate))
    for problem in problems:
        print(problem, file=sys.stderr)
    print("failed" if problems else "nothing lost, nothing out of order, nobody starved, memory flat")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
