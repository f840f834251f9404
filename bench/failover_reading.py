"""Reads the messages, logs and workload records after a failover."""

from __future__ import annotations

import hashlib
from pathlib import Path

from failover_check import Stored
from failover_load import TOPIC

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.protocol.message import MessageExt


async def read_all(names: str) -> list[Stored]:
    """Returns all messages of the load, in order for each queue."""
    found: list[Stored] = []
    for message in await messages_of(names, TOPIC):
        key, number, _ = message.body.split(b" ", 2)
        place = message.queue_id, message.queue_offset, message.commit_log_offset
        found.append(Stored(*place, int(key), int(number)))
    return found


async def messages_of(names: str, topic: str) -> list[MessageExt]:
    """Returns all messages of a topic, in order for each queue."""
    found: list[MessageExt] = []
    async with LitePullConsumer(names, "failover-check") as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        left = {}
        for queue in queues:
            await consumer.seek_to_begin(queue)
            left[queue.queue_id] = await consumer.end_offset(queue)
        while any(left.values()):
            for message in await consumer.poll(max_messages=1000):
                found.append(message)
                if message.queue_offset + 1 >= left[message.queue_id]:
                    left[message.queue_id] = 0
    return found


class Events:
    """Reads the workloads' record file while it grows."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open()
        self._rest = ""

    def new(self) -> list[tuple[str, int, float]]:
        """Returns the words, numbers and times since the last call."""
        lines = (self._rest + self._file.read()).split("\n")
        self._rest = lines.pop()
        return [(word, int(number), float(at)) for word, number, at in (line.split() for line in lines)]


def log_of(store: Path, last: int) -> str:
    """Returns a hash of the log up to the end of the record that begins at `last`.

    A master may have written more records while its slaves shut down.
    """
    log = b"".join(file.read_bytes() for file in sorted((store / "commitlog").iterdir()))
    return hashlib.sha256(log[: last + int.from_bytes(log[last : last + 4], "big")]).hexdigest()
