"""Every async test runs on uvloop, as the servers do; and how tests share the cores (`pytest -n auto`).

A file's tests run in one process, one after the other, those of Spark all in the same: the fixtures of a module, and
the one Spark session, are made once. A test that measures time is marked `alone`: no other runs beside it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from typing import Any, BinaryIO

import pytest
import uvloop
from certificates import certificate
from hypothesis import HealthCheck, settings

from gantrymq.logs import PeerFilter

__all__ = ["certificate"]

#: A test that takes longer is to be marked `slow`, which `./dev test` leaves out.
SLOW_S = 20.0
#: What a process with tests needs, and what it starts, bytes: Spark's has the most.
_MEMORY_OF_ONE = 3 << 30

# A busy machine is no failure; pytest-timeout ends what hangs.
settings.register_profile("gantrymq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gantrymq")

_path = pytest.StashKey[str]()
_lock = pytest.StashKey[BinaryIO]()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    # A factory and not a policy: policies are deprecated from Python 3.14 on.
    return {"uvloop": uvloop.new_event_loop}


# -- several processes --------------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One more than there are cores: half of the time a test waits for something that takes its time.

    With two on two cores these are busy for a third of the time; with three, all tests but the slow ones take 9 minutes
    and not 14, and none is late for want of a core.
    """
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(min(cores + 1, memory // _MEMORY_OF_ONE), 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests stay together; the set with the most tests, which is Spark's or a small one, begins."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = super()._split_scope(nodeid)
            return "tests/spark" if path.startswith("tests/spark/") else path

    # What -n alone means; another --dist was asked for.
    return ByFile(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Names one file to all processes, for them to lock."""
    stash = node.config.stash
    if _path not in stash:
        handle, stash[_path] = tempfile.mkstemp(prefix="gantrymq-tests-")
        os.close(handle)
        node.config.add_cleanup(lambda: os.unlink(stash[_path]))
    node.workerinput["lock"] = stash[_path]


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So it is in what a shell runs in the background; the commands that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if (workerinput := getattr(config, "workerinput", None)) is not None:
        config.stash[_lock] = lock = open(workerinput["lock"], "r+b", buffering=0)  # noqa: SIM115
        config.add_cleanup(lock.close)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Lets a test marked `alone` wait until those of the other processes have ended, and them until it has.

    Around pytest-timeout's hook: waiting is no part of a test's time.
    """
    lock = item.config.stash.get(_lock, None)
    if lock is None:
        return (yield)
    # Who waits for the second byte keeps the first: nobody overtakes a test that wants to be alone.
    fcntl.lockf(lock, fcntl.LOCK_EX, 1, 0)
    fcntl.lockf(lock, fcntl.LOCK_SH if item.get_closest_marker("alone") is None else fcntl.LOCK_EX, 1, 1)
    fcntl.lockf(lock, fcntl.LOCK_UN, 1, 0)
    try:
        return (yield)
    finally:
        fcntl.lockf(lock, fcntl.LOCK_UN, 1, 1)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """What a process tells of its tests: execnet takes no lone surrogates, which logs and comparisons may have."""
    return _encodable((yield))


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_encodable, value))
    return value


# -- the log ------------------------------------------------------------------------------------------------------


def pytest_runtest_setup(item: pytest.Item) -> None:
    """No test finds a line left out because the tests before it wrote so many of its kind."""
    for logger in logging.root.manager.loggerDict.values():
        for limit in getattr(logger, "filters", []):
            if isinstance(limit, PeerFilter):
                limit.forget()


# -- time ---------------------------------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Names the tests that take too long for a mark they haven't. No failure: another day the machine is busy."""
    durations: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "slow" not in report.keywords:
                durations[report.nodeid] += report.duration
    late = {nodeid: seconds for nodeid, seconds in durations.items() if seconds > SLOW_S}
    if late:
        terminalreporter.section(f"over {SLOW_S:g} s and not marked slow")
        for nodeid, seconds in sorted(late.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"{seconds:.1f}s {nodeid}")
