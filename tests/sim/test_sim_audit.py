"""sim/audit.py: a run that uses the real system fails."""

from __future__ import annotations

import mmap
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sim.audit import RealCall, forbidden

ROOT = Path(__file__).parents[2]
_HERE = Path(__file__)

_REAL: dict[str, Callable[[], object]] = {
    "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
    "socket": socket.socket,
    "resolve": lambda: socket.getaddrinfo("localhost", 80),
    "read": lambda: _HERE.open().close(),
    "write": lambda: open(os.devnull, "w").close(),
    "os.open": lambda: os.open(os.devnull, os.O_WRONLY),
    "list": lambda: os.listdir("."),
    "rename": lambda: os.rename("no-such-file", "no-such-file-either"),
    "remove": lambda: os.remove("no-such-file"),
    "make a directory": lambda: os.mkdir("/no/such/directory"),
    "map": lambda: mmap.mmap(0, 10),
    "sync": lambda: os.fsync(1),
    "sync data": lambda: os.fdatasync(1),
    "sleep": lambda: time.sleep(0),
    "wall clock": lambda: time.time(),
    "clock": lambda: time.monotonic(),
    "chance": lambda: os.urandom(1),
    "thread": lambda: threading.Thread(target=int).start(),
    "process": lambda: subprocess.run(["true"], check=True),
}


@pytest.mark.parametrize("name", _REAL)
def test_a_real_call_is_caught(name: str) -> None:
    calls: list[str] = []
    with forbidden(calls), pytest.raises(RealCall):
        _REAL[name]()
    assert len(calls) == 1
    assert calls[0].startswith("a real call: ")
    assert " in /" in calls[0]


def test_what_touches_nothing_is_allowed() -> None:
    calls: list[str] = []
    with forbidden(calls):
        mapping = mmap.mmap(-1, 4096)
        mapping.close()
        random.Random("a seed").random()
        time.gmtime(0)
    assert calls == []
    time.sleep(0)
    assert time.time() > 0


def test_a_run_with_a_real_call_fails() -> None:
    """Fails even if the program catches the error."""
    code = """
from sim import system
system.install()
import os, sys
from gantrymq.namesrv.server import NameServer
start = NameServer.start
async def also_writes(self):
    try:
        open("/dev/null", "w").close()
    except Exception:
        pass
    await start(self)
NameServer.start = also_writes
from sim.run import run_seed
problems = run_seed("5").problems
print(problems[0])
sys.stdout.flush()
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("a real call: open('/dev/null', 'w', "), done.stdout + done.stderr
