"""Servers of scale.py: started, measured from outside, and restarted with their stores."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "interop"))

from scale_load import GROUP
from servers import Server, call, gantry_broker, gantry_namesrv

from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import encode_json

_PROBER = Path(__file__).parent.parent / "tests" / "hostile" / "prober.py"
_TIMEOUT_S = 120.0
#: Longest time of a stop, in seconds. 50,000 queues need four fsync calls each.
_STOP_TIMEOUT_S = 300.0
#: Number of topics or groups per request, which is limited to 4 MiB.
_AT_ONCE = 5_000
#: A server is idle if it uses less than this share of a processor during a window.
_SETTLED_SHARE = 0.05
SETTLE_WINDOW_S = 0.2
#: Window for consume queues, which the broker flushes each second. In seconds.
FLUSHED_WINDOW_S = 1.5


class StartedAgain(NamedTuple):
    """Times of a restart in seconds: stop; start to open port; CPU time until the registration."""

    stop: float
    ready: float
    cpu: float


@dataclass
class Node:
    """A NameServer and a broker. `close` stops both."""

    directory: Path
    namesrv: Server
    broker: Server

    @classmethod
    def start(cls, directory: Path) -> Node:
        namesrv = gantry_namesrv(directory / "namesrv")
        try:
            return cls(directory, namesrv, _start_broker(directory, namesrv))
        except BaseException:
            namesrv.kill()
            raise

    def start_again(self, *, kill: bool = False) -> StartedAgain:
        """Stops the broker, in order or by SIGKILL, and restarts it with its store.

        Raises subprocess.TimeoutExpired if the stop takes too long.
        """
        process = self.broker.process
        began = time.perf_counter()
        if kill:
            process.kill()
        else:
            process.terminate()
        # Server.stop() would kill it after 30 s, but 50,000 queues take longer.
        process.wait(_STOP_TIMEOUT_S)
        stop_s = time.perf_counter() - began
        self.broker = _start_broker(self.directory, self.namesrv)
        return StartedAgain(stop_s, self.broker.start_s, cpu_s(self.broker))

    def close(self) -> None:
        self.broker.kill()
        self.namesrv.kill()

    def make_topics(self, names: Sequence[str], queues: int) -> None:
        """Creates the topics, and that of the prober. Raises RuntimeError if no route appears."""
        topics = [TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues) for name in [*names, "innocent"]]
        for at in range(0, len(topics), _AT_ONCE):
            self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": topics[at : at + _AT_ONCE]})
        deadline = time.monotonic() + _TIMEOUT_S
        while call(self.namesrv.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": names[-1]}).code:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no route of {names[-1]} after {_TIMEOUT_S} s")
            time.sleep(0.05)

    def make_groups(self, names: Sequence[str]) -> None:
        """Creates the groups, and those of the prober and of the load, so that clients create none.

        Raises RuntimeError.
        """
        groups = [SubscriptionGroupConfig(name) for name in [*names, "innocent-readers", GROUP]]
        for at in range(0, len(groups), _AT_ONCE):
            body = {"groupConfigList": groups[at : at + _AT_ONCE]}
            self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)

    def ask(self, code: RequestCode, body: object = None, **fields: str) -> bytes:
        """Returns the body of the broker's response. Raises RuntimeError if it is an error."""
        data = b"" if body is None else encode_json(body)
        answer = call(self.broker.address, code, fields or None, _TIMEOUT_S, data)
        if answer.code:
            raise RuntimeError(f"request {code} was answered {answer.code}: {answer.remark}")
        return answer.body

    async def stall_ms(self, work: Callable[[], Awaitable[None]]) -> float:
        """Returns the longest stall of other clients while `work` ran, in milliseconds.

        The time in which the machine was busy does not count. Another process sends, pulls and queries a route every
        20 ms. Raises RuntimeError if one of these fails.
        """
        servers = (self.broker, self.namesrv)
        addresses = [word for server in servers for word in (server.address, str(server.process.pid))]
        prober = await asyncio.create_subprocess_exec(
            sys.executable, str(_PROBER), *addresses, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert prober.stdout is not None
            await prober.stdout.readline()
            await work()
            async with asyncio.timeout(_TIMEOUT_S):
                figures = json.loads((await prober.communicate(b""))[0])
        finally:
            if prober.returncode is None:
                prober.kill()
                await prober.wait()
        if figures["errors"]:
            raise RuntimeError(f"the prober saw {figures['errors']}")
        return float(figures["slowest_ms"] - figures["starved_ms"])


def _start_broker(directory: Path, namesrv: Server) -> Server:
    return gantry_broker(directory / "broker", namesrv.address, mappedFileSizeCommitLog=1 << 30)


@asynccontextmanager
async def nodes(directory: Path, count: int) -> AsyncIterator[list[Node]]:
    """Starts this many nodes, each in its own directory."""
    with ExitStack() as stack:
        started = []
        for number in range(count):
            started.append(Node.start(directory / str(number)))
            stack.callback(started[-1].close)
        yield started


# -- figures ----------------------------------------------------------------------------------------------------


def cpu_s(server: Server) -> float:
    """Returns user and system time of the process with all its threads, with a resolution of nanoseconds.

    Uses clock_getcpuclockid(3).
    """
    return time.clock_gettime(~server.process.pid << 3 | 2)


async def settled_cpu_s(server: Server, window_s: float = SETTLE_WINDOW_S) -> float:
    """Returns the CPU time after the server has finished deferred work. Raises RuntimeError after a timeout."""
    deadline = time.monotonic() + _TIMEOUT_S
    before = cpu_s(server)
    while time.monotonic() < deadline:
        await asyncio.sleep(window_s)
        now = cpu_s(server)
        if now - before < _SETTLED_SHARE * window_s:
            return before
        before = now
    raise RuntimeError(f"{server.name} is still busy {_TIMEOUT_S} s after its load")


async def cpu_us(server: Server, count: int, work: Awaitable[object], window_s: float = SETTLE_WINDOW_S) -> float:
    """Returns the server's CPU time for `work` until it was idle for `window_s`.

    The time is in microseconds and divided by `count`.
    """
    await settled_cpu_s(server, window_s)
    before = cpu_s(server)
    await work
    return (await settled_cpu_s(server, window_s) - before) / count * 1e6


async def idle_cpu(servers: Sequence[Server], seconds: float) -> list[float]:
    """Returns the CPU use of each server in the next seconds, in percent of a processor."""
    before = [cpu_s(server) for server in servers]
    await asyncio.sleep(seconds)
    return [(cpu_s(server) - then) / seconds * 100 for server, then in zip(servers, before, strict=True)]


def memory(server: Server) -> dict[str, float]:
    """Returns MiB: the server's own memory, and the memory with mapped file pages, which the kernel can reclaim."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return {name: int(status[field].split()[0]) / 1024 for name, field in (("own", "RssAnon"), ("resident", "VmRSS"))}


def descriptors(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def disk_mib(directory: Path) -> float:
    return sum(path.lstat().st_blocks for path in directory.rglob("*")) * 512 / 2**20


def busy_s() -> float:
    """Returns the CPU seconds that the whole machine has used."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _, _, irq, soft_irq, steal = fields
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")
