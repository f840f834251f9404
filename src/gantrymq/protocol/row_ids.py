"""What tells the rows of an idempotent write from each other: two properties of each message, a field of the request.

GANTRY_ID is `write-batch-partition-row`. A writer is a partition of a write; it sends its rows to a queue in order, one
request after the other, and its batches too. So of each writer and queue the last row is enough to know all that the
queue has.

GANTRY_SEQ is 16 hexadecimal digits: a checksum of the topic and the queue id, so that a copy elsewhere counts for
nothing, and one of all that the writer has sent to the queue in this batch up to the row, by which rows that come in
another order are found out.

The request, a SEND_BATCH_MESSAGE with a binary header, has the field `gantryAfter`: the row and the checksum that it
follows. Without it the properties mean nothing to a broker: whoever forwards messages copies theirs. The answer has
the field `gantryLastRow`. Brokers of Java know neither.

The field `gantryQueues` lists all target queues of the writer's rows. A later attempt requests it from the brokers with
GET_WRITER_QUEUES, and sends its rows to the same queues.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from zlib import crc32

from gantrymq.errors import IllegalMessage

GANTRY_ID = "GANTRY_ID"
GANTRY_SEQ = "GANTRY_SEQ"
#: The field of the request, and of the answer the one that says which row the queue has now.
AFTER_FIELD = "gantryAfter"
LAST_ROW_FIELD = "gantryLastRow"
#: Field of the request. `broker-a:4;broker-b:2` lists the queues 0 to 3 of broker-a, then 0 to 1 of broker-b.
QUEUES_FIELD = "gantryQueues"
#: Characters of the longest list. Brokers ignore longer ones.
MAX_QUEUES_LENGTH = 500
#: A request whose header is binary has these bytes then.
AFTER_MARK = b"\x00\x0bgantryAfter"
#: So long an id is at most; a query's has 36 characters.
MAX_ID_LENGTH = 192
_MOST_DIGITS = 18
_QUEUES = re.compile(r"[^:;]+:[0-9]{1,5}(;[^:;]+:[0-9]{1,5})*")
_SEQ_LENGTH = 16
#: Bytes of the property GANTRY_SEQ.
SEQUENCE_LENGTH = len(GANTRY_SEQ) + 2 + _SEQ_LENGTH


class RowId(NamedTuple):
    """`writer` is `write-partition`."""

    writer: str
    batch: int
    row: int


class Place(NamedTuple):
    """How far a writer has got in a queue: its last row, and the checksum of all up to there."""

    row: int
    chain: int

    def __str__(self) -> str:
        return f"{self.row}:{self.chain:08x}"


#: Before the first row.
BEGINNING = Place(-1, 0)


def decode_row_id(text: bytes) -> RowId:
    """Raises IllegalMessage for what is no id."""
    parts = text.decode(errors="replace").rsplit("-", 3)
    if len(text) <= MAX_ID_LENGTH and len(parts) == 4 and parts[0]:
        write, batch, partition, row = parts
        if all(_is_number(number) for number in (batch, partition, row)):
            return RowId(f"{write}-{int(partition)}", int(batch), int(row))
    raise IllegalMessage(f"{GANTRY_ID} is {text[:MAX_ID_LENGTH]!r}: write-batch-partition-row is wanted")


def is_queue_list(text: str) -> bool:
    """Whether `text` is a valid value of `gantryQueues`."""
    return len(text) <= MAX_QUEUES_LENGTH and _QUEUES.fullmatch(text) is not None


def decode_place(text: str) -> Place:
    """Raises IllegalMessage for what `str` of a Place doesn't give."""
    row, _, chain = text.partition(":")
    try:
        if len(text) <= _MOST_DIGITS + 9 and (row == "-1" or _is_number(row)) and len(chain) == 8:
            return Place(int(row), int(chain, 16))
    except ValueError:
        pass
    raise IllegalMessage(f"{AFTER_FIELD} is {text[:100]!r}: row:checksum is wanted")


def next_chain(chain: int, digest: int) -> int:
    """The checksum up to a row, of that before it and the row's own."""
    return crc32(digest.to_bytes(4, "big"), chain)


def target_of(topic: str, queue_id: int) -> bytes:
    """The first half of GANTRY_SEQ."""
    return b"%08x" % crc32(f"{topic}@{queue_id}".encode())


def sequence_property(target: bytes, chain: int) -> bytes:
    """GANTRY_SEQ, to be put behind a message's properties."""
    return b"GANTRY_SEQ\x01%b%08x\x02" % (target, chain)


def decode_sequence(text: bytes, target: bytes) -> int | None:
    """The checksum in GANTRY_SEQ; None for a message that was meant for another queue."""
    if len(text) != _SEQ_LENGTH or not text.startswith(target):
        return None
    try:
        return int(text[8:], 16)
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
