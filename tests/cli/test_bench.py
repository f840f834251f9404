"""Tests of the figures of `gantry bench`, and that its load matches the options."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gantrymq import LitePullConsumer, SyncLitePullConsumer
from gantrymq.cli.bench_figures import ResponseTimes, Stopwatch
from gantrymq.cli.main import run
from gantrymq.testing.embedded import EmbeddedCluster

TIMEOUT_S = 20.0

Bench = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name.partition('[')[0]}_{time.time_ns():x}"


@pytest.fixture
def bench(cluster: EmbeddedCluster, topic: str, capsys: pytest.CaptureFixture[str]) -> Bench:
    """Runs a command on the test's topic and returns its figures."""

    def call(command: str, *arguments: str) -> dict[str, Any]:
        assert run(["bench", command, "-n", cluster.name_server, "-t", topic, "--json", *arguments]) == 0
        figures: dict[str, Any] = json.loads(capsys.readouterr().out)
        return figures

    return call


def test_response_times() -> None:
    times = ResponseTimes()
    for milliseconds in range(1, 1001):
        times.add(milliseconds / 1000)
    assert times.count == 1000
    assert times.average_ms == pytest.approx(500.5)
    for percent, wanted in ((50, 500), (99, 990), (99.9, 999), (100, 1000)):
        assert times.percentile_ms(percent) == pytest.approx(wanted, rel=0.011)
    figures = times.figures()
    assert list(figures) == ["averageMs", "p50Ms", "p99Ms", "p999Ms", "maxMs"]
    assert figures["maxMs"] == 1000
    assert list(times.figures("sinceBorn"))[:2] == ["sinceBornAverageMs", "sinceBornP50Ms"]


def test_many_response_times_are_the_same_as_few() -> None:
    times = ResponseTimes()
    for number in range(10_000):
        times.add((number % 100 + 1) / 1000)
        # Reading intermediate figures does not change the result.
        if number in (10, 5000):
            assert times.count == number + 1
            assert times.max_s == pytest.approx((min(number, 99) + 1) / 1000)
    assert times.count == 10_000
    assert times.average_ms == pytest.approx(50.5)
    assert times.percentile_ms(50) == pytest.approx(50, rel=0.011)
    assert times.percentile_ms(99) == pytest.approx(99, rel=0.011)


def test_no_response_times() -> None:
    assert set(ResponseTimes().figures().values()) == {0.0}


def test_stopwatch() -> None:
    stopwatch = Stopwatch()
    # Threads of other tests can use the processors meanwhile, so the loop waits for both clocks.
    wall, cpu = time.perf_counter() + 0.05, time.process_time() + 0.05
    while time.perf_counter() < wall or time.process_time() < cpu:
        pass
    figures = stopwatch.figures(100)
    assert 0.05 <= figures["seconds"] < TIMEOUT_S
    assert figures["messagesPerSecond"] == pytest.approx(100 / figures["seconds"], rel=0.05)
    assert figures["cpuUsPerMessage"] >= 400
    assert stopwatch.figures(0)["cpuUsPerMessage"] == 0


@pytest.mark.parametrize(("batch", "requests"), [(1, 107), (10, 11)])
def test_produce_and_consume(bench: Bench, cluster: EmbeddedCluster, topic: str, batch: int, requests: int) -> None:
    figures = bench("produce", "-q", "107", "-w", "4", "-b", str(batch), "-s", "33", "-k", "-l", "3", "-p", "50")
    assert (figures["sent"], figures["requestsFailed"], figures["responsesFailed"]) == (107, 0, 0)
    assert 0 < figures["p50Ms"] <= figures["p99Ms"] <= figures["maxMs"]
    assert figures["cpuUsPerMessage"] > 0

    pull = LitePullConsumer(cluster.name_server, "check", start_from="earliest")
    messages = []
    with SyncLitePullConsumer(pull) as consumer:
        consumer.assign(consumer.queues(topic))
        while len(messages) < 107 and (more := consumer.poll(timeout=5)):
            messages += more
    assert [message.body for message in messages] == [b"a" * 33] * 107
    assert {message.tags for message in messages} <= {"tag0", "tag1", "tag2"}
    assert all(message.keys and len(message.properties["prop0"]) == 50 for message in messages)
    # All messages of a batch have the same born timestamp.
    assert len(Counter((m.queue_id, m.born_timestamp) for m in messages)) <= requests

    figures = bench("consume", "-q", "107", "--fromFirst", "-p", "-i", "0")
    assert (figures["consumed"], figures["failed"]) == (107, 0)
    assert 0 <= figures["sinceStoredAverageMs"] <= figures["sinceBornAverageMs"] <= figures["sinceBornMaxMs"]


def test_messages_failed_on_purpose_come_again(bench: Bench) -> None:
    bench("produce", "-q", "20", "-w", "1")
    figures = bench("consume", "-q", "20", "--fromFirst", "-p", "-r", "1")
    assert figures["failed"] == figures["consumed"] == 20


def test_a_table_for_people(cluster: EmbeddedCluster, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "produce", "-n", cluster.name_server, "-t", topic, "-q", "1500", "-i", "0.01"]) == 0
    out, err = capsys.readouterr()
    assert any(line.split() == ["sent", "1,500"] for line in out.splitlines()), out
    assert "/s  Average RT " in err


def test_failures_are_counted(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-n", cluster.name_server, "-t", "BenchmarkTest", "-q", "1", "-s", str(5 * 1024 * 1024), "--json"]
    assert run(["bench", "produce", *arguments]) == 1
    out, err = capsys.readouterr()
    assert (json.loads(out)["sent"], json.loads(out)["requestsFailed"]) == (0, 1)
    assert "at most" in err


def test_an_unknown_cluster_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "produce", "-n", "127.0.0.1:1", "-q", "1"]) == 1
    assert "gantry: can't connect to 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["produce", "-b", "2", "-e", "1"], ["consume", "-f", "REGEX"], ["produce", "-w", "0"]]
)
def test_impossible_options_are_2(arguments: list[str]) -> None:
    assert run(["bench", *arguments]) == 2


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_ctrl_c_ends_it_with_the_figures(cluster: EmbeddedCluster, bench: Bench, topic: str, command: str) -> None:
    bench("produce", "-q", "50", "-w", "1")
    arguments = ["--fromFirst"] if command == "consume" else ["-w", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", "bench", command, "-n", cluster.name_server, "-t", topic, "--json",
         "-i", "0.05", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        # Waits until the command reports a rate above zero.
        assert any("/s" in line and " 0/s" not in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert json.loads(out)["sent" if command == "produce" else "consumed"] > 0
