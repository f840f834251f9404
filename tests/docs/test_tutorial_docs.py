"""Runs the examples of the tutorial and of the migration chapter in order, with one cluster for each page."""

from __future__ import annotations

import re
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


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)


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
    for number, code in enumerate(blocks("tutorial/first-test.md")):
        (tmp_path / f"test_first_{number}.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "."],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


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
