"""A run that touches the real system fails: what it finds there is another thing each time, and on each machine.

Python tells an audit hook of files, sockets, processes and threads before it touches them. Of syncs, rests, clocks and
real chance it doesn't; these are replaced in their modules while a run lasts.
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

#: What the hook is told of, by the beginning of the event's name.
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
#: Of these, what Python itself does when it takes a process's environment or the ends of one.
_HARMLESS = frozenset({"os.putenv", "os.unsetenv", "os.fwalk", "os.walk"})
_REPLACED: dict[Any, tuple[str, ...]] = {
    os: ("fsync", "fdatasync", "urandom"),
    threading: ("_start_new_thread",),
    time: ("sleep", "time", "time_ns", "monotonic", "monotonic_ns", "thread_time"),
}
#: Who may: imports that come late, the lines of a traceback, the time of a log record.
_ALLOWED = ("<frozen importlib", "linecache.py", "tokenize.py", f"logging{os.sep}__init__.py")
#: So far up the stack they are looked for.
_FRAMES = 8

_calls: list[str] | None = None
_is_installed = False


class RealCall(Exception):
    """What was asked for would have left the simulation."""


@contextmanager
def forbidden(calls: list[str]) -> Iterator[None]:
    """While it lasts, real calls raise RealCall, and are noted in `calls` in case somebody takes the error."""
    global _calls, _is_installed
    if not _is_installed:
        # A hook stays for ever; it looks only while something is forbidden.
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
        # Memory, not a file: a simulated one is mapped so.
        return
    _refuse(f"{event}({', '.join(map(repr, args))})")


def _replaced(name: str, function: Callable[..., Any], *args: Any) -> Any:
    if _calls is not None:
        _refuse(f"{name}({', '.join(map(repr, args))})")
    return function(*args)


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
