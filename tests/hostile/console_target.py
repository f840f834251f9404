"""A console in its own process, attacked while an innocent visitor measures the load times of its pages.

Tests use `console_under_attack`. As a script, this module is the visitor:

    console_target.py HOST:PORT PID [COOKIE]

Each round opens a connection and loads a static file and a page. After a round for each page, it prints `ready`.
When standard input closes, it prints the figures as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from hostile_support import MOST_LOG, MOST_MEMORY, SLOWEST_MS, Peer, faults, send_header
from prober import INTERVAL_S, ROUNDS_AFTER, SAMPLE_S, Figures, Schedule, _Server, starved_ms

from gantrymq.console.logins import hash_password
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.remoting.connection import Connection
from gantrymq.testing.processes import ProcessCluster

PASSWORD = "innocent1"
#: Source address of the attackers. The visitor has another one, because connections are limited for each address.
_ATTACKERS_ADDRESS = "127.0.0.2"
#: Memory limit of the console in bytes, so that it gets a MemoryError before it affects the machine's other users.
_MEMORY_LIMIT = 2 << 30
_ANSWER_TIMEOUT_S = 60.0
#: Longest time from SIGTERM to the end of the console, even with open connections; in seconds.
_END_WITHIN_S = 10.0
_PAGES = ("/static/console.css", "/api/v1/brokers", "/topics")


@dataclass
class ConsoleTarget:
    """A console under attack, with `cluster` behind it. At the end, `figures` has the innocent visitor's figures."""

    address: str
    pid: int
    cluster: ProcessCluster
    directory: Path
    cookie: str
    figures: Figures

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def connect(self) -> socket.socket:
        """Returns a non-blocking connection with a small receive buffer. Unread responses then stay in the console."""
        host, port = self.address.rsplit(":", 1)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(10)
        sock.bind((_ATTACKERS_ADDRESS, 0))
        sock.connect((host, int(port)))
        sock.setblocking(False)
        return sock

    async def store(self, topic: str, body: bytes, count: int = 1, sys_flag: int = 0) -> None:
        """Sends a message `count` times."""
        host, port = self.cluster.brokers[0].address.rsplit(":", 1)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection({}), host, int(port))
        try:
            for _ in range(count):
                answer = await Peer(connection).ask(
                    RequestCode.SEND_MESSAGE_V2, send_header(topic, {"KEYS": "k"}, sys_flag=sys_flag), body
                )
                assert answer.code == ResponseCode.SUCCESS, answer.remark
        finally:
            connection.abort()

    def visitor(self) -> httpx.AsyncClient:
        """Returns an HTTP client of another visitor, logged in if there is a login."""
        return httpx.AsyncClient(base_url=self.url, headers={"cookie": self.cookie}, timeout=60)

    def head(self, path: str, *, method: str = "GET", logged_in: bool = True, more: str = "") -> bytes:
        """Returns the head of a request."""
        cookie = f"Cookie: {self.cookie}\r\n" if logged_in and self.cookie else ""
        return f"{method} {path} HTTP/1.1\r\nHost: {self.address}\r\n{cookie}{more}\r\n".encode()


@asynccontextmanager
async def console_under_attack(
    directory: Path,
    *,
    login: bool = False,
    arguments: Sequence[str] = (),
    record: Callable[[str, object], None] = print,
) -> AsyncIterator[ConsoleTarget]:
    """Starts a cluster and a console. With `login`, the console has the user `innocent`.

    At the end, asserts that the innocent visitor got its pages in time. The console must be alive, use at most
    MOST_MEMORY MiB, have no errors in its log, and end in time. `record` is pytest's `record_property`.
    """
    if login:
        users = directory / "users"
        users.write_text(f"innocent:admin:{hash_password(PASSWORD)}\n")
        arguments = [*arguments, "--login", "file", "--users", str(users)]
    log_path = directory / "console.log"
    with ProcessCluster(directory / "cluster") as cluster, log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gantrymq.cli", "console", "-n", cluster.namesrv_addr, "--port", "0"),
            *("--dir", str(directory / "state"), *arguments),
            stdout=subprocess.PIPE,
            stderr=log,
        )
        prober: asyncio.subprocess.Process | None = None
        try:
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode()
            address = re.search(r"https?://(\S+)/", line)
            assert address is not None, log_path.read_text()
            cookie = await _log_in(address[1]) if login else ""
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (_MEMORY_LIMIT, _MEMORY_LIMIT))
            prober = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, line.rpartition(" ")[2].strip().rstrip("/"), str(process.pid), cookie),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert prober.stdout is not None
            assert await prober.stdout.readline() == b"ready\n"
            target = ConsoleTarget(address[1], process.pid, cluster, directory, cookie, Figures())
            yield target
            output, _ = await prober.communicate(b"")
            target.figures = figures = Figures(**json.loads(output.splitlines()[-1]))
            assert process.returncode is None, log_path.read_text()[-3000:]
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 60)
            took_s = time.monotonic() - began
        finally:
            for one in (prober, process):
                if one is not None and one.returncode is None:
                    one.kill()
                    await one.wait()
    record(
        "hostile",
        f"{figures.rounds} rounds, slowest answer {figures.slowest_ms:.0f} ms ({figures.slowest_of}, "
        f"{figures.starved_ms:.0f} ms of it starved), {figures.memory:.0f} MiB, ended in {took_s:.1f} s",
    )
    assert not figures.errors, figures.errors
    assert figures.stall_ms < SLOWEST_MS, figures
    assert figures.memory < MOST_MEMORY, figures
    assert took_s < _END_WITHIN_S
    log_text = log_path.read_text(errors="replace")
    assert len(log_text) < MOST_LOG
    found = faults(log_text)
    assert not found, found[:5]


async def _log_in(address: str) -> str:
    """Logs in as `innocent`. Returns the cookie."""
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        token = re.search(r'name="csrf" value="([^"]+)"', (await client.get("/login")).text)
        assert token is not None
        form = {"name": "innocent", "password": PASSWORD, "csrf": token[1]}
        answer = await client.post("/login", data=form)
        assert answer.status_code == 303, answer.text
        return f"gantry_console={client.cookies['gantry_console']}"


class _Watched(_Server):
    """The process of a console."""

    def __init__(self, pid: int) -> None:
        self._statm = Path(f"/proc/{pid}/statm")
        self._tasks = Path(f"/proc/{pid}/task")
        self._pid = str(pid)


class _Visitor:
    """Loads one page after the other."""

    def __init__(self, url: str, console: _Watched, cookie: str) -> None:
        self.figures = Figures()
        scheme, _, address = url.rpartition("://")
        self._is_tls = scheme == "https"
        host, port = address.rsplit(":", 1)
        self._place = host, int(port)
        self._console = console
        cookie = f"Cookie: {cookie}\r\n" if cookie else ""
        self._rest = f" HTTP/1.1\r\nHost: {address}\r\n{cookie}\r\n"
        self._sampled_at = 0.0

    def run_until_eof(self) -> None:
        # Fills the caches of all pages before the attack begins.
        for _ in _PAGES[1:]:
            self._round()
        self.figures = Figures()
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
            self._round()
        for _ in range(ROUNDS_AFTER):
            time.sleep(INTERVAL_S)
            self._round()

    def _round(self) -> None:
        page = _PAGES[1 + self.figures.rounds % 2]
        try:
            before, began = self._console.schedule(), time.monotonic()
            with self._wrapped(socket.create_connection(self._place, timeout=_ANSWER_TIMEOUT_S)) as sock:
                for path in (_PAGES[0], page):
                    self._load(sock, path, began, before)
                    before, began = self._console.schedule(), time.monotonic()
        except (OSError, ValueError) as e:
            if len(self.figures.errors) < 20:
                self.figures.errors.append(f"{page}: {type(e).__name__}: {e}")
        self.figures.rounds += 1

    def _wrapped(self, sock: socket.socket) -> socket.socket:
        if not self._is_tls:
            return sock
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context.wrap_socket(sock)

    def _load(self, sock: socket.socket, path: str, began: float, before: Schedule) -> None:
        sock.sendall(f"GET {path}{self._rest}".encode())
        answer = b""
        deadline = began + _ANSWER_TIMEOUT_S
        while not self._is_whole(answer):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer in {_ANSWER_TIMEOUT_S} s")
            self._sample()
            if not getattr(sock, "pending", int)() and not select.select([sock], [], [], SAMPLE_S)[0]:
                continue
            data = sock.recv(1 << 16)
            if not data:
                raise ConnectionError("the console closed the connection")
            answer += data
        took_ms = 1000 * (time.monotonic() - began)
        starved = starved_ms(took_ms, before, self._console.schedule())
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ValueError(answer[:200])
        figures = self.figures
        if took_ms - starved > figures.stall_ms:
            figures.slowest_ms, figures.starved_ms, figures.slowest_of = took_ms, starved, path

    def _is_whole(self, answer: bytes) -> bool:
        head, end, body = answer.partition(b"\r\n\r\n")
        if not end:
            return False
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        return length is not None and len(body) >= int(length[1])

    def _sample(self) -> None:
        now = time.monotonic()
        if now - self._sampled_at >= SAMPLE_S:
            self._sampled_at = now
            self.figures.memory = max(self.figures.memory, self._console.memory())


def main(url: str, pid: str, cookie: str = "") -> None:
    visitor = _Visitor(url, _Watched(int(pid)), cookie)
    try:
        visitor.run_until_eof()
    except OSError as e:
        visitor.figures.errors.append(f"{type(e).__name__}: {e}")
        print("ready", flush=True)
    print(json.dumps(asdict(visitor.figures)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
