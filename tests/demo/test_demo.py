"""Tests the whole demo as processes: it is interrupted, killed and resumed, and the result is exact."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wait_until import wait_until

pytest.importorskip("pyspark")

#: Enough for three micro-batches.
FLIGHTS = 130_000
PROC = Path("/proc")


def start(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", "demo", "--dir", str(directory), "--flights", str(FLIGHTS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_batch(process: subprocess.Popen[str], directory: Path, batch: int, timeout_s: float = 120.0) -> None:
    def is_committed() -> bool:
        assert process.poll() is None, process.communicate()[0]
        return (directory / "checkpoint" / "commits" / str(batch)).exists()

    wait_until(is_committed, timeout_s)


def descendants(pid: int) -> set[int]:
    """Returns all descendants of `pid`, or an empty set on systems without /proc."""
    parents = {}
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def is_running(pid: int) -> bool:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.nightly
def test_an_interrupted_and_killed_run_ends_exactly(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    process = start(directory)
    wait_for_batch(process, directory, 0)
    pids = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "Traceback" not in out
    wait_until(lambda: not any(is_running(pid) for pid in pids))

    # Simulates a stop after flights were sent and before that was saved: they are sent a second time.
    progress = directory / "gantry-demo.json"
    noted = json.loads(progress.read_bytes())
    assert noted["sent"] > 20_000
    progress.write_text(json.dumps(noted | {"sent": noted["sent"] - 13_000}))

    process = start(directory)
    wait_for_batch(process, directory, 1)
    pids = descendants(process.pid)
    assert len(pids) >= 4
    process.kill()
    process.communicate()

    # Starts at once: the servers of the killed run may still be shutting down.
    done = start(directory)
    out, _ = done.communicate(timeout=200)
    assert done.returncode == 0, out
    assert f"going on in {directory}" in out
    assert "Parquet: all " in out
    assert "the topic: all " in out
    assert "every figure agrees" in out.splitlines()[-1]
    assert "messages/s" in out.splitlines()[-1]
    assert out.splitlines()[-1].endswith(", besides the message that ends the year")
    assert (directory / "delay-by-hour.png").read_bytes().startswith(b"\x89PNG")
    # A worker of the killed run may still retry its requests to the brokers.
    wait_until(lambda: not any(is_running(pid) for pid in pids), 30)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("x")
    process = start(tmp_path)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out.startswith("gantry: ")
    assert "other files" in out
