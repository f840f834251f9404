"""Runs the examples of the tutorial and of other pages in order, with one cluster for each page."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq import Message, Producer, SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

ROOT = Path(__file__).parent.parent.parent
#: The address in the examples.
ADDRESS = "127.0.0.1:9876"
TIMEOUT_S = 60.0


def blocks(page: str, languages: str = "python") -> list[str]:
    """Returns the code blocks of a page in these languages, which are separated by `|`."""
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"^```(?:{languages})\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with EmbeddedCluster() as cluster:
        yield cluster.name_server


def run(code: str, address: str, directory: Path, *, until: str = "") -> str:
    """Runs a script and returns its output. With `until`, it is stopped after it has printed a line with this text."""
    script = directory / "script.py"
    script.write_text(code.replace(ADDRESS, address))
    with (directory / "errors").open("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, script], cwd=directory, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        out = ""
        try:
            if until:
                assert process.stdout is not None
                for line in process.stdout:
                    out += line
                    if until in line:
                        process.send_signal(signal.SIGTERM)
                        break
            out += process.communicate(timeout=TIMEOUT_S)[0]
        finally:
            process.kill()
            process.communicate()
        errors.seek(0)
        assert process.returncode == 0, out + errors.read()
    return out


def test_the_first_message(address: str, tmp_path: Path) -> None:
    send, receive, failing = blocks("tutorial/first-message.md")
    assert run(send, address, tmp_path).count("SEND_OK") == 20
    out = run(receive, address, tmp_path, until="order-19")
    assert "invoice for order-" in out
    # As the lesson says: the failing handler replaces the handler of the service.
    changed = re.sub(r"async def handle.*?\n\n\n", failing + "\n\n", receive, flags=re.DOTALL)
    assert changed != receive
    assert run(send, address, tmp_path).count("SEND_OK") == 20
    out = run(changed.replace('"billing"', '"billing-2"'), address, tmp_path, until="order-13 try 2")
    assert out.count("order-7 try 1") == 2


def test_the_first_test(tmp_path: Path) -> None:
    """Saves the blocks under the names that the lesson gives them, and runs the tests that its commands name."""
    page = "tutorial/first-test.md"
    names = re.findall(r"Save this as `([\w.]+)`", (ROOT / "docs" / page).read_text())
    contents = blocks(page, "python|ini")
    for name, content in zip(names, contents, strict=True):
        (tmp_path / name).write_text(content)
    commands = [line.split() for block in blocks(page, "sh") for line in block.splitlines()]
    files = [file for command, *arguments in commands if command == "pytest" for file in arguments]
    assert files == [name for name in names if name.endswith(".py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_retries(tmp_path: Path) -> None:
    (code,) = blocks("retries.md")
    # With one level of 1 s, every retry has this delay.
    with EmbeddedCluster(message_delay_level="1s") as cluster:
        with SyncProducer(Producer(cluster.name_server, "shop")) as producer:
            producer.send(Message("orders", b"42 apples"))
        assert "attempt 2 42 apples" in run(code, cluster.name_server, tmp_path, until="attempt")
        for line in "".join(blocks("retries.md", "sh")).splitlines():
            command = shlex.split(line, comments=True)
            assert command[0] == "gantry"
            done = subprocess.run(
                [sys.executable, "-m", "gantrymq.cli", *command[1:]],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                env=os.environ | {"NAMESRV_ADDR": cluster.name_server},
            )
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_first_spark_row(tmp_path: Path) -> None:
    with EmbeddedCluster() as cluster:
        with SyncProducer(Producer(cluster.name_server, "shop")) as producer:
            for number in range(20):
                producer.send(Message("orders", b"%d" % number))
        code = "\n".join(blocks("tutorial/first-spark-row.md")).replace(ADDRESS, cluster.name_server)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 orders" in done.stdout
    counts = re.findall(r"^\| *broker-a\| +\d+\| +(\d+)\|$", done.stdout, re.MULTILINE)
    assert sum(map(int, counts)) == 20, done.stdout


def test_migration(tmp_path: Path) -> None:
    from_cpp, from_grpc, from_kafka = blocks("migration.md")
    # A new cluster, so that the topic has only the orders of this page.
    with EmbeddedCluster() as cluster:
        address = cluster.name_server
        assert "b'42 apples'" in run(from_cpp, address, tmp_path)
        run(from_grpc, address, tmp_path)
        assert run(from_kafka, address, tmp_path) == "10 copied\n0 copied the second time\n"
