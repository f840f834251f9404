"""Tests that the check of bench/faults.py finds violations, and runs it briefly."""

from __future__ import annotations

import errno
import json
import os
import subprocess
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
    kinds = ["killed", "clock ahead", "member killed", "disk full", "fsync fails"]
    assert faults.available(kinds, "sqlite", faults.Tools()) == (
        ["killed"],
        ["member killed", "clock ahead", "disk full", "fsync fails"],
    )
    assert capsys.readouterr().err.splitlines() == [
        "without etcd, skipped: member killed",
        "without libfaketime, skipped: clock ahead",
        "without root and mkfs.ext4, skipped: disk full",
        "without libfiu and fiu-ctrl, skipped: fsync fails",
    ]
    assert faults.available(kinds, "etcd", faults.Tools(Path("libfaketime.so.1"), True, True)) == (kinds, [])


def test_a_run_uses_only_the_tools_that_its_faults_need(faults: ModuleType) -> None:
    faketime = Path("libfaketime.so.1")
    assert faults.find_tools(["killed"], faketime) == faults.Tools()
    assert faults.find_tools(["killed", "clock ahead"], faketime) == faults.Tools(faketime)


def test_a_run_without_faults_does_not_start(
    faults: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--controller=sqlite", f"--dir={tmp_path / 'run'}", "--faults", "member killed"]
    assert faults.main(options) == 2
    assert capsys.readouterr().err.endswith("this machine can have none of these faults\n")
    assert not (tmp_path / "run").exists()


def test_an_unknown_commit_is_refused(faults: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--controller=sqlite", f"--dir={tmp_path / 'run'}", "--faults", "killed", "--upgrade-from=no-commit"]
    assert faults.main(options) == 2
    assert capsys.readouterr().err.startswith("--upgrade-from: git rev-parse")
    assert not (tmp_path / "run").exists()


def test_the_master_is_the_last_upgraded_broker(faults: ModuleType, tmp_path: Path) -> None:
    servers = faults.FaultServers(tmp_path, "etcd", (), faults.Tools(), tmp_path)
    order = [servers.upgrade_next("a") for _ in range(servers.outdated)]
    assert order == ["namesrv", "controller0", "controller1", "controller2", "b", "c", "a", "proxy"]
    assert servers.outdated == 0
    assert faults.FaultServers(tmp_path, "etcd", (), faults.Tools(), None).outdated == 0


def test_a_server_uses_the_earlier_code_until_its_upgrade(faults: ModuleType, tmp_path: Path) -> None:
    from failover_servers import environment

    earlier = tmp_path / "checkout"
    for package in ("src/gantrymq", ".venv/lib/python3.11/site-packages/gantrymq_native"):
        (earlier / package).mkdir(parents=True)
        (earlier / package / "__init__.py").touch()
    servers = faults.FaultServers(tmp_path, "sqlite", (), faults.Tools(), earlier)

    def imported(name: str) -> list[Path]:
        program = "import gantrymq, gantrymq_native as native; print(gantrymq.__file__); print(native.__file__)"
        with environment(servers.variables(name)):
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        return [Path(line) for line in done.stdout.splitlines()]

    assert all(path.is_relative_to(earlier) for path in imported("namesrv"))
    assert len(imported("namesrv")) == 2
    assert servers.upgrade_next("a") == "namesrv"
    assert not any(path.is_relative_to(earlier) for path in imported("namesrv"))
    assert len(imported("a")) == 2


class TimedRun:
    """A run with servers to upgrade. Each round takes 6 s of its own clock."""

    def __init__(self, outdated: int) -> None:
        self.outdated = outdated
        self.faults: list[str | None] = []

    def monotonic(self) -> float:
        return 6.0 * len(self.faults)

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass

    async def one_round(self, name: str | None = None) -> None:
        self.faults.append(name)
        if name is not None:
            self.outdated -= 1

    async def finish(self) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("minutes", "order"),
    [
        (1.0, [None, "upgraded", None, None, "upgraded", None, None, "upgraded", None, None]),
        (1e-9, [None, *["upgraded"] * 3]),
    ],
)
async def test_upgrades_are_spread_over_the_run(
    faults: ModuleType, monkeypatch: pytest.MonkeyPatch, minutes: float, order: list[str | None]
) -> None:
    run = TimedRun(3)
    monkeypatch.setattr(faults, "time", run)
    assert await faults.run_for(run, run, minutes) == []
    assert run.faults == order
    assert "upgraded" not in faults.AT_RANDOM


def test_a_small_disk_can_be_full(faults: ModuleType, tmp_path: Path) -> None:
    from failover_tools import can_mount, fill, free, mounted

    if not can_mount():
        pytest.skip("only root can mount a disk")
    disk = tmp_path / "disk"
    with mounted(disk):
        fill(disk)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (disk / "file").write_bytes(b"1" * 5000)
        free(disk)
        assert (disk / "file").write_bytes(b"1" * 5000) == 5000
    assert list(disk.iterdir()) == []
    assert (tmp_path / "disk.img").stat().st_blocks * 512 < 64 << 20


def test_fsync_can_fail(faults: ModuleType, tmp_path: Path) -> None:
    from failover_tools import fail_fsync, fsync_variables, has_libfiu

    if not has_libfiu():
        pytest.skip("libfiu is not installed")
    program = """
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for line in sys.stdin:
    for sync in (os.fsync, os.fdatasync):
        try:
            sync(file)
            print("done", flush=True)
        except OSError as e:
            print(e.errno, flush=True)
"""
    pipe = tmp_path / "fsync"
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "file"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | fsync_variables(pipe),
    ) as process:
        to_process, of_process = process.stdin, process.stdout
        assert to_process is not None
        assert of_process is not None

        def results() -> list[str]:
            print(file=to_process, flush=True)
            return [of_process.readline().strip() for _ in range(2)]

        assert results() == ["done", "done"]
        fail_fsync(pipe, process.pid)
        assert results() == [str(errno.EIO)] * 2
        to_process.close()


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
    figures = rounds, {"sent one by one": 100, "sent in batches": 20}, ["lost: 1"], ["disk full"]
    tables = faults.result_tables(*figures, upgrades=False)
    assert tables["checks"]["rows"] == [
        ["faults", 4],
        ["messages sent", 120],
        ["violations", 1],
        ["faults without an effect", "clock ahead"],
        ["faults that this machine cannot have", "disk full"],
    ]
    assert faults.result_tables(*figures, upgrades=True) == {"checks during upgrades": tables["checks"]}
    assert tables["effects"]["rows"][-1] == ["no file may grow", "EFBIG: save of offsets", "all jobs write again"]
    assert tables["time without service"]["rows"][-1] == ["no file may grow", 2, 4, 1.0, 2.0, 3.0]
    assert all(len(row) == len(each["columns"]) for each in tables.values() for row in each["rows"])


@pytest.mark.parametrize("number", [errno.EFBIG, errno.ENOSPC, errno.EIO])
def test_a_job_that_could_not_write_is_an_effect(faults: ModuleType, number: int) -> None:
    from failover_effects import failed_in, restored_in

    fields = {
        "job_save-of-offsets_failures": "2",
        "job_save-of-offsets_failingSinceMs": "500",
        "job_save-of-offsets_lastError": f"can't write a: {OSError(number, os.strerror(number))}",
        "job_save-of-offsets_lastFailureMs": "1000",
    }
    assert failed_in(fields, number, 1000) == f"{errno.errorcode[number]}: save of offsets"
    assert failed_in(fields, number, 1001) == ""
    assert failed_in(fields, errno.EROFS, 0) == ""
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
