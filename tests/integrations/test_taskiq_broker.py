"""Tests of the taskiq broker with taskiq's own worker: tasks run, run later, and run again after a worker is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from wait_until import until, wait_until

from gantrymq.integrations.taskiq import RocketMQBroker
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.testing.embedded import EmbeddedCluster

#: Time limit for a worker to start and to finish its tasks, in seconds.
STARTED_S = 60.0
INVISIBLE_S = 1.5
APP = f"""
import asyncio, os, time
from pathlib import Path
from gantrymq.integrations.taskiq import RocketMQBroker

name_servers, topic = os.environ["NAMESRV_ADDR"], os.environ["TOPIC"]
broker = RocketMQBroker(name_servers, topic, topic, invisible_time={INVISIBLE_S})

def note(line):
    with open("notes", "a") as notes:
        notes.write(line + "\\n")

@broker.task("add")
async def add(a: int, b: int) -> None:
    note(f"{{a}} + {{b}} = {{a + b}} {{time.time()}}")

@broker.task("wait")
async def wait(name: str) -> None:
    note(f"begin {{os.getpid()}} {{name}}")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    note(f"end {{os.getpid()}} {{name}}")

@broker.task("fail")
def fail() -> None:
    note("failed")
    raise ValueError("no")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@contextmanager
def worker(cluster: EmbeddedCluster, directory: Path, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    (directory / "app.py").write_text(APP)
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "taskiq", "worker", "app:broker", "--workers", "1"],
            cwd=directory,
            env=os.environ | {"NAMESRV_ADDR": cluster.name_server, "TOPIC": topic},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def notes(directory: Path) -> list[str]:
    path = directory / "notes"
    return path.read_text().splitlines() if path.exists() else []


async def send(cluster: EmbeddedCluster, topic: str, name: str, *arguments: object, **labels: object) -> None:
    broker = RocketMQBroker(cluster.name_server, topic, topic)
    task = broker.register_task(lambda: None, name)
    await broker.startup()
    try:
        await task.kicker().with_labels(**labels).kiq(*arguments)
    finally:
        await broker.shutdown()


async def test_tasks_are_done_once_and_later(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with worker(cluster, tmp_path, "taskiq-plain") as process:
        await send(cluster, "taskiq-plain", "add", 1, 2)
        await send(cluster, "taskiq-plain", "fail")
        sent = time.time()
        await send(cluster, "taskiq-plain", "add", 3, 4, delay=1.5)
        wait_until(lambda: len(notes(tmp_path)) == 3, STARTED_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert sorted(" ".join(line.split()[:5]) for line in notes(tmp_path)) == ["1 + 2 = 3", "3 + 4 = 7", "failed"]
    assert max(float(line.split()[5]) for line in notes(tmp_path) if "+" in line) > sent + 1


async def test_the_task_of_a_killed_worker_is_done_by_another(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    await send(cluster, "taskiq-killed", "wait", "x")
    with worker(cluster, tmp_path, "taskiq-killed") as process:
        wait_until(lambda: notes(tmp_path), STARTED_S)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with worker(cluster, tmp_path, "taskiq-killed"):
        wait_until(lambda: len(notes(tmp_path)) == 2, STARTED_S)
        (tmp_path / "go").touch()
        wait_until(lambda: len(notes(tmp_path)) == 3, STARTED_S)
    (_, killed, _), (_, other, _), (word, ended, _) = map(str.split, notes(tmp_path))
    assert killed != other
    assert (word, ended) == ("end", other)


class Renewals:
    """Counts the answered renewals of a worker."""

    def __init__(self) -> None:
        self.count = 0

    def before_request(self, address: str, request: RemotingCommand) -> None: ...

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        self.count += request.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME


async def test_a_long_task_is_kept_and_a_worker_that_stops_gives_back(cluster: EmbeddedCluster) -> None:
    renewals = Renewals()
    broker = RocketMQBroker(cluster.name_server, "taskiq-long", "taskiq-long", invisible_time=3, hooks=[renewals])
    other = RocketMQBroker(cluster.name_server, "taskiq-long", "taskiq-long", invisible_time=3)
    broker.is_worker_process = other.is_worker_process = True
    await send(cluster, "taskiq-long", "add", 1, 2)
    await broker.startup()
    await other.startup()
    first = await anext(broker.listen())
    tasks = other.listen()
    second = asyncio.ensure_future(anext(tasks))
    # There are three renewals in an invisible duration.
    await until(lambda: renewals.count > 3)
    assert not second.done()
    await broker.shutdown()
    task = await second
    assert task.data == first.data
    await task.ack()
    assert len(other.in_flight) == 0
    await tasks.aclose()
    await other.shutdown()
