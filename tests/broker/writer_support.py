"""An idempotent writer that uses the protocol directly."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from gantrymq.client.producing.send_command import send_command
from gantrymq.protocol import binary_header
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.row_ids import (
    AFTER_FIELD,
    BEGINNING,
    GANTRY_ID,
    GANTRY_SEQ,
    QUEUES_FIELD,
    Place,
    next_chain,
    target_of,
)
from gantrymq.remoting.client import RemotingClient

TOPIC = "rows"


class Writer:
    """An attempt of a writer, which sends numbered rows to one queue in order."""

    def __init__(
        self,
        remoting: RemotingClient,
        port: int,
        *,
        writer: str = "w-7",
        batch: int = 0,
        queue_id: int = 0,
        queues: str = "",
    ) -> None:
        self.remoting = remoting
        self.address = f"127.0.0.1:{port}"
        self.queue = MessageQueue(TOPIC, "broker-a", queue_id)
        self.write, _, self.partition = writer.rpartition("-")
        self.batch = batch
        self.after = BEGINNING
        self.queues = queues

    def command(self, rows: Sequence[tuple[int, bytes]]) -> RemotingCommand:
        target, (_, chain) = target_of(TOPIC, self.queue.queue_id), self.after
        messages = []
        for row, body in rows:
            chain = next_chain(chain, crc32(body))
            row_id = f"{self.write}-{self.batch}-{self.partition}-{row}"
            properties = f"UNIQ_KEY\x01{row}\x02{GANTRY_ID}\x01{row_id}\x02{GANTRY_SEQ}\x01".encode()
            messages.append((0, body, properties + target + b"%08x\x02" % chain))
        command = send_command("g", self.queue, encode_batch(messages), b"", 1, batch=True)
        command.raw_ext += binary_header.encode_fields({AFTER_FIELD: str(self.after)})
        if self.queues:
            command.raw_ext += binary_header.encode_fields({QUEUES_FIELD: self.queues})
        self.after = Place(rows[-1][0], chain)
        return command

    async def send(self, rows: Sequence[tuple[int, bytes]]) -> RemotingCommand:
        return await self.remoting.invoke(self.address, self.command(rows), 20_000)


def numbered(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in numbers]
