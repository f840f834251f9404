"""Writer processes that tests kill while they write.

They are forked from one process that has imported everything, so that a round takes only some hundredths of a second.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BEGIN = """
import os, sys
sys.path[:0] = sys.argv[1:]
"""
_LOOP = """
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            fifo, *arguments = line.split()
            fd = os.open(fifo, os.O_WRONLY)
            os.write(fd, b"%d\\n" % os.getpid())
            write(fd, *arguments)
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    print("ended", flush=True)
"""


class Nursery:
    """Forks one writer after another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run_and_kill(self, fifo: Path, count: int, *arguments: object) -> list[str]:
        """Runs `write(fd, *arguments)` until it has written `count` lines, then kills it.

        Returns the complete lines that it wrote. Creates the pipe `fifo`. Arguments are passed as text without spaces.
        """
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None
        assert answers is not None
        os.mkfifo(fifo)
        print(fifo, *arguments, file=to, flush=True)
        with fifo.open() as reader:
            pid = int(reader.readline())
            lines = []
            try:
                for _ in range(count):
                    lines.append(reader.readline())
            finally:
                os.kill(pid, signal.SIGKILL)
            lines += reader.readlines()
        assert answers.readline() == "ended\n"
        return [line for line in lines if line.endswith("\n")]


@contextmanager
def nursery(writer: str, *directories: Path) -> Iterator[Nursery]:
    """Starts the process that forks the writers.

    `writer` is a script that defines `write(fd, *arguments)`. It can import from `directories`.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _BEGIN + writer + _LOOP, *map(str, directories)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Nursery(process)
        finally:
            process.kill()
