"""Tests of `gantry request` and `gantry reply` with each other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from wait_until import wait_until

from gantrymq.cli.main import run
from gantrymq.cli.reply import _ask
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.record import Record, encode_host
from gantrymq.testing.embedded import EmbeddedCluster

GANTRY = [sys.executable, "-m", "gantrymq.cli"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest, cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> str:
    name = f"{request.node.name.partition('[')[0]}_{time.time_ns():x}"
    assert (
        run(
            [
                "admin",
                "updateTopic",
                "-n",
                cluster.name_server,
                "-c",
                "DefaultCluster",
                "-t",
                name,
                "-r",
                "1",
                "-w",
                "1",
            ]
        )
        == 0
    )
    wait_until(lambda: run(["admin", "topicRoute", "-n", cluster.name_server, "-t", name]) == 0)
    capsys.readouterr()
    return name


@contextmanager
def replying(cluster: EmbeddedCluster, topic: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Runs `gantry reply` and yields it when the group's consumer is registered with the broker."""
    command = [*GANTRY, "reply", topic, "-n", cluster.name_server, "-g", topic, *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        look = ["admin", "consumerConnection", "-n", cluster.name_server, "-g", topic]
        wait_until(lambda: process.poll() is None and run(look) == 0)
        yield process
    finally:
        process.kill()
        process.communicate()


def ask(cluster: EmbeddedCluster, topic: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [*GANTRY, "request", topic, "-n", cluster.name_server, "--timeout", "10000", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("options", "answer"),
    [([], "a question\n"), (["the answer"], "the answer\n"), (["--command", "tr a-z A-Z"], "A QUESTION\n")],
)
def test_a_reply(cluster: EmbeddedCluster, topic: str, options: list[str], answer: str) -> None:
    with replying(cluster, topic, *options) as process:
        done = ask(cluster, topic, "a question")
        assert (done.returncode, done.stdout, done.stderr) == (0, answer, "")
        asked = ask(cluster, topic, "--json", stdin="a question")
        assert json.loads(asked.stdout)["body"] + "\n" == answer
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[1] == "2 requests answered\n"
        assert process.returncode == 0


def test_so_many_and_no_more(cluster: EmbeddedCluster, topic: str) -> None:
    with replying(cluster, topic, "yes", "-c", "1") as process:
        assert ask(cluster, topic, "?").stdout == "yes\n"
        assert process.wait(60) == 0


def test_a_program_that_fails_and_what_is_no_request(cluster: EmbeddedCluster, topic: str) -> None:
    with replying(cluster, topic, "--command", "false") as process:
        assert process.stderr is not None
        done = ask(cluster, topic, "?", "--timeout", "2000")
        assert done.returncode == 1
        assert done.stderr.startswith("gantry: no reply to the request")
        assert "false ended with exit code 1" in process.stderr.readline()
        sent = subprocess.run(
            [*GANTRY, "produce", topic, "-n", cluster.name_server], input=b"x", check=False, timeout=60
        )
        assert sent.returncode == 0
        assert "is no request" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


async def test_a_program_that_does_not_read() -> None:
    host = encode_host("127.0.0.1", 1)
    record = Record(
        size=0, queue_id=0, flag=0, queue_offset=0, physical_offset=0, sys_flag=0, born_timestamp=0, born_host=host,
        store_timestamp=0, store_host=host, reconsume_times=0, prepared_transaction_offset=0, body_crc=0,
        body=b"x" * 1_000_000, topic=b"t", properties=b"",
    )  # fmt: skip
    message = MessageExt(record, "broker-a")
    for _ in range(10):
        with pytest.raises(OSError, match="false ended with exit code 1"):
            await _ask(["false"], message)
    assert await _ask(["wc", "-c"], message) == b"1000000\n"
    with pytest.raises(OSError, match="no-such-program"):
        await _ask(["no-such-program"], message)


def test_nobody_there_is_one_line() -> None:
    done = subprocess.run(
        [*GANTRY, "request", "t", "?", "-n", "127.0.0.1:1"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("gantry: can't connect to 127.0.0.1:1: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [["text", "--command", "cat"], ["--command", "'"], ["--command", " "], ["--command", "no-such-program x"]],
)
def test_impossible_options_are_2(options: list[str]) -> None:
    assert run(["reply", "t", *options]) == 2
