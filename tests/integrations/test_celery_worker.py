"""Tests of Celery's own worker on the transport: results, ETAs, and workers that are killed or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery
from kombu import pools
from wait_until import wait_until

import gantrymq.integrations.celery  # noqa: F401
from gantrymq import SyncSimpleConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.testing.embedded import EmbeddedCluster

#: Time limit for a worker to start and to finish its tasks, in seconds.
STARTED_S = 60.0
APP = """
import os, time
from pathlib import Path
from celery import Celery
from kombu import pools
import gantrymq.integrations.celery

app = Celery("tests", broker="rocketmq://" + os.environ["NAMESRV_ADDR"])
app.conf.task_default_queue = os.environ["QUEUE"]
app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = True
app.conf.worker_prefetch_multiplier = 1
app.conf.worker_max_tasks_per_child = 20
app.conf.broker_transport_options = {"visibility_timeout": 1.5}

def note(line):
    with open("notes", "a") as notes:
        notes.write(line + "\\n")

@app.task(name="add")
def add(a, b):
    note(f"{a} + {b} = {a + b} {time.time()}")

@app.task(name="wait", bind=True)
def wait(self, name):
    note(f"begin {os.getpid()} {self.request.delivery_info['redelivered']}")
    while not Path("go").exists():
        time.sleep(0.01)
    note(f"end {os.getpid()} {name}")

@app.task(name="fail", bind=True)
def fail(self):
    note(f"try {self.request.retries} {time.time()}")
    if self.request.retries == 0:
        raise self.retry(countdown=1.5)

@app.task(name="chain")
def chain(n):
    note(f"chain {n}")
    if n:
        chain.delay(n - 1)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@contextmanager
def worker(
    cluster: EmbeddedCluster, directory: Path, queue: str, pool: str = "prefork"
) -> Iterator[subprocess.Popen[bytes]]:
    (directory / "app.py").write_text(APP)
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "app", "worker", "-c", "2", "-P", pool, "-l", "INFO"],
            cwd=directory,
            env=os.environ | {"NAMESRV_ADDR": cluster.name_server, "QUEUE": queue, "C_FORCE_ROOT": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_until(lambda: " ready." in (directory / "log").read_text() or process.poll() is not None, STARTED_S)
            assert process.poll() is None, (directory / "log").read_text()
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def notes(directory: Path) -> list[list[str]]:
    path = directory / "notes"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def sending(cluster: EmbeddedCluster, queue: str) -> Iterator[Celery]:
    with Celery("tests", broker=f"rocketmq://{cluster.name_server}") as app:
        app.conf.task_default_queue = queue
        yield app
        # Celery's `close` leaves the connections open, each with its thread.
        pools.reset()


def left(cluster: EmbeddedCluster, queue: str, await_ms: int) -> int:
    """Returns the number of messages that another consumer of the group receives."""
    consumer = SimpleConsumer(cluster.name_server, f"kombu-{queue}")
    consumer.subscribe(queue)
    with SyncSimpleConsumer(consumer) as others:
        return len(others.receive(timeout=await_ms / 1000))


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_tasks_are_done(cluster: EmbeddedCluster, tmp_path: Path, pool: str) -> None:
    queue = f"done.{pool}"
    with sending(cluster, queue) as app, worker(cluster, tmp_path, queue, pool) as process:
        sent = time.time()
        app.send_task("add", (1, 2))
        app.send_task("add", (3, 4), countdown=1.5)
        app.send_task("fail")
        app.send_task("chain", (2,))
        wait_until(lambda: len(notes(tmp_path)) == 7, STARTED_S)
        for number in range(100):
            app.send_task("add", (100, number))
        wait_until(lambda: len(notes(tmp_path)) == 107, STARTED_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    lines = notes(tmp_path)
    assert sorted(" ".join(line[:2]) for line in lines if line[0] in ("try", "chain")) == [
        "chain 0", "chain 1", "chain 2", "try 0", "try 1",
    ]  # fmt: skip
    assert len([line for line in lines if line[0] == "100"]) == 100
    (later,) = (float(line[5]) for line in lines if line[0] == "3")
    assert later > sent + 1.5
    tries = [float(line[2]) for line in lines if line[0] == "try"]
    assert tries[1] > tries[0] + 1.5
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert left(cluster, f"done%2E{pool}", 2000) == 0


def test_the_task_of_a_killed_worker_is_done_by_another(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with sending(cluster, "killed") as app:
        app.send_task("wait", ("x",))
    with worker(cluster, tmp_path, "killed") as process:
        wait_until(lambda: notes(tmp_path), STARTED_S)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with worker(cluster, tmp_path, "killed"):
        wait_until(lambda: len(notes(tmp_path)) == 2, STARTED_S)
        (tmp_path / "go").touch()
        wait_until(lambda: len(notes(tmp_path)) == 3, STARTED_S)
    (_, killed, first), (_, other, again), (word, ended, _) = notes(tmp_path)
    assert killed != other
    assert (first, again) == ("False", "True")
    assert (word, ended) == ("end", other)


def test_the_task_of_a_killed_child_is_done_by_the_other(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with sending(cluster, "child") as app, worker(cluster, tmp_path, "child"):
        app.send_task("wait", ("x",))
        wait_until(lambda: notes(tmp_path), STARTED_S)
        os.kill(int(notes(tmp_path)[0][1]), signal.SIGKILL)
        wait_until(lambda: len(notes(tmp_path)) == 2, STARTED_S)
        (tmp_path / "go").touch()
        wait_until(lambda: len(notes(tmp_path)) == 3, STARTED_S)


def test_a_long_task_is_kept_and_a_worker_that_is_stopped_ends_it(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with sending(cluster, "long") as app, worker(cluster, tmp_path, "long") as process:
        app.send_task("wait", ("x",))
        wait_until(lambda: notes(tmp_path), STARTED_S)
        # Longer than the visibility timeout.
        assert left(cluster, "long", 3000) == 0
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Warm shutdown" in (tmp_path / "log").read_text())
        (tmp_path / "go").touch()
        assert process.wait(60) == 0
    assert [line[0] for line in notes(tmp_path)] == ["begin", "end"]
    assert left(cluster, "long", 3000) == 0
