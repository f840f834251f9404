"""Strangers at the HA port, and servers that are not masters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from struct import pack

import pytest
from replication_support import LOG_FILE, connections_of, log_hash, master_of, opened, put_many, slave_of
from wait_until import until

from gantrymq.replication.frames import MAX_BODY, VERSION, Greeting, encode_greeting, encode_header, encode_opening
from gantrymq.replication.master import MAX_CONNECTIONS


async def stranger(port: int, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    return reader, writer


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Reads until the connection ends."""
    with suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass
    return True


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        pack(">q", -2),
        pack(">q", (1 << 63) - 1),
        pack(">q", 1 << 40),
        pack(">qq", 0, 1 << 40),
        b"\xff" * 64,
        encode_opening(0) + b"\0" * 16,
        bytes(range(256)) * 4000,
    ],
    ids=["http", "negative", "huge", "beyond the end", "acknowledges too much", "ones", "no crc", "a lot"],
)
async def test_rubbish_ends_its_connection_alone(tmp_path: Path, data: bytes) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 200, Random(1))
        async with master_of(first) as master, slave_of(second, master.port):
            reader, writer = await stranger(master.port, data)
            assert await asyncio.wait_for(is_closed(reader), 10)
            writer.close()
            await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
            assert len(master.slaves) == 1
            assert log_hash(first) == log_hash(second)


async def test_acknowledging_what_was_not_sent(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, master_of(first) as master:
        put_many(first, 200, Random(1))
        reader, writer = await stranger(master.port, pack(">q", 1))
        await until(lambda: master.slaves.replicated(2) == 1)
        writer.write(pack(">q", first.max_physical_offset + 1))
        assert await asyncio.wait_for(is_closed(reader), 10)
        assert master.slaves.replicated(2) == 0
        writer.close()


def is_open(reader: asyncio.StreamReader) -> bool:
    return not reader.at_eof() and reader.exception() is None


async def test_strangers_in_great_numbers_give_way(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 200, Random(1))
        async with master_of(first) as master:
            strangers = [await stranger(master.port) for _ in range(1000)]
            async with slave_of(second, master.port):
                await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
                strangers += [await stranger(master.port) for _ in range(200)]
                put_many(first, 200, Random(1))
                await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
                await until(lambda: sum(is_open(reader) for reader, _ in strangers) <= MAX_CONNECTIONS)
            for _, writer in strangers:
                writer.close()


async def test_a_slave_that_cannot_be_served_keeps_the_log_from_no_other(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("it can't be served")

    async with opened(tmp_path / "a") as first, opened(tmp_path / "b", is_slave=True) as second:
        put_many(first, 200, Random(1))
        async with master_of(first) as master:
            reader, writer = await stranger(master.port, pack(">q", 1))
            await until(lambda: master.slaves.replicated(2) == 1)
            (broken,) = connections_of(master)
            async with slave_of(second, master.port):
                await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
                broken.send = fail  # type: ignore[method-assign]
                put_many(first, 200, Random(1))
                await until(lambda: master.slaves.replicated(2) == first.max_physical_offset)
                assert await asyncio.wait_for(is_closed(reader), 10)
            writer.close()


async def test_who_says_nothing_is_left(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, master_of(first, ha_housekeeping_interval=100) as master:
        silent, writer = await stranger(master.port)
        assert await asyncio.wait_for(is_closed(silent), 10)
        writer.close()


async def test_who_reads_nothing_holds_one_batch_and_is_left(tmp_path: Path) -> None:
    batch = 32 * 1024
    async with opened(tmp_path / "a", mapped_file_size_commit_log=32 * LOG_FILE) as first:
        put_many(first, 3000, Random(1), size=10_000)
        assert first.max_physical_offset > 12_000_000
        async with master_of(first, ha_housekeeping_interval=1500) as master:
            _, writer = await stranger(master.port)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(pack(">q", 1))
            await until(lambda: master.slaves.all())
            (slave,) = master.slaves.all()
            (connection,) = connections_of(master)
            await until(lambda: connection.unwritten_bytes)
            assert connection.unwritten_bytes <= batch + 12
            # Only the buffers of the sockets are filled.
            assert slave.next_offset < first.max_physical_offset
            await until(lambda: not master.slaves)
            writer.close()


async def test_sign_of_life_at_another_place_for_a_java_slave(tmp_path: Path) -> None:
    """The slave is ahead of the master. It gets the end of the master's log, and the connection is closed."""
    async with opened(tmp_path / "a") as first, master_of(first) as master:
        put_many(first, 10, Random(1))
        reader, writer = await stranger(master.port, pack(">q", 1 << 30))
        assert await asyncio.wait_for(reader.read(), 10) == pack(">qi", first.max_physical_offset, 0)
        writer.close()


async def test_java_slave_gets_the_last_file(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, master_of(first) as master:
        put_many(first, 6000, Random(1), size=1000)
        begin = first.max_physical_offset // LOG_FILE * LOG_FILE
        assert begin >= LOG_FILE
        reader, writer = await stranger(master.port, pack(">q", 0))
        assert await asyncio.wait_for(reader.readexactly(8), 10) == pack(">q", begin)
        writer.close()


# -- masters ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def false_master(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Runs a server that sends `answer` to each client.

    Yields its port and the first bytes that slaves sent.
    """
    openings: list[bytes] = []

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            openings.append(await reader.readexactly(16))
            writer.write(answer)
            while await reader.read(1 << 16):
                pass
        writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], openings
    finally:
        server.close()
        await server.wait_closed()


GREETING = encode_greeting(Greeting(0, 1 << 20, LOG_FILE, VERSION))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        pack(">qi", 1, -1),
        pack(">qi", 1, MAX_BODY + 100),
        pack(">qi", 5, 3) + b"abc",
        pack(">qi", 1, 100) + b"\xee" * 100,
        pack(">qi", 1, 100) + b"\0" * 100,
        encode_header(-1, b"", checked=True),
        GREETING + b"\0" * 16,
        GREETING + encode_header(500, b"abc", checked=True) + b"abc",
    ],
    ids=["http", "size", "large", "place", "bytes", "zeros", "short greeting", "crc", "checked place"],
)
async def test_rubbish_of_a_master_is_left(tmp_path: Path, answer: bytes) -> None:
    async with (
        opened(tmp_path / "b", is_slave=True) as second,
        false_master(answer) as (port, openings),
        slave_of(second, port),
    ):
        # The slave reconnects, with growing pauses.
        await until(lambda: len(openings) >= 3)
        assert second.max_physical_offset == 0


async def test_silent_master_is_left(tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "b", is_slave=True) as second,
        false_master(b"") as (port, openings),
        slave_of(second, port, ha_housekeeping_interval=100),
    ):
        await until(lambda: len(openings) >= 3)


async def test_master_with_other_files_is_refused(tmp_path: Path) -> None:
    answer = encode_greeting(Greeting(0, 100, 2 * LOG_FILE, VERSION))
    async with (
        opened(tmp_path / "b", is_slave=True) as second,
        false_master(answer) as (port, _),
        slave_of(second, port) as slave,
    ):
        assert "mappedFileSizeCommitLog" in await until(lambda: slave.refusal)


async def test_slave_of_another_master_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b") as second:
        put_many(first, 200, Random(1))
        put_many(second, 100, Random(2))
        second.set_slave(True)
        before = log_hash(second)
        async with master_of(first) as master, slave_of(second, master.port) as slave:
            assert "aren't the same" in await until(lambda: slave.refusal)
            assert log_hash(second) == before
