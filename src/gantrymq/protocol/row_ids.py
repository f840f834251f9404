"""Identifies the rows of an idempotent write, so that a broker stores each row only once.

A *writer* is one partition of a write. It sends its batches in order, and its rows to a queue in order, one request
after the other. The last row of each writer and queue therefore identifies all rows of this writer in the queue.

Each message of the write has two properties:
- GANTRY_ID: `write-batch-partition-row`.
- GANTRY_SEQ: 16 hexadecimal digits. The first half is a checksum of topic and queue id, so that copies in other queues
  do not count. The second half is a checksum of all rows that the writer sent to the queue in this batch, up to this
  row. It reveals rows in another order.

The request is a SEND_BATCH_MESSAGE with a binary header and the field `gantryAfter`: the previous row and its checksum.
Without this field, a broker ignores the properties, because forwarded messages contain copies of them. The response has
the field `gantryLastRow`. Java's brokers support none of this.

The field `gantryQueues` lists all target queues of the writer's rows. A later attempt of the writer requests this list
from the brokers with GET_WRITER_QUEUES, and sends the rows to the same queues.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from zlib import crc32

from gantrymq.errors import IllegalMessage

GANTRY_ID = "GANTRY_ID"
GANTRY_SEQ = "GANTRY_SEQ"
#: Field of the request with the previous row, and field of the response with the queue's last row.
AFTER_FIELD = "gantryAfter"
LAST_ROW_FIELD = "gantryLastRow"
#: Field of the request. `broker-a:4;broker-b:2` lists the queues 0 to 3 of broker-a, then 0 to 1 of broker-b.
QUEUES_FIELD = "gantryQueues"
#: Length of the longest list, in characters. Brokers ignore longer lists.
MAX_QUEUES_LENGTH = 500
#: The encoded field name in a binary header. A header that contains it is probably from an idempotent write.
AFTER_MARK = b"\x00\x0bgantryAfter"
#: Length of the longest id, in bytes. The id of a Spark query has 36 characters.
MAX_ID_LENGTH = 192
_MOST_DIGITS = 18
_QUEUES = re.compile(r"[^:;]+:[0-9]{1,5}(;[^:;]+:[0-9]{1,5})*")
_SEQ_LENGTH = 16
#: Size of the property GANTRY_SEQ, in bytes.
SEQUENCE_LENGTH = len(GANTRY_SEQ) + 2 + _SEQ_LENGTH


class RowId(NamedTuple):
    """A parsed GANTRY_ID. `writer` is `write-partition`."""

    writer: str
    batch: int
    row: int


class Place(NamedTuple):
    """The progress of a writer in a queue: its last row, and the checksum up to this row."""

    row: int
    chain: int

    def __str__(self) -> str:
        return f"{self.row}:{self.chain:08x}"


#: The position before the first row.
BEGINNING = Place(-1, 0)


def decode_row_id(text: bytes) -> RowId:
    """Parses a GANTRY_ID. Raises IllegalMessage if it is invalid."""
    parts = text.decode(errors="replace").rsplit("-", 3)
    if len(text) <= MAX_ID_LENGTH and len(parts) == 4 and parts[0]:
        write, batch, partition, row = parts
        if all(_is_number(number) for number in (batch, partition, row)):
            return RowId(f"{write}-{int(partition)}", int(batch), int(row))
    raise IllegalMessage(f"{GANTRY_ID} is {text[:MAX_ID_LENGTH]!r}: write-batch-partition-row is wanted")


def is_queue_list(text: str) -> bool:
    """Returns true if `text` is a valid value of `gantryQueues`."""
    return len(text) <= MAX_QUEUES_LENGTH and _QUEUES.fullmatch(text) is not None


def decode_place(text: str) -> Place:
    """Parses the text of a Place. Raises IllegalMessage if it is invalid."""
    row, _, chain = text.partition(":")
    try:
        if len(text) <= _MOST_DIGITS + 9 and (row == "-1" or _is_number(row)) and len(chain) == 8:
            return Place(int(row), int(chain, 16))
    except ValueError:
        pass
    raise IllegalMessage(f"{AFTER_FIELD} is {text[:100]!r}: row:checksum is wanted")


def next_chain(chain: int, digest: int) -> int:
    """Returns the checksum up to a row, from the checksum before it and the row's own digest."""
    return crc32(digest.to_bytes(4, "big"), chain)


def target_of(topic: str, queue_id: int) -> bytes:
    """Returns the first half of GANTRY_SEQ."""
    return b"%08x" % crc32(f"{topic}@{queue_id}".encode())


def sequence_property(target: bytes, chain: int) -> bytes:
    """Returns the property GANTRY_SEQ, to append to a message's properties."""
    return b"GANTRY_SEQ\x01%b%08x\x02" % (target, chain)


def decode_sequence(text: bytes, target: bytes) -> int | None:
    """Returns the checksum in GANTRY_SEQ, or None if the message was sent to another queue."""
    if len(text) != _SEQ_LENGTH or not text.startswith(target):
        return None
    try:
        return int(text[8:], 16)
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
