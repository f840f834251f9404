"""The clients of a soak test. Each kind has a process of its own, so that no other work delays its messages.

A process appends a record to a file for each message that is acknowledged or received. `soak.py` reads these files. A
process stops when its standard input closes. This also happens if the process that started it dies.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from struct import Struct

import uvloop

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt

TOPIC = "soak"
KEYS = 64
PRODUCERS = 4
#: Number of consumers per group, less than the topic's number of queues.
CONSUMERS = 3
#: Shortest stay of a consumer, in seconds. The longest is twice as long.
STAY_S = 20.0
#: A consumer that stays for this time must receive messages. In seconds.
FAIR_S = 15.0
#: Interval at which records are written, in seconds.
WRITE_S = 0.1
#: Delay before a failed send is repeated, in seconds.
AGAIN_S = 0.1
#: How long a batch waits for further messages, in seconds.
LINGER_S = 0.01

#: Key and number of a message.
RECORD = Struct("<BI")


class Records:
    """Appends records to a file, at intervals so that `add` is cheap.

    With `at_once`, each record is written immediately, before the process can be killed.
    """

    def __init__(self, path: Path, *, at_once: bool) -> None:
        self._file = path.open("ab", buffering=0)
        self._new = bytearray()
        self._at_once = at_once

    def add(self, key: int, number: int) -> None:
        self._new += RECORD.pack(key, number)
        if self._at_once:
            self._write()

    async def write_on(self) -> None:
        """Writes records until it is cancelled, and then the remaining ones."""
        try:
            while True:
                await asyncio.sleep(WRITE_S)
                self._write()
        finally:
            self._write()

    def _write(self) -> None:
        new, self._new = self._new, bytearray()
        self._file.write(new)


def acknowledged(path: Path) -> dict[int, int]:
    """Returns the number of acknowledged messages of each key, as recorded by a killed load.

    Number 0 of each key always exists.
    """
    counts = dict.fromkeys(range(KEYS), 1)
    for key, number in RECORD.iter_unpack(path.read_bytes()):
        counts[key] = number + 1
    return counts


async def produce(args: argparse.Namespace, number: int, until: float, sent: dict[int, int], records: Records) -> None:
    """Runs one producer with its own keys. The messages of a key are sent in order, those of a batch at once."""
    keys = [key for key in range(KEYS) if key % PRODUCERS == number]
    pause_s = args.batch * PRODUCERS / args.rate
    async with Producer(args.names, "soak-producers", linger=LINGER_S if args.batch > 1 else 0) as producer:

        async def send_next(key: int) -> None:
            message = Message(TOPIC, b"%d %d" % (key, sent[key]))
            while True:
                # A message without an acknowledgement may be stored, so the same number is sent again.
                try:
                    await producer.send(message, select=select_by_hash(key))
                    break
                except GantryError as e:
                    print(f"a send failed, again: {e}", file=sys.stderr)
                    await asyncio.sleep(AGAIN_S)
            records.add(key, sent[key])
            sent[key] += 1

        next_at = time.monotonic()
        while time.monotonic() < until:
            await asyncio.gather(*map(send_next, random.sample(keys, args.batch)))
            next_at += pause_s
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))


class Group:
    """The consumers of one group. Each joins, stays a while and leaves, and the next one joins."""

    def __init__(self, names: str, kind: str, records: Records, done: asyncio.Event) -> None:
        self._names = names
        self._name = f"soak-{kind}"
        self._kind = kind
        self._records = records
        self._done = done
        self.consumers = 0
        self.starved: list[str] = []

    async def seat(self) -> None:
        """Runs one position of the group: its consumers one after the other."""
        while not self._done.is_set():
            stay_s = random.uniform(STAY_S, 2 * STAY_S)
            began = time.monotonic()

            async def until(stay_s: float = stay_s) -> None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(stay_s):
                        await self._done.wait()

            try:
                had = await (self._pop(until) if self._kind == "pop" else self._push(until))
            except GantryError as e:
                # A consumer fails to start while no NameServer responds.
                print(f"a {self._kind} consumer comes again: {e}", file=sys.stderr)
                await asyncio.sleep(AGAIN_S)
                continue
            self.consumers += 1
            stayed_s = time.monotonic() - began
            # For the last consumers, the time with messages is unknown.
            if not had and stayed_s > FAIR_S and not self._done.is_set():
                self.starved.append(f"a {self._kind} consumer had nothing in {stayed_s:.0f} s")

    def _take(self, body: bytes) -> None:
        key, number = body.split(b" ")
        self._records.add(int(key), int(number))

    async def _push(self, until: Callable[[], Awaitable[None]]) -> int:
        """Runs one push consumer. Returns the number of its messages."""
        had = 0

        async def handle(message: MessageExt) -> None:
            nonlocal had
            had += 1
            self._take(message.body)

        consumer = PushConsumer(
            self._names,
            self._name,
            handle,
            orderly=self._kind == "orderly",
            start_from="earliest",
            pull_batch_size=64,
        )
        consumer.subscribe(TOPIC)
        async with consumer:
            await until()
        return had

    async def _pop(self, until: Callable[[], Awaitable[None]]) -> int:
        """Runs one simple consumer. Returns the number of its messages."""
        had = 0
        consumer = SimpleConsumer(self._names, self._name)
        consumer.subscribe(TOPIC)

        async def receive() -> None:
            nonlocal had
            while True:
                messages = await consumer.receive(invisible_time=10, timeout=5)
                for message in messages:
                    self._take(message.body)
                had += len(messages)
                await asyncio.gather(*(consumer.ack(message) for message in messages))

        async with consumer:
            receiving = asyncio.create_task(receive())
            await until()
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
        return had


async def load(args: argparse.Namespace, records: Records, done: asyncio.Event) -> None:
    """Sends for the configured time, or until it is stopped."""
    until = time.monotonic() + 60 * args.minutes
    sent = acknowledged(args.records)
    sending = asyncio.gather(*(produce(args, n, until, sent, records) for n in range(PRODUCERS)))
    stopping = asyncio.create_task(done.wait())
    await asyncio.wait([sending, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if sending.done():
        sending.result()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def run(args: argparse.Namespace) -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, lambda: os.read(0, 4096) or done.set())
    records = Records(args.records, at_once=args.at_once)
    writing = asyncio.create_task(records.write_on())
    try:
        if args.kind == "load":
            await load(args, records, done)
        else:
            group = Group(args.names, args.kind, records, done)
            await asyncio.gather(*(group.seat() for _ in range(CONSUMERS)))
            print(json.dumps({"consumers": group.consumers, "starved": group.starved}))
    finally:
        asyncio.get_running_loop().remove_reader(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("kind", choices=["load", "concurrent", "orderly", "pop"])
    parser.add_argument("names", help="the NameServers")
    parser.add_argument("records", type=Path)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=1, help="messages of a producer that are sent at once")
    parser.add_argument("--at-once", action="store_true", help="write each record before its message is done")
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(args))


if __name__ == "__main__":
    main()
