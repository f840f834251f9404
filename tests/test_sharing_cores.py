"""Tests how tests share the cores: the additions of tests/conftest.py to `pytest -n`."""

from __future__ import annotations

import itertools
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

TESTS = """
import logging
import time

import pytest


def note(what):
    began = time.monotonic()
    time.sleep(0.05)
    with open("times", "a") as file:
        file.write(f"{began} {time.monotonic()} {__name__} {what}\\n")


@pytest.mark.parametrize("number", range(8))
def test_beside_others(number):
    note("beside")


@pytest.mark.alone
@pytest.mark.parametrize("number", range(3))
def test_alone(number):
    note("alone")
    time.sleep(0.1)


@pytest.mark.parametrize("number", range(8))
def test_beside_others_again(number):
    note("beside")


def test_what_is_no_unicode():
    logging.getLogger("a").error("logged \\ud800")
    assert not "\\ud801"
"""


DYING = """
import os
import signal

import pytest


@pytest.mark.parametrize("number", range(4))
def test_it(number):
    if number == DIES_AT:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def configure(directory: Path) -> None:
    """Gives a directory of tests this project's configuration."""
    shutil.copy(HERE / "conftest.py", directory)
    (directory / "pytest.ini").write_text(f"[pytest]\npythonpath = {HERE}\nmarkers =\n    alone\n    slow\n")


def run(directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs the tests of a directory in two processes."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shared")
    configure(directory)
    with (directory / "conftest.py").open("a") as file:
        file.write("\nSLOW_S = 0.14\n")
    for name in ("a", "b"):
        (directory / f"test_{name}.py").write_text(TESTS)
    return directory


@pytest.fixture(scope="module")
def outcome(directory: Path) -> str:
    """Runs TESTS from two files in two processes and returns pytest's output."""
    return run(directory).stdout


def test_nothing_runs_beside_a_test_that_is_alone(outcome: str, directory: Path) -> None:
    assert "2 failed, 38 passed" in outcome
    spans = [line.split() for line in (directory / "times").read_text().splitlines()]
    beside = [
        (one, other)
        for one, other in itertools.combinations(spans, 2)
        if float(one[0]) < float(other[1]) and float(other[0]) < float(one[1])
    ]
    assert beside
    assert {what for pair in beside for *_, what in pair} == {"beside"}
    # The tests of a file run in one process, one after the other.
    assert all({module for *_, module, _ in pair} == {"test_a", "test_b"} for pair in beside)


@pytest.mark.parametrize(
    ("files", "dies_in", "dies_at"), [(12, 7, 1), (3, 0, 2)], ids=["in the middle", "near the end"]
)
def test_a_process_that_dies_fails_one_test(tmp_path: Path, files: int, dies_in: int, dies_at: int) -> None:
    """All other tests run.

    In the middle, the process has run whole files, and others wait. Near the end, it leaves a set of one test.
    """
    configure(tmp_path)
    for number in range(files):
        (tmp_path / f"test_{number}.py").write_text(DYING.replace("DIES_AT", str(dies_at if number == dies_in else -1)))
    done = run(tmp_path)
    assert f"1 failed, {4 * files - 1} passed" in done.stdout
    assert f"test_{dies_in}.py::test_it[{dies_at}] ran when its process ended with status -9" in done.stderr


@pytest.mark.parametrize(("cores", "gigabytes", "processes"), [(2, 24, 3), (8, 24, 8), (2, 4, 1), (1, 1, 1)])
def test_there_is_one_process_more_than_cores_if_it_has_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: int, processes: int
) -> None:
    how_many = runpy.run_path(str(HERE / "conftest.py"))["pytest_xdist_auto_num_workers"]
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": gigabytes << 18}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    assert how_many() == processes
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "5")
    assert how_many() is None


def test_a_run_on_a_full_disk_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    start = runpy.run_path(str(HERE / "conftest.py"))["pytest_sessionstart"]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: (100, 88, 12))
    start()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: (100, 92, 8))
    with pytest.raises(pytest.exit.Exception, match=r"is 92 % full.* set TMPDIR"):
        start()


def test_a_test_that_takes_too_long_for_its_marks_is_named(outcome: str) -> None:
    named = outcome.partition("over 0.14 s and not marked slow")[2]
    assert named.count("::test_alone[") == 6
    assert "::test_beside" not in named


def test_text_that_is_no_unicode_is_told(outcome: str) -> None:
    assert r"logged \ud800" in outcome
    assert r"AssertionError: assert not '\ud801'" in outcome
