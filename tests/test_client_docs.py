"""Runs the examples of docs/client.md in order, as in `python -m asyncio`."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.testing.embedded import EmbeddedCluster

DOCUMENT = Path(__file__).parent.parent / "docs" / "client.md"
#: The address in the examples.
ADDRESS = "127.0.0.1:9876"
TIMEOUT_S = 60.0


def examples() -> list[tuple[int, str]]:
    """Returns (line, code) of each Python block."""
    found: list[tuple[int, str]] = []
    lines = DOCUMENT.read_text().splitlines()
    begin = None
    for number, line in enumerate(lines, 1):
        if line == "```python":
            begin = number
        elif line == "```" and begin is not None:
            found.append((begin + 1, "\n".join(lines[begin : number - 1])))
            begin = None
    return found


async def create_lite_topics(name_server: str) -> None:
    """Creates the parent topic and the group that the command lines create."""
    async with AdminClient(name_server) as admin:
        await admin.ensure_topic("sessions", attributes={"message.type": "LITE"})
        group = SubscriptionGroupConfig("agents", attributes={"+lite.bind.topic": "sessions"})
        await admin.create_group(group, cluster="DefaultCluster")


async def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ssl.create_default_context", _context)
    session: dict[str, Any] = {"__name__": "session"}
    with EmbeddedCluster(recall_message_enable=True, enable_lmq=True) as cluster:
        await create_lite_topics(cluster.name_server)
        for line, code in examples():
            # Blank lines make the line numbers of a traceback those of the document.
            source = "\n" * (line - 1) + code.replace(ADDRESS, cluster.name_server)
            compiled = compile(source, str(DOCUMENT), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            async with asyncio.timeout(TIMEOUT_S):
                if inspect.iscoroutine(result := eval(compiled, session)):
                    await result
        session["shop_producer"]().close()
        await session["producer"].close()
    out = capsys.readouterr().out
    for text in (
        "SendStatus.SEND_OK",
        "COMMIT_MESSAGE",
        "b'HOW MANY?'",
        "orders fruit ['order-17'] b'42 apples'",
        "[b'created', b'paid', b'shipped']",
        "messages of the last hour",
        "session-17 b'hello'",
        "never: the message body is empty",
    ):
        assert text in out
    assert "\n0 messages" not in out


def _context(cafile: str) -> ssl.SSLContext:
    """Returns a context without the certificate, which does not exist. The example opens no connection."""
    assert cafile == "ca.pem"
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def test_the_command_lines_run(tmp_path: Path) -> None:
    (tmp_path / "keys-and-bodies.txt").write_text("".join(f"key{n}:body {n}\n" for n in range(10)))
    (tmp_path / "orders.jsonl").write_text('{"body": "one", "keys": "k", "delayMs": 500}\n')
    (tmp_path / "gantry").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gantrymq.cli "$@"\n')
    (tmp_path / "gantry").chmod(0o755)
    lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    assert lines
    with EmbeddedCluster(enable_lmq=True) as cluster:
        environment = os.environ | {
            "NAMESRV_ADDR": cluster.name_server,
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        }
        for line in lines:
            done = subprocess.run(
                line, shell=True, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=tmp_path, env=environment
            )
            assert done.returncode == 0, (line, done.stderr)
            if line.startswith("gantry consume") and "produce" not in line:
                assert len(done.stdout.splitlines()) >= 10, (line, done.stdout)
