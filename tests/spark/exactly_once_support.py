"""Drivers that write with exactlyOnce, as processes of their own, and what they have written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster_support import environment

from gantrymq.protocol.message import decode_messages
from gantrymq.spark.cluster import Cluster, run
from gantrymq.spark.options import TOOLS_GROUP

DRIVER = Path(__file__).parent / "exactly_once_driver.py"


@contextmanager
def driver(arguments: Sequence[str | Path], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Its log is driver.log in `directory`; ended with all that it has started."""
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
            # The JVM and the Python workers are in its group.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def numbers(name_server: str, topic: str) -> list[int]:
    """The numbers in a topic's bodies, sorted."""

    async def read() -> list[int]:
        found: list[int] = []
        async with Cluster([name_server], 5000) as brokers:
            for queue in await brokers.read_queues(topic):
                offset, end = await brokers.min_offset(queue), await brokers.max_offset(queue)
                while offset < end:
                    pulled = await brokers.pull(queue, offset, 10_000, 1 << 22, TOOLS_GROUP, ("*", "TAG"))
                    found += [int(message.body) for message in decode_messages(pulled.body)]
                    offset = pulled.next_begin_offset
        return sorted(found)

    return run(read())
