"""Detects tasks, threads and sockets that a client leaves behind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from wait_until import until

_LISTENING = "0A"


def _tasks() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if not task.done()}


def _threads() -> set[str]:
    # Ignores the executor's threads of the loop, which live as long as the loop.
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("gantrymq-")}


def _sockets(other_ports: Collection[str] = ()) -> set[str]:
    """Returns the sockets of this process, except those with these local ports."""
    found = set()
    addresses = _addresses() if other_ports else {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith("socket:") and addresses.get(target, ("", ""))[0] not in other_ports:
            found.add(target)
    return found


def _addresses() -> dict[str, tuple[str, str]]:
    """Returns local port and state of each TCP socket, both hexadecimal (proc(5), /proc/net/tcp)."""
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
    ]
    return {f"socket:[{row[9]}]": (row[1].rpartition(":")[2], row[3]) for row in rows}


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Asserts that the block leaves no additional tasks, threads and sockets behind, possibly after a moment.

    Ignores connections to servers that listen before the block. For example, Spark's JVM calls back at garbage
    collections if Spark's tests ran in this process.
    """
    before = _tasks() | {asyncio.current_task()}, _threads(), _sockets()
    others = {port for name, (port, state) in _addresses().items() if name in before[2] and state == _LISTENING}

    def left() -> list[object]:
        return [*(_tasks() - before[0]), *(_threads() - before[1]), *(_sockets(others) - before[2])]

    yield

    try:
        await until(lambda: not left())
    except AssertionError:
        raise AssertionError(f"left behind: {left()}") from None
