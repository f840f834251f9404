"""A proxy that manipulates a server's responses: drops, delays, cuts, duplicates, corrupts or floods."""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest

from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.remoting.address import parse_address
from gantrymq.testing.processes import ProcessCluster

LATE_S = 0.5
MODES = [
    "silent",
    "late",
    "cut",
    "closed",
    "closed in the middle",
    "doubled",
    "corrupted",
    "corrupted body",
    "another's",
    "refusing",
    "empty",
    "flooding",
    "asking",
    "garbage",
]
#: Modes that run in parallel, because they mostly wait.
MODES_TOGETHER = [MODES[begin : begin + 4] for begin in range(0, len(MODES), 4)]


class HostileProxy:
    """Proxy in front of one server. `mode` selects the manipulation, None for none."""

    def __init__(self, target: str, rewrites: dict[str, str]) -> None:
        self.mode: str | None = None
        self.address = ""
        self._target = target
        #: Server addresses in responses that are replaced by proxy addresses.
        self._rewrites = rewrites
        self._tasks: set[asyncio.Task[None]] = set()
        self._random = random.Random(7)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[HostileProxy]:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there_writer: asyncio.StreamWriter | None = None
        try:
            there_reader, there_writer = await asyncio.open_connection(*parse_address(self._target))
            answers = asyncio.ensure_future(self._answers(there_reader, writer))
            try:
                while data := await reader.read(65536):
                    there_writer.write(data)
            finally:
                answers.cancel()
                await asyncio.gather(answers, return_exceptions=True)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, there_writer):
                if one is not None:
                    one.transport.abort()
            self._tasks.discard(task)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(65536):
            for command in frames.feed(data):
                for here, there in self._rewrites.items():
                    command.body = command.body.replace(here.encode(), there.encode())
                _ = command.ext_fields
                await self._pass_on(command, writer)

    async def _pass_on(self, command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        frame = command.encode()
        match self.mode:
            case "silent":
                return
            case "late":
                await asyncio.sleep(LATE_S)
            case "cut":
                frame = frame[: len(frame) // 2]
            case "closed":
                writer.transport.abort()
            case "closed in the middle":
                writer.write(frame[: len(frame) // 2])
                writer.close()
            case "doubled":
                frame = frame * 2
            case "corrupted":
                damaged = bytearray(frame)
                for _ in range(3):
                    damaged[self._random.randrange(4, len(damaged))] ^= 0xFF
                frame = bytes(damaged)
            case "corrupted body":
                command.body = bytes(byte ^ 0xFF for byte in command.body)
                frame = command.encode()
            case "another's":
                command.opaque += 1
                frame = command.encode()
            case "refusing":
                command.code, command.remark, command.body = 1, "x\nrefused", b""
                frame = command.encode()
            case "empty":
                empty = RemotingCommand.response()
                empty.opaque = command.opaque
                frame = empty.encode()
            case "flooding":
                frame += RemotingCommand.response(body=bytes(1000)).encode() * 1000
            case "asking":
                asked = b"".join(RemotingCommand.request(code).encode() for code in RequestCode)
                frame = asked * 3 + frame
            case "garbage":
                frame = self._random.randbytes(200)
        if not writer.is_closing():
            writer.write(frame)


@asynccontextmanager
async def proxies(cluster: ProcessCluster) -> AsyncIterator[tuple[HostileProxy, HostileProxy]]:
    """Yields a proxy in front of the NameServer and one in front of the broker."""
    async with AsyncExitStack() as stack:
        real = cluster.brokers[0].address
        broker = await stack.enter_async_context(HostileProxy(real, {}).running())
        rewrites = {real: broker.address}
        name_server = await stack.enter_async_context(HostileProxy(cluster.namesrv_addr, rewrites).running())
        yield name_server, broker


@contextmanager
def no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Asserts that neither Python nor asyncio's debug mode report warnings.

    Tests can add entries to the yielded list.
    """
    # Collects the leftovers of other tests first, so that their warnings do not count here.
    gc.collect()
    caplog.clear()
    asyncio.get_running_loop().set_debug(True)
    wrong: list[str] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield wrong
        gc.collect()
    wrong += [str(warning.message) for warning in told]
    texts = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    # Ignores reports about slow callbacks.
    wrong += [text for text in texts if "took" not in text]
    assert not wrong, wrong
