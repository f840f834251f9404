"""Clients beside the load of a failover: consumers of three kinds, transactions, delayed and timed messages.

Each line of the record file is one event, written at once: a word, a number, and a time of CLOCK_MONOTONIC:

    push 4711 81.25          a consumer of this kind received the load's message 4711 (counted by this consumer)
    transactions 12 81.3     the transaction 12 was committed, and the commit was sent
    delays 13 81.4           the delayed message 13 was acknowledged with SEND_OK

Transactions and delayed messages are sent once. If a send fails, its number is not sent again. If a number is stored
twice, the broker has therefore repeated it. The process stops when its standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from failover_load import TOPIC

from gantrymq.client.broker_api import SendStatus
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt

TRANSACTIONS, DELAYS = "failover-transactions", "failover-delays"
CONSUMERS = ("push", "pop", "lite")
#: Rate of transactions, and of delayed messages, per second.
RATE = 20.0
#: Half of the delayed messages have this delay level (5 s by default). The others are delayed by TIMER_S seconds.
LEVEL, TIMER_S = 2, 4.0
#: Time in which brokers check each open transaction before the clients close, in seconds.
CHECKED_S = 5.0


class Records:
    """Appends events to a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def add(self, word: str, number: int) -> None:
        self._file.write(f"{word} {number} {time.monotonic():.6f}\n")


def is_rolled_back(number: int) -> bool:
    """Returns true for the transactions that must not appear: every fifth one."""
    return number % 5 == 4


class Decisions:
    """Commits or rolls back by the number of a transaction, also when a broker checks it."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return self._state(message)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return self._state(message)

    def _state(self, message: Message) -> LocalTransactionState:
        is_undone = is_rolled_back(int(message.body))
        return LocalTransactionState.ROLLBACK_MESSAGE if is_undone else LocalTransactionState.COMMIT_MESSAGE


async def push(names: str, records: Records) -> None:
    count = 0

    async def handle(message: MessageExt) -> None:
        nonlocal count
        count += 1
        records.add("push", count)

    consumer = PushConsumer(names, "failover-push", handle)
    consumer.subscribe(TOPIC)
    async with consumer:
        await asyncio.Event().wait()


async def pop(names: str, records: Records) -> None:
    count = 0
    consumer = SimpleConsumer(names, "failover-pop")
    consumer.subscribe(TOPIC)
    async with consumer:
        while True:
            try:
                for message in await consumer.receive(invisible_time=10, timeout=1):
                    count += 1
                    records.add("pop", count)
                    await consumer.ack(message)
            except GantryError as e:
                print(f"pop: {type(e).__name__} {e}", file=sys.stderr)
                await asyncio.sleep(0.05)


async def lite(names: str, records: Records) -> None:
    count = 0
    consumer = LitePullConsumer(names, "failover-lite")
    consumer.subscribe(TOPIC)
    async with consumer:
        while True:
            for _ in await consumer.poll(timeout=1):
                count += 1
                records.add("lite", count)


async def paced(what: str, send: Callable[[int], Awaitable[bool]], records: Records, done: asyncio.Event) -> None:
    """Calls `send` with 0, 1, 2 and so on until `done`. Records the numbers for which it returned true."""
    number, pending = 0, set[asyncio.Task[None]]()

    async def one(number: int) -> None:
        try:
            if await send(number):
                records.add(what, number)
        except GantryError as e:
            print(f"{what} {number}: {type(e).__name__} {e}", file=sys.stderr)

    while not done.is_set():
        task = asyncio.create_task(one(number))
        pending.add(task)
        task.add_done_callback(pending.discard)
        number += 1
        await asyncio.sleep(1 / RATE)
    await asyncio.gather(*pending)
    # A commit has no response. If it was lost, the broker checks the transaction.
    await asyncio.sleep(CHECKED_S)


async def transactions(names: str, records: Records, done: asyncio.Event) -> None:
    async with TransactionProducer(names, "failover-transactions", Decisions(), retry_times=0) as producer:

        async def send(number: int) -> bool:
            sent = await producer.send_in_transaction(Message(TRANSACTIONS, b"%d" % number))
            return sent.result.status is SendStatus.SEND_OK and not is_rolled_back(number)

        await paced("transactions", send, records, done)


async def delays(names: str, records: Records, done: asyncio.Event) -> None:
    async with Producer(names, "failover-delays", retry_times=0) as producer:

        async def send(number: int) -> bool:
            body = b"%d" % number
            message = Message(DELAYS, body, delay_level=LEVEL) if number % 2 else Message(DELAYS, body, delay=TIMER_S)
            return (await producer.send(message)).status is SendStatus.SEND_OK

        await paced("delays", send, records, done)


async def run(args: argparse.Namespace) -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, lambda: os.read(0, 4096) or done.set())
    records = Records(args.records)
    consumers = [asyncio.create_task(work(args.names, records)) for work in (push, pop, lite)]
    producers = [asyncio.create_task(work(args.names, records, done)) for work in (transactions, delays)]
    stopping = asyncio.create_task(done.wait())
    try:
        ended, _ = await asyncio.wait([stopping, *consumers, *producers], return_when=asyncio.FIRST_COMPLETED)
        for each in ended:
            each.result()
        await asyncio.gather(*producers)
    finally:
        asyncio.get_running_loop().remove_reader(0)
        for task in (*consumers, *producers):
            task.cancel()
        await asyncio.gather(*consumers, *producers, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("names", help="the NameServers")
    parser.add_argument("records", type=Path)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
