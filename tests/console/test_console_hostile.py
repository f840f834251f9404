"""A console under attack by strangers: floods of requests, silent connections, endless bodies.

Logged-in users get their pages meanwhile, and strangers get no data.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from constants import change_constant
from wait_until import until

from gantrymq.console.connections import MAX_PER_ADDRESS
from gantrymq.console.logins import hash_password
from gantrymq.console.server import ConsoleThread
from gantrymq.console.settings import Settings
from gantrymq.console.tail import MAX_TAILS
from gantrymq.testing.embedded import EmbeddedCluster

#: Number of requests of strangers, and of their connections.
REQUESTS = 10_000
AT_ONCE = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


def connect(address: str) -> socket.socket:
    url = httpx.URL(address)
    assert url.port is not None
    return socket.create_connection((url.host, url.port), 10)


def test_connections_that_say_nothing(cluster: EmbeddedCluster) -> None:
    """The oldest silent connections are closed for new ones. A connection with a pending response stays open."""
    with ConsoleThread(Settings(cluster.name_server, port=0)) as console, ExitStack() as stack:
        tail = stack.enter_context(httpx.stream("GET", f"{console.address}tail/stream?topic=TBW102", timeout=30))
        assert tail.status_code == 200
        silent = [stack.enter_context(connect(console.address)) for _ in range(MAX_PER_ADDRESS + 20)]
        assert httpx.get(f"{console.address}overview", timeout=30).status_code == 200
        silent[0].settimeout(10)
        assert silent[0].recv(1) == b""
        assert not tail.is_closed


async def test_live_tails_that_open_at_once(cluster: EmbeddedCluster) -> None:
    """At most MAX_TAILS are open. When they end, others can open."""
    with ConsoleThread(Settings(cluster.name_server, port=0)) as console:

        async def status(browser: httpx.AsyncClient) -> int:
            request = browser.build_request("GET", "/tail/stream?topic=TBW102")
            return (await browser.send(request, stream=True)).status_code

        async with httpx.AsyncClient(base_url=console.address, timeout=30) as browser:
            found = Counter(await asyncio.gather(*(status(browser) for _ in range(3 * MAX_TAILS))))
            assert found == {200: MAX_TAILS, 503: 2 * MAX_TAILS}
        async with httpx.AsyncClient(base_url=console.address, timeout=30) as browser:
            await until(lambda: is_free(browser))


async def is_free(browser: httpx.AsyncClient) -> bool:
    """Returns true if another live tail can open."""
    async with browser.stream("GET", "/tail/stream?topic=TBW102") as answer:
        return answer.status_code == 200


def test_a_body_that_never_ends(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "guard.BODY_WITHIN_S", 0.2)
    with ConsoleThread(Settings(cluster.name_server, port=0)) as console, connect(console.address) as sender:
        sender.sendall(
            b"POST /do/create-topic HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\nname=x"
        )
        sender.settimeout(20)
        assert sender.recv(100).startswith(b"HTTP/1.1 4")


def test_what_isnt_http_is_in_no_log(cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), ConsoleThread(Settings(cluster.name_server, port=0)) as console:
        for nonsense in (
            b"nonsense\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        ):
            with connect(console.address) as sender:
                sender.sendall(nonsense)
                assert sender.recv(100)
        assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


@asynccontextmanager
async def guarded_console(cluster: EmbeddedCluster, directory: Path) -> AsyncIterator[tuple[str, int]]:
    """Starts a console with a login in its own process. Yields its address and process id."""
    users = directory / "users"
    users.write_text(f"vic:viewer:{hash_password('vicpass')}\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gantrymq.cli", "console", "-n", cluster.name_server, "--port", "0"),
        *("--login", "file", "--users", str(users)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().rpartition(" ")[2].strip().rstrip("/"), process.pid
    finally:
        process.terminate()
        await process.wait()


def memory_mib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_10_000_requests_without_a_login(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    paths = ("/overview", "/api/v1/topics", "/users?search=<script>", "/nowhere", "/message/body", "/do/delete-topic")
    async with (
        guarded_console(cluster, tmp_path) as (address, pid),
        httpx.AsyncClient(base_url=address, timeout=60) as insider,
    ):
        token = re.search(r'name="csrf" value="([^"]+)"', (await insider.get("/login")).text)
        assert token is not None
        form = {"name": "vic", "password": "vicpass", "csrf": token[1]}
        assert (await insider.post("/login", data=form)).status_code == 303
        # The memory for a login and for templates is allocated by now.
        assert (await insider.get("/topics")).status_code == 200
        before = memory_mib(pid)
        answers: Counter[int] = Counter()

        async def attack(first: int) -> None:
            url = httpx.URL(address)
            reader, writer = await asyncio.open_connection(url.host, url.port)
            for number in range(first, REQUESTS, AT_ONCE):
                path = paths[number % len(paths)]
                method = "POST" if path.startswith("/do/") else "GET"
                writer.write(
                    f"{method} {path} HTTP/1.1\r\nHost: {url.host}\r\nX-CSRF-Token: x\r\nContent-Length: 0\r\n"
                    f"Cookie: gantry_console=made-up-{number}\r\n\r\n".encode()
                )
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"content-length: (\d+)", head)
                assert length is not None
                body = (await reader.readexactly(int(length[1]))).decode()
                answers[int(head.split(" ", 2)[1])] += 1
                assert cluster.name_server not in head + body
                assert "<script>" not in body
            writer.close()

        attacks = asyncio.gather(*(attack(number) for number in range(AT_ONCE)))
        served = 0
        try:
            while not attacks.done():
                assert (await insider.get("/api/v1/topics")).status_code == 200
                served += 1
        finally:
            await attacks
        assert sum(answers.values()) == REQUESTS
        assert set(answers) <= {303, 401}
        assert served >= 20
        assert memory_mib(pid) - before < 40
