"""Tests of gantrymq.run, docs/service.md and examples/service with processes that receive a stop signal."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from wait_until import wait_until

import gantrymq
from gantrymq import LitePullConsumer, Message, Producer, SyncLitePullConsumer, SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

ROOT = Path(__file__).parent.parent
SERVICE = ROOT / "examples" / "service" / "orders_service.py"
ADDRESS = "127.0.0.1:9876"
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        for topic in ("orders", "invoices"):
            create = ["admin", "updateTopic", "-n", cluster.name_server, "-c", "DefaultCluster", "-t", topic]
            subprocess.run([sys.executable, "-m", "gantrymq.cli", *create], check=True, timeout=60)
        yield cluster


@contextmanager
def running(*arguments: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Starts a Python process and yields it when it has printed that it is ready."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (env or {}),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready"), (line, process.communicate()[1])
        process.first_line = line  # type: ignore[attr-defined]
        yield process
    finally:
        process.kill()
        process.communicate()


def script(body: str) -> list[str]:
    return ["-c", f"import asyncio, gantrymq\n{body}"]


def ended(process: subprocess.Popen[str], *signals: signal.Signals) -> tuple[int, str, str]:
    for number in signals:
        process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert "Traceback" not in err
    return process.returncode, out, err


WAITS = """
async def main():
    try:
        print("ready", flush=True)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.05)
        print("finished", flush=True)
gantrymq.run(main)
print("after")
"""


@pytest.mark.parametrize(("number", "code", "said"), [(signal.SIGTERM, 0, "after"), (signal.SIGINT, 130, "")])
def test_a_signal_lets_it_finish(number: signal.Signals, code: int, said: str) -> None:
    with running(*script(WAITS)) as process:
        assert ended(process, number) == (code, f"finished\n{said}\n" if said else "finished\n", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_one_with_an_event_ends_when_it_likes(number: signal.Signals, code: int) -> None:
    body = """
async def main(stop):
    print("ready", flush=True)
    await stop.wait()
    await asyncio.sleep(0.05)
    print("finished", flush=True)
    return 7
result = gantrymq.run(main)
print(result)
"""
    with running(*script(body)) as process:
        assert ended(process, number) == (code, "finished\n7\n" if code == 0 else "finished\n", "")


STUBBORN = """
async def main(stop):
    print("ready", flush=True)
    await stop.wait()
    print("told", flush=True)
    await asyncio.Event().wait()
gantrymq.run(main, stop_timeout={timeout})
"""


def test_what_takes_too_long_is_given_up() -> None:
    with running(*script(STUBBORN.format(timeout=0.1))) as process:
        assert ended(process, signal.SIGTERM) == (
            0,
            "told\n",
            "the stop took longer than 0.1 s: pending work is cancelled\n",
        )


def test_a_second_signal_gives_up() -> None:
    with running(*script(STUBBORN.format(timeout=60))) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "told\n"
        code, _, err = ended(process, signal.SIGTERM)
        assert code == 0
        assert "second stop signal (SIGTERM)" in err


def test_results_and_errors_come_out() -> None:
    async def answer() -> int:
        return 42

    async def fail() -> None:
        raise ValueError("no")

    async def cancelled() -> None:
        raise asyncio.CancelledError

    assert gantrymq.run(answer) == 42
    with pytest.raises(ValueError, match="no"):
        gantrymq.run(fail)
    with pytest.raises(asyncio.CancelledError):
        gantrymq.run(cancelled)


# -- the document ---------------------------------------------------------------------------------------------------


def examples() -> list[str]:
    text = (ROOT / "docs" / "service.md").read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def received(cluster: EmbeddedCluster, topic: str, group: str, wanted: set[bytes]) -> None:
    """Waits until the topic contains the bodies `wanted`."""
    pull = LitePullConsumer(cluster.name_server, group, start_from="earliest")
    with SyncLitePullConsumer(pull) as consumer:
        consumer.assign(consumer.queues(topic))
        found: set[bytes] = set()

        def all_there() -> bool:
            found.update(message.body for message in consumer.poll(timeout=0.1))
            return wanted <= found

        wait_until(all_there)


@pytest.mark.parametrize("number", range(2))
def test_the_services_of_the_document_run(number: int, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    code = tmp_path / "service.py"
    code.write_text(examples()[number].replace(ADDRESS, cluster.name_server))
    order = f"order {number}".encode()
    with running(str(code)) as process, SyncProducer(Producer(cluster.name_server, "shop")) as producer:
        producer.send(Message("orders", order))
        if number == 0:
            received(cluster, "invoices", "document", {b"invoice for " + order})
        else:
            assert process.stdout is not None
            wait_until(lambda: process.stdout.readline().strip() == order.decode())
        assert ended(process, signal.SIGTERM)[0] == 0


def test_the_log_of_the_document(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", examples()[2]], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.endswith(" INFO orders: one of your own\n")


# -- the example ----------------------------------------------------------------------------------------------------


def test_the_example(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(TIMEOUT_S)
        arguments = [str(SERVICE), "--name-server", cluster.name_server, "--port", "0"]
        with running(*arguments, env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as process:
            address = process.first_line.split()[-1]  # type: ignore[attr-defined]
            assert systemd.recv(100) == b"READY=1"

            def is_ready() -> bool:
                try:
                    with urllib.request.urlopen(f"http://{address}/ready", timeout=10) as answer:
                        return bool(answer.status == 200)
                except OSError:
                    return False

            wait_until(is_ready)
            with SyncProducer(Producer(cluster.name_server, "shop")) as producer:
                producer.send(Message("orders", b"two chairs"))
            received(cluster, "invoices", "example", {b"invoice for two chairs"})

            def figures() -> str:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                    return str(answer.read().decode())

            wait_until(lambda: "orders_invoiced 0" not in figures())
            code, _, err = ended(process, signal.SIGTERM)
            assert code == 0
            assert "INFO orders: stopping: " in err
            assert systemd.recv(100) == b"STOPPING=1"


def test_the_unit_starts_what_is_there() -> None:
    unit = (SERVICE.parent / "orders.service").read_text()
    assert f"/{SERVICE.name} --port" in unit
    assert "Type=notify" in unit
