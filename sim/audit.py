"""Makes a run fail if it uses the real system, whose results differ from run to run and between machines.

A Python audit hook receives file, socket, process and thread operations before they run. The hook does not receive
syncs, sleeps, clock reads and requests for random numbers. During a run, replacements in their modules catch these
calls.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

#: Prefixes of the audit events that are refused.
_EVENTS = (
    "_thread.start",
    "fcntl.",
    "mmap.",
    "open",
    "os.",
    "shutil.",
    "socket.",
    "subprocess.",
    "tempfile.",
)
#: Of these, events that Python raises without access to a file: environment changes, and the start of directory walks.
_HARMLESS = frozenset({"os.putenv", "os.unsetenv", "os.fwalk", "os.walk"})
_REPLACED: dict[Any, tuple[str, ...]] = {
    os: ("fsync", "fdatasync", "urandom"),
    # The second name is that of Python 3.13 and later.
    threading: tuple(name for name in ("_start_new_thread", "_start_joinable_thread") if hasattr(threading, name)),
    time: ("sleep", "time", "time_ns", "monotonic", "monotonic_ns", "thread_time"),
}
#: Callers that may use the real system: late imports, source lines of a traceback, the time of a log record.
_ALLOWED = ("<frozen importlib", "linecache.py", "tokenize.py", f"logging{os.sep}__init__.py")
#: Number of stack frames that are searched for them.
_FRAMES = 8

_calls: list[str] | None = None
_is_installed = False


class RealCall(Exception):
    """Raised if a call would leave the simulation."""


@contextmanager
def forbidden(calls: list[str]) -> Iterator[None]:
    """Makes real calls raise RealCall in this context.

    Adds each call to `calls`, too, in case the program catches the error.
    """
    global _calls, _is_installed
    if not _is_installed:
        # A hook cannot be removed. It only acts while `_calls` is set.
        sys.addaudithook(_heard)
        _is_installed = True
    real = [(module, name, getattr(module, name)) for module, names in _REPLACED.items() for name in names]
    for module, name, function in real:
        setattr(module, name, partial(_replaced, f"{module.__name__}.{name}", function))
    _calls = calls
    try:
        yield
    finally:
        _calls = None
        for module, name, function in real:
            setattr(module, name, function)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if _calls is None or not event.startswith(_EVENTS) or event in _HARMLESS:
        return
    if event == "mmap.__new__" and args[0] == -1:
        # An anonymous mapping is memory: simulated files use it.
        return
    _refuse(f"{event}({', '.join(map(repr, args))})")


def _replaced(name: str, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    if _calls is not None:
        _refuse(f"{name}({', '.join(map(repr, args))})")
    return function(*args, **more)


def _refuse(what: str) -> None:
    assert _calls is not None
    frame = sys._getframe(1)
    where = ""
    for _ in range(_FRAMES):
        file = frame.f_code.co_filename
        if file != __file__:
            if file.startswith(_ALLOWED[0]) or file.endswith(_ALLOWED[1:]):
                return
            where = where or f"{file}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    _calls.append(f"a real call: {what} in {where}")
    raise RealCall(_calls[-1])
