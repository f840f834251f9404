"""Two stores, and a proxy between master and slave that simulates a bad network."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from gantrymq.protocol.record import encode_host
from gantrymq.remoting.listener import ListenOptions
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.connection import HaConnection
from gantrymq.replication.master import HaMaster
from gantrymq.replication.slave import HaSlave
from gantrymq.replication.slave_connection import SlaveConnection
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore

HOST = encode_host("127.0.0.1", 10911)
LOG_FILE = 1024 * 1024


@asynccontextmanager
async def opened(root: Path, *, is_slave: bool = False, **options: Any) -> AsyncIterator[MessageStore]:
    """Opens a store with small files."""
    settings = {"mapped_file_size_commit_log": LOG_FILE, "max_hash_slot_num": 64, "max_index_num": 256, **options}
    store = MessageStore(StoreConfig(root, **settings), HOST)
    store.open()
    try:
        if is_slave:
            store.set_slave(True)
        yield store
    finally:
        store.close()


@asynccontextmanager
async def master_of(store: MessageStore, **options: Any) -> AsyncIterator[HaMaster]:
    config = options.pop("config", None) or ReplicationConfig(**options)
    master = HaMaster(store, config, ListenOptions("127.0.0.1"))
    await master.start()
    try:
        yield master
    finally:
        await master.stop()


@asynccontextmanager
async def slave_of(store: MessageStore, port: int, *, broker_id: int = 1, **options: Any) -> AsyncIterator[HaSlave]:
    slave = HaSlave(store, ReplicationConfig(**options), broker_id=broker_id)
    slave.set_master(f"127.0.0.1:{port}")
    await slave.start()
    try:
        yield slave
    finally:
        await slave.stop()


def put_many(store: MessageStore, count: int, chance: Random, *, size: int = 300, topic: str = "orders") -> None:
    """Stores `count` messages of less than `size` bytes in four queues."""
    for _ in range(count):
        queue = store.queue(topic, chance.randrange(4))
        body = chance.randbytes(chance.randrange(size))
        store.append(queue, 0, 0, 1_700_000_000_000, HOST, 0, body, b"TAGS\x01a\x02", 97)


def log_hash(store: MessageStore, begin: int = 0) -> str:
    """Returns a hash of the log from the offset `begin`."""
    digest = hashlib.sha256()
    while (piece := store.log_slice(begin, 1 << 20)) is not None:
        digest.update(piece)
        begin += len(piece)
    return digest.hexdigest()


def queue_units(store: MessageStore) -> dict[tuple[str, int], tuple[int, int, list[tuple[int, int, int]]]]:
    """Returns {queue: (first offset, end offset, all units)}."""
    found = {}
    for topic, ids in store.topics().items():
        for queue_id in ids:
            queue = store.queue(topic, queue_id)
            units = [queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]
            found[topic, queue_id] = queue.min_offset, queue.max_offset, units
    return found


def connection_of(slave: HaSlave) -> SlaveConnection:
    """Returns the slave's connection to its master."""
    connection = slave._connection
    assert connection is not None
    return connection


def connections_of(master: HaMaster) -> list[HaConnection]:
    """Returns the master's connections, in the order of their arrival."""
    return list(master._connections)


class Proxy:
    """Forwards connections at `port` to `target`, in both directions.

    `most` is the largest size of a forwarded piece, in bytes. `pause` returns the delay before each piece. `spoil` can
    change a piece of the master's data. `cut_after` returns the number of the master's bytes after which a connection
    is cut.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.most = 64 * 1024
        self.pause: Callable[[], float] | None = None
        self.spoil: Callable[[bytes], bytes] | None = None
        self.cut_after: Callable[[], int | None] = lambda: None
        self.cuts = 0
        self.passed = 0
        #: Number of connections so far.
        self.accepted = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Resets all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_writer}
        own = asyncio.current_task()
        assert own is not None
        self._tasks.add(own)
        ways = [self._pass_on(reader, to_writer, None), self._pass_on(to_reader, writer, self.cut_after())]
        tasks = [asyncio.ensure_future(way) for way in ways]
        # If one side closes, both connections are closed.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, to_writer):
            each.transport.abort()
            self._writers.discard(each)
        await asyncio.wait(tasks)
        self._tasks.discard(own)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None) -> None:
        from_master = writer.get_extra_info("sockname")[1] == self.port
        with suppress(OSError):
            while data := await reader.read(self.most):
                if self.pause is not None:
                    await asyncio.sleep(self.pause())
                if from_master:
                    if left is not None:
                        data, left = data[:left], left - len(data)
                    self.passed += len(data)
                    if self.spoil is not None:
                        data = self.spoil(data)
                writer.write(data)
                await writer.drain()
                if left is not None and left <= 0:
                    self.cuts += 1
                    break
