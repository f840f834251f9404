"""Many browsers that read nothing, send slowly or send nothing, beside a visitor of the console."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from console_target import ConsoleTarget, console_under_attack

Record = Callable[[str, object], None]

#: Duration of each attack in seconds: longer than any timeout of the console.
_LASTS_S = 15.0
_FORM = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n"


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def send(sock: socket.socket, data: bytes) -> bool:
    """Sends `data`. Returns true if the connection is open."""
    try:
        sock.send(data)
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


async def keep(target: ConsoleTarget, count: int, first: Callable[[int], bytes], then: bytes, every_s: float) -> int:
    """Keeps `count` connections open for _LASTS_S. Returns how many the console closed.

    Each connection sends `first`, then `then` every `every_s` seconds. New connections replace closed ones.
    """
    closed = 0
    loop = asyncio.get_running_loop()
    ends = loop.time() + _LASTS_S
    with ExitStack() as stack:
        attackers: list[socket.socket] = []
        while loop.time() < ends:
            is_open = [send(one, then) for one in attackers]
            closed += is_open.count(False)
            attackers = [one for one, still in zip(attackers, is_open, strict=True) if still]
            while len(attackers) < count:
                attackers.append(stack.enter_context(target.connect()))
                send(attackers[-1], first(len(attackers)))
                await asyncio.sleep(0)
            await asyncio.sleep(every_s)
    return closed


@pytest.mark.slow
@pytest.mark.parametrize("login", [False, True], ids=["open", "login"])
async def test_responses_that_nobody_reads(tmp_path: Path, login: bool, record_property: Record) -> None:
    async with console_under_attack(tmp_path, login=login, record=record_property) as target:
        request = target.head("/static/htmx.min.js")
        assert await keep(target, 520, lambda n: request * 30, request * 10, 0.5) > 0


@pytest.mark.slow
async def test_forms_that_come_slowly(tmp_path: Path, record_property: Record) -> None:
    async with console_under_attack(tmp_path, login=True, record=record_property) as target:
        head = target.head("/login", method="POST", logged_in=False, more=_FORM)
        assert await keep(target, 500, lambda n: head + b"name=", b"x", 0.5) > 0


@pytest.mark.slow
async def test_heads_that_come_slowly(tmp_path: Path, record_property: Record) -> None:
    async with console_under_attack(tmp_path, record=record_property) as target:
        assert await keep(target, 500, lambda n: b"GET / HTTP/1.1\r\nX-Slow: ", b"x", 0.5) > 0


@pytest.mark.slow
async def test_large_heads(tmp_path: Path, record_property: Record) -> None:
    """Heads of more than 64 KiB are rejected; smaller incomplete ones time out."""
    async with console_under_attack(tmp_path, record=record_property) as target:
        assert await keep(target, 500, lambda n: b"GET / HTTP/1.1\r\nX-Large: " + b"x" * 60_000, b"x" * 1000, 0.5) > 0


@pytest.mark.slow
async def test_live_tails_that_nobody_reads(tmp_path: Path, record_property: Record) -> None:
    async with console_under_attack(tmp_path, login=True, record=record_property) as target:
        await target.store("tailed", b"x")
        storing = asyncio.create_task(target.store("tailed", b"x" * 1000, 100_000))
        await keep(target, 90, lambda n: target.head("/tail/stream?topic=tailed"), b"", 0.5)
        storing.cancel()
        await asyncio.gather(storing, return_exceptions=True)


@pytest.mark.slow
async def test_connections_without_a_request(tmp_path: Path, record_property: Record) -> None:
    async with console_under_attack(tmp_path, record=record_property) as target:
        with ExitStack() as stack:
            silent = [stack.enter_context(target.connect()) for _ in range(60)]
            await keep(target, 500, lambda n: b"", b"", 0.5)
            # The console has closed them, because they exceeded its timeout for a request.
            assert [is_closed(one) for one in silent] == [True] * 60


@pytest.mark.slow
async def test_handshakes_that_never_end(tmp_path: Path, record_property: Record) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made = ["-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=console"]
    await asyncio.to_thread(subprocess.run, [*make, *made], check=True, capture_output=True)
    files = ["--cert", str(certificate), "--key", str(key)]
    async with console_under_attack(tmp_path, arguments=files, record=record_property) as target:
        # The start of a ClientHello of 512 bytes.
        assert await keep(target, 500, lambda n: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"", 0.5) >= 0
