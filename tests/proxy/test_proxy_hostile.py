"""A proxy process under attack: it serves other clients, its memory stays constant, and its log has no errors."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from proxy_support import Rpc, message, producer_settings

from gantrymq.client.admin.client import AdminClient
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.hpack import literal
from gantrymq.proxy.times import to_duration
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.processes import ProcessCluster, ServerProcess

MOST_MIB = 300
#: Limit in seconds. On an idle machine it is 0.02 s, but a process can stall for some tenths of a second.
MOST_S = 1.0


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("hostile"), proxy=True) as cluster:
        assert cluster.proxy is not None
        yield cluster
        assert cluster.proxy.is_running
    log = cluster.proxy.log_path.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log


@pytest.fixture
def server(processes: ProcessCluster) -> ServerProcess:
    assert processes.proxy is not None
    return processes.proxy


def memory_mib(server: ServerProcess) -> float:
    """Returns the peak memory of the process."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


def starved_s(*pids: int) -> float:
    """Returns the time for which threads of the processes waited for a processor."""
    total_ns = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                total_ns += int((task / "schedstat").read_text().split()[1])
    return total_ns / 1e9


class Innocent:
    """A client beside the attack that sends requests continuously.

    Records its longest wait for the proxy in seconds.
    """

    def __init__(self, server: ServerProcess) -> None:
        self._pids = server.pid, os.getpid()
        self._channel = grpc.aio.insecure_channel(server.address)
        self.rpc = Rpc(self._channel, "innocent")
        self.longest_s = 0.0
        self.count = 0

    async def ask(self) -> None:
        request = rpc_pb.QueryRouteRequest(topic=pb.Resource(name="DefaultCluster"))
        starved, began = starved_s(*self._pids), time.monotonic()
        response = await self.rpc.QueryRoute(request)
        waited_s = time.monotonic() - began - (starved_s(*self._pids) - starved)
        self.longest_s = max(self.longest_s, waited_s)
        self.count += 1
        assert response.status.code == pb.OK

    async def close(self) -> None:
        await self._channel.close()


def begin(stream_id: int, method: str) -> bytes:
    block = b"\x83\x86" + b"".join(
        literal(name, value)
        for name, value in (
            (b":path", f"/apache.rocketmq.v2.MessagingService/{method}".encode()),
            (b"content-type", b"application/grpc"),
            (b"x-mq-client-id", f"client {stream_id}".encode()),
        )
    )
    return frames.frame_head(frames.HEADERS, frames.END_HEADERS, stream_id, len(block)) + block


def data(stream_id: int, payload: bytes) -> bytes:
    return frames.frame_head(frames.DATA, 0, stream_id, len(payload)) + payload


BEGUN = frames.PREFACE + frames.settings({})
#: A call that gets a response at once.
UNKNOWN = b"\x83\x86" + literal(b":path", b"/unknown/Method") + literal(b"content-type", b"application/grpc")


async def peers(
    server: ServerProcess, count: int, settings: Mapping[int, int] | None = None
) -> list[asyncio.StreamWriter]:
    host, _, port = server.address.rpartition(":")
    writers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(frames.PREFACE + frames.settings(dict(settings or {})))
        # Responses are read and discarded.
        task = asyncio.ensure_future(reader.read(-1))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        writers.append(writer)
    return writers


@pytest.mark.alone
async def test_unfinished_messages(server: ServerProcess) -> None:
    innocent = Innocent(server)
    await innocent.ask()
    innocent.longest_s = 0.0
    begun = b"\x00" + (100_000_000).to_bytes(4, "big") + b"x" * 16_000
    writers = await peers(server, 10)
    for n in range(1000):
        stream = 2 * n + 1
        for writer in writers:
            writer.write(begin(stream, "SendMessage") + data(stream, begun) + data(stream, b"x" * 16_000) * 3)
        if not n % 20:
            await asyncio.gather(*(writer.drain() for writer in writers), return_exceptions=True)
            await innocent.ask()
    for writer in writers:
        writer.transport.abort()
    await innocent.ask()
    await innocent.close()
    assert innocent.longest_s < MOST_S
    assert memory_mib(server) < MOST_MIB


@pytest.mark.alone
async def test_receives_that_nobody_reads(server: ServerProcess, processes: ProcessCluster) -> None:
    """Messages of 200 kB for each of 4,000 streams with closed windows."""
    innocent = Innocent(server)
    topic = "t_large"
    assert processes.name_server is not None
    async with AdminClient(processes.name_server.address) as admin:
        await admin.ensure_topic(topic, queues=4)
    body = b"x" * 200_000
    for _ in range(200):
        sent = await innocent.rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(topic, body)]))
        assert sent.status.code == pb.OK
    await innocent.ask()
    innocent.longest_s = 0.0
    writers = await peers(server, 4, {frames.SETTING_INITIAL_WINDOW_SIZE: 0})
    for n in range(1000):
        stream = 2 * n + 1
        for number, writer in enumerate(writers):
            request = rpc_pb.ReceiveMessageRequest(
                group=pb.Resource(name=f"g_{number}_{n}"),
                message_queue=pb.MessageQueue(topic=pb.Resource(name=topic)),
                filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
                batch_size=32,
                invisible_duration=to_duration(10_000),
            ).SerializeToString()
            framed = b"\x00" + len(request).to_bytes(4, "big") + request
            if not writer.transport.is_closing():
                writer.write(begin(stream, "ReceiveMessage") + data(stream, framed))
        if not n % 20:
            await asyncio.gather(*(writer.drain() for writer in writers), return_exceptions=True)
            await innocent.ask()
    for _ in range(20):
        await innocent.ask()
    assert all(writer.transport.is_closing() for writer in writers)
    await innocent.ask()
    await innocent.close()
    # The broker must first respond to 4,000 pops of 200 kB.
    assert innocent.longest_s < 2.0
    assert memory_mib(server) < MOST_MIB


@pytest.mark.alone
async def test_ten_thousand_idle_streams(server: ServerProcess) -> None:
    innocent = Innocent(server)
    await innocent.ask()
    innocent.longest_s = 0.0
    settings = producer_settings("DefaultCluster").SerializeToString()
    message = b"\x00" + len(settings).to_bytes(4, "big") + settings
    writers = await peers(server, 10)
    for n in range(1000):
        stream = 2 * n + 1
        for writer in writers:
            writer.write(begin(stream, "Telemetry") + data(stream, message))
        if not n % 20:
            await asyncio.gather(*(writer.drain() for writer in writers))
            await innocent.ask()
    for _ in range(20):
        await innocent.ask()
    assert memory_mib(server) < MOST_MIB
    for writer in writers:
        writer.transport.abort()
    await innocent.ask()
    await innocent.close()
    assert innocent.longest_s < MOST_S


class Attacker:
    """A peer that sends, and reads until the proxy closes the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._reading = asyncio.ensure_future(reader.read())

    @property
    def is_closed(self) -> bool:
        return self._reading.done()

    def write(self, piece: bytes) -> None:
        # A transport closes a few iterations of the event loop before the reader ends.
        if not self._writer.transport.is_closing():
            self._writer.write(piece)

    async def end(self) -> None:
        self._writer.transport.abort()
        await asyncio.gather(self._reading, return_exceptions=True)


async def attacked(server: ServerProcess, count: int, pieces: list[bytes], least_closed: int = 0) -> None:
    """Runs `count` attackers that send the pieces, while an innocent client makes calls."""
    innocent = Innocent(server)
    await innocent.ask()
    innocent.longest_s = 0.0
    host, _, port = server.address.rpartition(":")
    attackers: list[Attacker] = []
    while len(attackers) < count:
        attackers.append(Attacker(*await asyncio.open_connection(host, int(port))))
        if not len(attackers) % 100:
            await innocent.ask()
    for piece in pieces:
        for n, attacker in enumerate(attackers):
            attacker.write(piece)
            if not n % 100:
                await innocent.ask()
    async with asyncio.timeout(30):
        while sum(attacker.is_closed for attacker in attackers) < least_closed:
            await innocent.ask()
    for attacker in attackers:
        await attacker.end()
    await innocent.ask()
    await innocent.close()
    assert innocent.longest_s < MOST_S
    assert memory_mib(server) < MOST_MIB


@pytest.mark.alone
@pytest.mark.slow
async def test_unfinished_header_blocks(server: ServerProcess) -> None:
    """28 KB each: a header block, and a frame that would continue it. 64 MiB correspond to 2,390 of them."""
    block = b"\x00\x01a\x7f\x9e\x5d" + b"x" * 12_061
    pieces = [
        BEGUN + begin(1, "Telemetry") + frames.frame_head(frames.HEADERS, 0, 3, len(block)) + block,
        frames.frame_head(frames.CONTINUATION, 0, 3, 16_000) + b"x" * 15_999,
    ]
    await attacked(server, 4000, pieces, least_closed=1500)


@pytest.mark.alone
@pytest.mark.slow
async def test_unfinished_handshakes(server: ServerProcess) -> None:
    """The proxy keeps at most 512 of them."""
    await attacked(server, 4000, [b"\x16\x03\x01\x02\x00\x01"], least_closed=3488)


@pytest.mark.alone
@pytest.mark.parametrize(
    "piece",
    [
        data(1, b"x") * 6000,
        data(1, b"") * 6000,
        (frames.frame_head(frames.DATA, frames.PADDED, 1, 101) + b"\x64" + bytes(100)) * 600,
        frames.window_update(1, 1000) * 5000,
        (frames.frame_head(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, 1) + b"\x82") * 6000,
        frames.ping(b"12345678") * 4000,
    ],
    ids=["data", "empty data", "padding", "windows", "trailers", "pings"],
)
async def test_frames_that_belong_to_no_call(server: ServerProcess, piece: bytes) -> None:
    """From fifty peers, whose first stream has a response.

    `test_proxy_floods.py` checks that their connections are closed.
    """
    unknown = frames.frame_head(frames.HEADERS, frames.END_HEADERS, 1, len(UNKNOWN)) + UNKNOWN
    await attacked(server, 50, [BEGUN + unknown, *[piece] * 10])
