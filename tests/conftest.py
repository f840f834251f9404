"""Runs every async test on uvloop, as the servers do, and distributes tests over processes (`pytest -n auto`).

The tests of one file run in the same process, one after the other, and so do all tests of Spark. Fixtures of a module,
and the Spark session, are therefore created once. A test that measures time has the mark `alone`: no other test runs
at the same time.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import spark_java
import uvloop
from certificates import certificate
from hypothesis import HealthCheck, settings

from gantrymq.logs import PeerFilter
from gantrymq.store.config import StoreConfig
from gantrymq.store.retention import used_percent

__all__ = ["certificate"]

#: In seconds. A longer test must be marked `slow`; `./dev test` skips such tests.
SLOW_S = 20.0
#: Memory for a test process and the processes that it starts, in bytes. Spark's needs the most.
_MEMORY_OF_ONE = 3 << 30

# A busy machine is not a failure; pytest-timeout stops a test that hangs.
settings.register_profile("gantrymq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gantrymq")

_path = pytest.StashKey[str]()
_lock = pytest.StashKey[BinaryIO]()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    # A factory instead of a policy, because policies are deprecated in Python 3.14.
    return {"uvloop": uvloop.new_event_loop}


# -- several processes --------------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Returns one more than the number of cores, because a test is idle for half of its time.

    Two processes on two cores use only a third of the processor time. With three processes, all tests but the slow ones
    take 9 instead of 14 minutes, and none fails for lack of a core.
    """
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(min(cores + 1, memory // _MEMORY_OF_ONE), 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keeps the tests of a file together, and all tests of Spark. The set with the most tests starts first."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = super()._split_scope(nodeid)
            return "tests/spark" if path.startswith("tests/spark/") else path

        def _reschedule(self, node: Any) -> None:
            super()._reschedule(node)
            # A process runs a test only when it has the next one, and some sets have only one test.
            while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
                self._assign_work_unit(node)

        def remove_node(self, node: Any) -> str | None:
            """Gives the tests of a process that died to the others, except the one that ran. Returns that one.

            xdist's own method gives back the tests that have passed, too. A process that gets only such tests has
            nothing to report, gets nothing more, and the run never ends.
            """
            work = self.assigned_work.pop(node)
            left = [(path, test) for path, tests in work.items() for test, is_done in tests.items() if not is_done]
            if not left:
                return None
            (_, crashed), *others = left
            for path, test in others:
                self.workqueue.setdefault(path, {})[test] = False
            for other in self.assigned_work:
                # Not a process that is still starting.
                if other in self.registered_collections:
                    self._reschedule(other)
            print(f"\n{crashed} ran when {_end_of(node)}", file=sys.stderr)
            return crashed

    # `-n` alone means "load". With another --dist, xdist uses its own scheduler.
    return ByFile(config, log) if config.getoption("dist") == "load" else None


def _end_of(node: Any) -> str:
    """Describes the end of a process of xdist. The status is minus the number of a signal that has ended it."""
    try:
        return f"its process ended with status {node.gateway._io.popen.wait(10)}"
    except subprocess.TimeoutExpired:
        return "the connection to its process ended, which still runs"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Gives all processes the path of one lock file."""
    stash = node.config.stash
    if _path not in stash:
        handle, stash[_path] = tempfile.mkstemp(prefix="gantrymq-tests-")
        os.close(handle)
        node.config.add_cleanup(lambda: os.unlink(stash[_path]))
    node.workerinput["lock"] = stash[_path]


def pytest_sessionstart() -> None:
    """Ends the run if brokers would reject messages because the disk of the temporary directory is too full.

    The limit of a run is one per cent lower than that of a broker, because tests fill the disk further.
    """
    disk, limit = Path(tempfile.gettempdir()), StoreConfig(Path()).disk_space_warning_level_ratio
    if (used := used_percent(disk)) > limit - 1:
        pytest.exit(
            f"the disk of {disk} is {used:.0f} % full, and brokers reject messages above {limit} %: "
            "free some space, or set TMPDIR to a directory on another disk",
            pytest.ExitCode.USAGE_ERROR,
        )


def pytest_configure(config: pytest.Config) -> None:
    for name, value in spark_java.VARIABLES.items():
        os.environ.setdefault(name, value)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Background jobs of a shell ignore SIGINT. The commands that tests interrupt would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if (workerinput := getattr(config, "workerinput", None)) is not None:
        config.stash[_lock] = lock = open(workerinput["lock"], "r+b", buffering=0)  # noqa: SIM115
        config.add_cleanup(lock.close)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a test marked `alone` when no other process runs a test, and blocks the others until it ends.

    This hook wraps pytest-timeout's hook, so the waiting time does not count for the timeout.
    """
    lock = item.config.stash.get(_lock, None)
    if lock is None:
        return (yield)
    # A test that waits for the second byte keeps the first one, so no other test can overtake an `alone` test.
    fcntl.lockf(lock, fcntl.LOCK_EX, 1, 0)
    fcntl.lockf(lock, fcntl.LOCK_SH if item.get_closest_marker("alone") is None else fcntl.LOCK_EX, 1, 1)
    fcntl.lockf(lock, fcntl.LOCK_UN, 1, 0)
    try:
        return (yield)
    finally:
        fcntl.lockf(lock, fcntl.LOCK_UN, 1, 1)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """Escapes lone surrogates in a process's report: logs and comparisons can have them, but execnet rejects them."""
    return _encodable((yield))


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_encodable, value))
    return value


# -- log ----------------------------------------------------------------------------------------------------------


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Resets the log limits, so that no line of this test is suppressed because of earlier tests."""
    for logger in logging.root.manager.loggerDict.values():
        for limit in getattr(logger, "filters", []):
            if isinstance(limit, PeerFilter):
                limit.forget()


# -- time ---------------------------------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Lists the tests that take too long without the mark `slow`. This is not a failure: the machine can be busy."""
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
