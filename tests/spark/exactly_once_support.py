"""Runs drivers that write with exactlyOnce in their own processes, and reads their output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster_support import environment

from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.options import TOOLS_GROUP
from gantrymq.protocol.message import decode_messages

DRIVER = Path(__file__).parent / "exactly_once_driver.py"


@contextmanager
def driver(arguments: Sequence[str | Path], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the driver until the block ends, then kills its process group. Its log is `directory`/driver.log."""
    with (directory / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, DRIVER, *arguments],
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            # The JVM and the Python workers are in the same process group.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def numbers(name_server: str, topic: str) -> list[int]:
    """Returns the numbers in a topic's bodies, sorted."""

    async def read() -> list[int]:
        found: list[int] = []
        async with ClusterClient([name_server], 5000) as brokers:
            for queue in await brokers.read_queues(topic):
                offset, end = await brokers.min_offset(queue), await brokers.max_offset(queue)
                while offset < end:
                    pulled = await brokers.pull(queue, offset, 10_000, 1 << 22, TOOLS_GROUP, ("*", "TAG"))
                    found += [int(message.body) for message in decode_messages(pulled.body)]
                    offset = pulled.next_begin_offset
        return sorted(found)

    return run(read())
