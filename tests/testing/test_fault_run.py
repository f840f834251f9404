"""Tests that the check of bench/faults.py finds violations, and runs it briefly."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"
COUNT = 5


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import faults

    return faults


class Histories:
    """COUNT acknowledged messages of each key, and the messages that two groups received."""

    def __init__(self, faults: ModuleType) -> None:
        import soak

        self._faults = faults
        self.records = [(key, number) for key in range(soak.KEYS) for number in range(COUNT)]
        self.sent = soak.Sent()
        self.sent.take(self.records)
        self.received = {kind: soak.Received() for kind in ("orderly", "pop")}

    def problems(self, orderly: list[tuple[int, int]], pop: list[tuple[int, int]]) -> list[str]:
        self.received["orderly"].take(orderly)
        self.received["pop"].take(pop)
        problems: list[str] = self._faults.judge_groups(self.sent, self.received)
        return problems


@pytest.fixture
def histories(faults: ModuleType) -> Histories:
    return Histories(faults)


def test_repeated_messages_are_figures(histories: Histories) -> None:
    """Delivery is at least once. The last message of a producer can be stored without an acknowledgement."""
    assert histories.problems([*histories.records, (0, 1)], [*reversed(histories.records), (0, COUNT)]) == []
    assert histories.received["orderly"].again == 1


def test_a_lost_message_is_found(histories: Histories) -> None:
    [problem] = histories.problems(histories.records, [each for each in histories.records if each != (3, 2)])
    assert problem == "lost: pop never received 1 messages"


def test_an_order_that_changed_is_found(histories: Histories) -> None:
    """Only the orderly group promises an order."""
    swapped = [*histories.records]
    swapped[1], swapped[2] = swapped[2], swapped[1]
    [problem] = histories.problems(swapped, swapped)
    assert problem == "out of order: orderly skipped messages 1 times, first key 0: 2 after 0"


def test_an_invented_message_is_found(histories: Histories) -> None:
    [problem] = histories.problems(histories.records, [*histories.records, (7, COUNT), (7, COUNT + 1)])
    assert problem == f"invented: pop received messages that nobody sent, key 7: {COUNT + 1}"


def test_a_fault_that_the_machine_cannot_have_is_skipped(
    faults: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert faults.available(["killed", "clock ahead", "member killed"], "sqlite", None) == ["killed"]
    assert capsys.readouterr().err.splitlines() == [
        "without etcd, skipped: member killed",
        "without libfaketime, skipped: clock ahead",
    ]


def test_a_run_without_faults_does_not_start(
    faults: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--controller=sqlite", f"--dir={tmp_path / 'run'}", "--faults", "member killed"]
    assert faults.main(options) == 2
    assert capsys.readouterr().err.endswith("this machine can have none of these faults\n")
    assert not (tmp_path / "run").exists()


def test_a_fault_without_an_effect_is_named(faults: ModuleType) -> None:
    from failover_effects import NO_EFFECT

    def round_of(fault: str, effect: str, recovery: str = "", silent_s: float = 1.26) -> object:
        unserved = {"push": 1.0, "pop": 2.04, "lite": 3.0}
        return faults.Round(fault, "a", silent_s, 0.5, unserved, 1, effect=effect, recovery=recovery)

    rounds = [
        round_of("killed", ""),
        round_of("clock ahead", NO_EFFECT),
        round_of("no file may grow", NO_EFFECT, silent_s=4),
        round_of("no file may grow", "EFBIG: save of offsets", "all jobs write again"),
    ]
    assert faults.without_effect(rounds) == ["clock ahead"]
    tables = faults.result_tables(rounds, {"sent one by one": 100, "sent in batches": 20}, ["lost: 1"])
    figures = [["faults", 4], ["messages sent", 120], ["violations", 1], ["faults without an effect", "clock ahead"]]
    assert tables["checks"]["rows"] == figures
    assert tables["effects"]["rows"][-1] == ["no file may grow", "EFBIG: save of offsets", "all jobs write again"]
    assert tables["time without service"]["rows"][-1] == ["no file may grow", 2, 4, 1.0, 2.0, 3.0]
    assert all(len(row) == len(each["columns"]) for each in tables.values() for row in each["rows"])


def test_a_job_that_could_not_write_is_an_effect(faults: ModuleType) -> None:
    from failover_effects import refused_in, restored_in

    too_large = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    fields = {
        "job_save-of-offsets_failures": "2",
        "job_save-of-offsets_failingSinceMs": "500",
        "job_save-of-offsets_lastError": f"can't write a: {too_large}",
        "job_save-of-offsets_lastFailureMs": "1000",
    }
    assert refused_in(fields, 1000) == "EFBIG: save of offsets"
    assert refused_in(fields, 1001) == ""
    assert refused_in(fields | {"job_save-of-offsets_lastError": "other"}, 0) == ""
    assert restored_in(fields) == ""
    assert restored_in(fields | {"job_save-of-offsets_failingSinceMs": "0"}) == restored_in({}) != ""


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="the proxy of the links needs all of 127.0.0.0/8")
def test_it_runs(faults: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ["slave killed", "NameServer stopped", "load killed"]
    figures = tmp_path / "figures.json"
    options = ["--minutes=0.05", "--seed=4", "--rate=200", "--controller=sqlite", f"--json={figures}"]
    status = faults.main([*options, f"--dir={tmp_path / 'run'}", "--faults", *kinds])
    printed = capsys.readouterr()
    assert status == 0, printed.out + printed.err
    result = json.loads(figures.read_text())
    assert {each["fault"] for each in result["rounds"]} <= set(kinds)
    assert result["rounds"]
    assert result["problems"] == []
    assert all(count > 0 for name, count in result["messages"].items() if not name.endswith("again"))
    assert "seed 4:   1: " in printed.err
