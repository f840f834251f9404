"""Tests the checker of bench/failover.py with made-up histories, and runs it briefly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gantrymq.replication.epochs import Epoch

BENCH = Path(__file__).parent.parent.parent / "bench"

A, B = (b"\x7f\x00\x02\x01", 1), (b"\x7f\x00\x02\x02", 2)
EPOCHS = [Epoch(1, 0), Epoch(3, 1000)]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import failover_check

    return failover_check


class Log:
    """Messages of two keys, ten in each epoch, with the acknowledgements that clients received."""

    def __init__(self, check: ModuleType) -> None:
        self._check = check
        self.stored = []
        self.acknowledged = []
        for place in range(20):
            key, number = place % 2, place // 2
            master, at = (A, place * 100) if place < 10 else (B, place * 100)
            self.stored.append(check.Stored(key, number, at, key, number))
            told = check.Acknowledged(key, number, key, number, *master, at, float(place), place + 0.5)
            self.acknowledged.append(told)

    def problems(self) -> str:
        by_queue = sorted(self.stored, key=lambda each: (each.queue, each.offset))
        return " ".join(self._check.judge(self.acknowledged, by_queue, EPOCHS))


@pytest.fixture
def log(check: ModuleType) -> Log:
    return Log(check)


def test_nothing_is_wrong(log: Log) -> None:
    assert log.problems() == ""
    # A message in flight when the load ended can be stored without an acknowledgement.
    del log.acknowledged[-1]
    assert log.problems() == ""


def test_a_message_that_is_not_there_is_lost(log: Log) -> None:
    del log.stored[-1]
    assert "lost" in log.problems()


def test_another_message_in_its_place_is_a_loss(log: Log) -> None:
    log.stored[6] = log.stored[6]._replace(physical_offset=601)
    assert "lost" in log.problems()


def test_a_number_too_early_is_out_of_order(log: Log) -> None:
    one, two = log.stored[4], log.stored[6]
    log.stored[4], log.stored[6] = one._replace(number=two.number), two._replace(number=one.number)
    assert "out of order" in log.problems()


def test_a_number_that_comes_again_is_none(check: ModuleType, log: Log) -> None:
    """The message was stored, its acknowledgement was lost, and the producer sent it again."""
    log.stored.append(check.Stored(1, 10, 2000, 1, 9))
    log.acknowledged[-1] = log.acknowledged[-1]._replace(offset=10, physical_offset=2000)
    assert log.problems() == ""
    assert check.again(log.stored) == 1


@pytest.mark.parametrize(("key", "number"), [(0, 11), (99, 0)], ids=["number", "key"])
def test_what_nobody_sent_is_invented(check: ModuleType, log: Log, key: int, number: int) -> None:
    log.stored.append(check.Stored(0, 10, 2000, key, number))
    assert "invented" in log.problems()


def test_two_brokers_of_one_epoch(log: Log) -> None:
    log.acknowledged[3] = log.acknowledged[3]._replace(host=B[0], port=B[1])
    assert "two masters: 2 brokers acknowledged in epoch 1" in log.problems()


def test_a_former_master_acknowledges_what_began_after_the_next_ones_answer(log: Log) -> None:
    # A request that began before the next master's response can be answered late.
    log.acknowledged[9] = log.acknowledged[9]._replace(began=10.4, ended=30.0)
    assert log.problems() == ""
    log.acknowledged[9] = log.acknowledged[9]._replace(began=10.6)
    assert "two masters" in log.problems()


def run(directory: Path, *options: str) -> int:
    """Runs the check, which must find nothing wrong, and returns the number of rounds."""
    figures = directory / "figures.json"
    command = [sys.executable, BENCH / "failover.py", "--rate=300", f"--json={figures}", "--keep", directory / "run"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost" in done.stdout
    return len(json.loads(figures.read_text())["rounds"])


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="the proxy needs all of 127.0.0.0/8")
def test_it_runs(tmp_path: Path) -> None:
    # One round for each fault: cut off, stopped, killed.
    assert run(tmp_path, "--rounds=3", "--seed=3") == 3


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="the proxy needs all of 127.0.0.0/8")
def test_a_hand_over_costs_no_send(tmp_path: Path) -> None:
    assert run(tmp_path, "--rounds=2", "--faults", "handed over") == 2
    assert (tmp_path / "run" / "sqlite" / "failover_load.log").read_text() == ""
