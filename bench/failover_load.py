"""The load of a failover: paced sends in order for each key, with a record of every acknowledgement.

A message is sent again until it is acknowledged. For each key, the log therefore has at most one message that was not
acknowledged. The process stops when its standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import uvloop

from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message

TOPIC = "failover"
KEYS = 64
PRODUCERS = 4
QUEUES = 8
#: Interval at which records are written, in seconds.
WRITE_S = 0.05
#: Delay before a failed send is repeated, in seconds.
AGAIN_S = 0.05
#: If a key's sends are later than this, they do not catch up; in seconds.
MOST_LATE_S = 0.2

#: Key, number, queue, queue offset; the broker's address and physical offset as in an offset message id; begin and end
#: of the acknowledged send by CLOCK_MONOTONIC, which all processes of a machine share.
_RECORD = Struct("<HIHQ4sIQdd")


class Acknowledged(NamedTuple):
    """The acknowledgement of one message. Times are in seconds."""

    key: int
    number: int
    queue: int
    offset: int
    host: bytes
    port: int
    physical_offset: int
    began: float
    ended: float

    @property
    def broker(self) -> tuple[bytes, int]:
        return self.host, self.port


class History:
    """Reads the records of a load while they grow."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb", buffering=0)
        self._rest = b""

    def new(self) -> list[Acknowledged]:
        """Returns the records since the last call."""
        data = self._rest + self._file.readall()
        end = len(data) - len(data) % _RECORD.size
        self._rest = data[end:]
        return [Acknowledged(*each) for each in _RECORD.iter_unpack(data[:end])]

    def close(self) -> None:
        self._file.close()


class Writer:
    """Appends records to the file at intervals."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._new = bytearray()

    def add(self, *values: object) -> None:
        self._new += _RECORD.pack(*values)

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


async def send_key(producer: Producer, key: int, pause_s: float, size: int, writer: Writer) -> None:
    """Sends all messages of one key, to one queue."""
    number = 0
    next_at = time.monotonic()
    while True:
        body = b"%d %d " % (key, number)
        message = Message(TOPIC, body.ljust(size, b"."))
        while True:
            began = time.monotonic()
            try:
                sent = await producer.send(message, select=select_by_hash(key))
                if sent.status is SendStatus.SEND_OK:
                    break
                print(f"{key} {number}: {sent.status.name}", file=sys.stderr)
            except GantryError as e:
                print(f"{key} {number}: {type(e).__name__} {e}", file=sys.stderr)
            await asyncio.sleep(AGAIN_S)
        ended = time.monotonic()
        place = bytes.fromhex(sent.offset_msg_id)
        host, port, physical_offset = place[:4], int.from_bytes(place[4:8], "big"), int.from_bytes(place[8:], "big")
        queue_id = sent.queue.queue_id
        writer.add(key, number, queue_id, sent.queue_offset, host, port, physical_offset, began, ended)
        number += 1
        next_at = max(next_at + pause_s, ended - MOST_LATE_S)
        await asyncio.sleep(max(0.0, next_at - ended))


async def run(args: argparse.Namespace) -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, lambda: os.read(0, 4096) or done.set())
    writer = Writer(args.records)
    writing = asyncio.create_task(writer.write_on())
    pause_s = KEYS / args.rate
    producers = [Producer(args.names, "failover-producers") for _ in range(PRODUCERS)]
    for producer in producers:
        await producer.start()
    sending = [
        asyncio.create_task(send_key(producers[key % PRODUCERS], key, pause_s, args.size, writer))
        for key in range(KEYS)
    ]
    stopping = asyncio.create_task(done.wait())
    try:
        ended, _ = await asyncio.wait([stopping, *sending], return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        asyncio.get_running_loop().remove_reader(0)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        for producer in producers:
            await producer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("names", help="the NameServers")
    parser.add_argument("records", type=Path)
    parser.add_argument("--rate", type=float, required=True, help="messages per second")
    parser.add_argument("--size", type=int, default=128, help="of a body, bytes (%(default)s)")
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(args))


if __name__ == "__main__":
    main()
