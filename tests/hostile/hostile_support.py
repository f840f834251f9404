"""A broker or a proxy in its own process, attacked while an innocent client measures the effects.

Tests use `under_attack`. It starts the broker and the prober, runs the attack, and at the end asserts the conditions
that must hold after every attack.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from prober import TOPIC, Figures
from small_disk import SmallDisk

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.credentials import Credentials
from gantrymq.config import from_properties, load_properties
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.sys_flag import PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.remoting.connection import Connection
from gantrymq.store.config import StoreConfig
from gantrymq.store.verify import verify
from gantrymq.testing.processes import ProcessCluster, ServerProcess

#: Longest response time of an innocent client, in milliseconds.
SLOWEST_MS = 250.0
#: Largest memory of the broker without mapped files, in MiB.
MOST_MEMORY = 300.0
#: Largest size of the log lines of one attack, in bytes.
MOST_LOG = 1 << 20
#: Memory limit of the broker in bytes, so that it gets a MemoryError before it affects the machine's other users.
_MEMORY_LIMIT = 2 << 30
#: If a server accepts no bytes for this time, it has stopped reading; in seconds.
_NOT_TAKEN_S = 1.0

_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: ")
#: Prefix of the lines of a traceback.
_CONTINUED = "  | "
#: Longest time from SIGTERM to the end of a proxy, in seconds.
PROXY_STOP_S = 10.0


@dataclass
class Target:
    """A broker under attack, optionally with a proxy. `figures` is complete when the attack is over."""

    process: ServerProcess
    name_server: ServerProcess
    #: The proxy, if the attack and the innocent client use one.
    proxy: ServerProcess | None
    directory: Path
    #: Path of its files for this process.
    store: Path
    _prober: ProberProcess
    figures: Figures = field(default_factory=Figures)
    is_probed_out: bool = False
    connections: list[Connection] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.process.address

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def servers(self) -> list[ServerProcess]:
        return [server for server in (self.process, self.name_server, self.proxy) if server is not None]

    @property
    def log(self) -> str:
        return self.process.log_path.read_text(errors="replace")

    def status(self, name: str) -> int:
        """Returns a number of /proc/PID/status, such as VmRSS in KiB."""
        found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])

    async def probe_no_more(self) -> None:
        """Stops the prober, for tests that stop the broker themselves."""
        self.figures = await self._prober.stop()
        self.is_probed_out = True

    async def start_again(self, work: Callable[[Peer], Awaitable[None]]) -> None:
        """Starts the broker again on the same store, runs `work`, and stops it."""
        properties = load_properties(self.config)
        self.process = again = ServerProcess("broker", "broker-a", self.directory, properties, ())
        try:
            again.wait_until_ready(time.monotonic() + 30)
            await work(await self.peer())
        finally:
            again.stop()

    @property
    def config(self) -> Path:
        """Returns the path of its configuration file."""
        return self.directory / "conf" / "broker-a.properties"

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    async def peer(self) -> Peer:
        """Returns a client with a new connection."""
        return await self.peer_of(self.process)

    async def peer_of(self, server: ServerProcess) -> Peer:
        host, port = server.address.rsplit(":", 1)
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection({}), host, int(port))
        self.connections.append(connection)
        return Peer(connection)

    def socket(self, server: ServerProcess | None = None) -> socket.socket:
        """Returns a blocking raw connection."""
        host, port = (server or self.process).address.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=60)


@dataclass
class Peer:
    """A client that can send arbitrary requests."""

    connection: Connection
    serialize_type: SerializeType = SerializeType.JSON

    async def ask(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: dict[str, str] | None = None,
        timeout_ms: int = 100_000,
    ) -> RemotingCommand:
        request = RemotingCommand.request(code, header, body, fields=fields)
        request.serialize_type = self.serialize_type
        return await self.connection.invoke(request, timeout_ms)

    async def send(self, topic: str, body: bytes, properties: dict[str, str] | None = None) -> RemotingCommand:
        return await self.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic, properties), body)

    async def send_many(self, topic: str, count: int, properties: dict[str, str] | None = None) -> None:
        for _ in range(count // 100):
            answers = await asyncio.gather(*(self.send(topic, b"x", properties) for _ in range(100)))
            assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}


def send_header(topic: str, properties: dict[str, str] | bytes | None = None, **changed: object) -> Header:
    encoded = properties if isinstance(properties, bytes) else encode_properties(properties or {})
    header = SendMessageRequestHeaderV2(
        producer_group="attackers",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=encoded.decode(),
        reconsume_times=0,
    )
    for name, value in changed.items():
        setattr(header, name, value)
    return header


def pull_header(topic: str, offset: int = 0, *, suspend_ms: int = 0, **changed: object) -> Header:
    header = PullMessageRequestHeader(
        consumer_group="attackers",
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=suspend_ms,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    for name, value in changed.items():
        setattr(header, name, value)
    return header


def frame(code: int, header: Header | None = None, body: bytes = b"", *, opaque: int = 1, **fields: str) -> bytes:
    """Returns a request as bytes, for a raw socket."""
    request = RemotingCommand.request(code, header, body, fields=fields)
    request.opaque = opaque
    return request.encode()


async def flood(attacker: socket.socket, data: bytes) -> None:
    """Sends all of `data` without reading. Returns when it is sent, or when the server accepts no more.

    A server may stop reading from a peer that does not read its responses. This is no failure.
    """
    attacker.setblocking(False)
    view, at, moved = memoryview(data), 0, time.monotonic()
    while at < len(view) and time.monotonic() - moved < _NOT_TAKEN_S:
        try:
            at += attacker.send(view[at : at + (1 << 20)])
            moved = time.monotonic()
        except BlockingIOError:
            await asyncio.sleep(0.005)


#: Marks an attack that still succeeds.
not_yet = partial(pytest.mark.xfail, strict=True, raises=AssertionError)

#: Type of the fixture in `conftest.py`: `under_attack` in the directory of the test. All arguments are by keyword.
UnderAttack = Callable[..., AbstractAsyncContextManager[Target]]


class ProberProcess:
    """Process of `prober.py` beside a broker, or of `proxy_prober.py` beside its proxy."""

    def __init__(self, broker: ServerProcess, other: ServerProcess, arguments: Sequence[str], script: str) -> None:
        servers = [text for server in (broker, other) for text in (server.address, str(server.pid))]
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), *servers, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    async def ready(self) -> None:
        assert self._process.stdout is not None
        assert await asyncio.to_thread(self._process.stdout.readline) == b"ready\n"

    async def stop(self) -> Figures:
        output, _ = await asyncio.to_thread(self._process.communicate)
        return Figures(**json.loads(output.splitlines()[-1]))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@asynccontextmanager
async def under_attack(
    directory: Path,
    *,
    properties: dict[str, str] | None = None,
    inevitable: Iterable[int] = (),
    log_may_have: Sequence[str] = (),
    most_memory: float = MOST_MEMORY,
    slowest_ms: float = SLOWEST_MS,
    disk: SmallDisk | None = None,
    proxy: bool = False,
    proxy_properties: dict[str, str] | None = None,
    prober_user: tuple[str, str] | None = None,
    report: Callable[[str], None] = print,
) -> AsyncIterator[Target]:
    """Starts a cluster in `directory`, or with its store on `disk`. The prober runs until the end of the block.

    At the end, asserts that the longest stall of the prober was below `slowest_ms`. The broker must be alive, use at
    most `most_memory` MiB and have no errors in its log. It must end on SIGTERM and leave a store without problems.

    Args:
        inevitable: Response codes that an innocent send may get during the attack.
        log_may_have: Patterns of errors that the attack may cause in the log.
        proxy: If true, the innocent client uses a proxy with `proxy_properties`. The proxy has the same limits, and
            must end within `PROXY_STOP_S`.
        prober_user: User name and password with which the innocent client signs its calls.
    """
    store = {
        "mappedFileSizeCommitLog": str(64 << 20),
        "maxHashSlotNum": "100000",
        "maxIndexNum": "400000",
    } | (properties or {})
    if disk is not None:
        root = disk.directory / "broker-a"
        store |= {"storePathRootDir": str(root), "storePathCommitLog": str(root / "commitlog")}
    with (
        nullcontext() if disk is None else disk.for_new_processes(),
        ProcessCluster(directory, broker_properties=store, proxy=proxy, proxy_properties=proxy_properties) as cluster,
    ):
        assert cluster.name_server is not None
        files = (directory if disk is None else disk.outside) / "broker-a"
        if cluster.proxy is None:
            codes = ",".join(str(int(code)) for code in inevitable)
            prober = ProberProcess(cluster.brokers[0], cluster.name_server, (codes,), "prober.py")
        else:
            credentials = Credentials(*prober_user) if prober_user is not None else None
            async with AdminClient(cluster.name_server.address, credentials=credentials) as admin:
                await admin.ensure_topic(TOPIC, queues=1)
            prober = ProberProcess(cluster.brokers[0], cluster.proxy, prober_user or (), "proxy_prober.py")
        target = Target(cluster.brokers[0], cluster.name_server, cluster.proxy, directory, files, prober)
        try:
            await prober.ready()
            for server in target.servers:
                resource.prlimit(server.pid, resource.RLIMIT_DATA, (_MEMORY_LIMIT, _MEMORY_LIMIT))
            yield target
            if not target.is_probed_out:
                target.figures = await prober.stop()
                for server in target.servers:
                    log = server.log_path.read_text(errors="replace")
                    assert server.is_running, f"{server.name} ended:\n{log[-3000:]}"
                if target.proxy is not None:
                    await asyncio.to_thread(stop_in_time, target.proxy)
        except BaseException:
            prober.kill()
            raise
        finally:
            for connection in target.connections:
                connection.abort()
    figures = target.figures
    report(
        f"{figures.rounds} rounds, slowest answer {figures.slowest_ms:.0f} ms ({figures.slowest_of}, "
        f"{figures.starved_ms:.0f} ms of it starved), {figures.memory:.0f} MiB, log {len(target.log)} bytes"
    )
    _check(target, log_may_have, most_memory, slowest_ms)


def stop_in_time(proxy: ServerProcess) -> None:
    """Stops a proxy while its peers stay connected, and asserts that it ends in time."""
    began = time.monotonic()
    proxy.stop()
    took_s = time.monotonic() - began
    assert took_s < PROXY_STOP_S, f"the proxy took {took_s:.1f} s to end"


def _check(target: Target, log_may_have: Sequence[str], most_memory: float, slowest_ms: float) -> None:
    figures = target.figures
    assert not figures.errors, figures.errors
    assert figures.stall_ms < slowest_ms, figures
    assert figures.memory < most_memory, figures
    for server in target.servers:
        assert server.log_path.stat().st_size < MOST_LOG, f"{server.name} wrote a log without end"
        assert server.exit_code == 0, server.ending()
        found = faults(server.log_path.read_text(errors="replace"), log_may_have)
        assert not found, f"{server.name}: {found[:5]}"
    settings = load_properties(target.config)
    settings |= {"storePathRootDir": str(target.store), "storePathCommitLog": str(target.store / "commitlog")}
    report = verify(from_properties(StoreConfig, settings, source="the broker's configuration"))
    assert not report.problem_count, report.problems[:5]
    assert not (target.store / "abort").exists()


def faults(log: str, log_may_have: Sequence[str] = ()) -> list[str]:
    """Returns unexpected log entries: our own errors with their tracebacks, and lines without a known format."""
    entries: list[str] = []
    for line in log.split("\n")[:-1]:
        if line.startswith(_CONTINUED) and entries:
            entries[-1] += "\n" + line
        else:
            entries.append(line)
    return [
        entry[:3000]
        for entry in entries
        if _is_fault(entry) and not any(re.search(pattern, entry) for pattern in log_may_have)
    ]


def _is_fault(entry: str) -> bool:
    line = _LOG_LINE.match(entry)
    return line is None or line[1] in ("ERROR", "CRITICAL") or "was never " in entry
