"""Decodes the rows of an idempotent write request, and counts those that the queue already has.

The last row that the writer stored in the queue is enough for the count.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

from gantrymq.broker.send.write_ids import Written
from gantrymq.errors import IllegalMessage, RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.properties import find_property
from gantrymq.protocol.record import record_properties
from gantrymq.protocol.row_ids import (
    BEGINNING,
    GANTRY_ID,
    GANTRY_SEQ,
    Place,
    RowId,
    decode_row_id,
    decode_sequence,
    target_of,
)
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.record_batch import RecordBatch

#: The names of the two properties of a row.
ROW_ID = GANTRY_ID.encode()
SEQUENCE = GANTRY_SEQ.encode()


class Rows(NamedTuple):
    """The rows of one request.

    Attributes:
        key: Key of the writer and the queue in `WriteIds`.
        queue: The target queue.
        last: Id of the last row.
        chain: Checksum up to the last row.
        total: Number of rows.
        new: The rows that the queue does not have yet. None if the queue has all rows.
        last_row: The writer's last row in the queue after `new` is stored.
        first_offset: Queue offset of the first row. -1 if a row is new or the offset is unknown.
        queues: As in `Written`.
    """

    key: str
    queue: ConsumeQueue
    last: RowId
    chain: int
    total: int
    new: RecordBatch | None
    last_row: int
    first_offset: int = -1
    queues: str = ""


def count_known(written: Written, first: RowId, last: RowId, after: Place, batch: RecordBatch) -> int:
    """Returns the number of rows that the queue already has. Raises RequestRefused if the queue has different rows."""
    if written.batch < first.batch:
        if after != BEGINNING:
            raise lost_rows(last, after, BEGINNING)
        return 0
    if written.batch > first.batch:
        raise RequestRefused(
            ResponseCode.ILLEGAL_OPERATION,
            f"batch {first.batch} of the writer {first.writer} comes after its batch {written.batch}: was an "
            "older checkpoint restored? A query with a new checkpoint, or another txnAppId, is another writer",
        )
    if first.row > written.row:
        if after == (written.row, written.chain):
            return 0
        if after.row > written.row:
            raise lost_rows(last, after, Place(written.row, written.chain))
        raise other_rows(first, written)
    if last.row <= written.row:
        return len(batch)
    # The queue has some of the rows. They are in order, so a binary search finds the first new row.
    low, high = 0, len(batch)
    while low < high:
        middle = (low + high) // 2
        if sent_row(batch.records[middle])[0].row <= written.row:
            low = middle + 1
        else:
            high = middle
    row, chain = sent_row(batch.records[low - 1], target_of(batch.queue.topic, batch.queue.queue_id))
    if (row.row, chain) != (written.row, written.chain):
        raise other_rows(row, written)
    return low


def sent_row(record: bytes, target: bytes | None = None) -> tuple[RowId, int]:
    """Like `row_of`, but raises RequestRefused if a row is invalid."""
    try:
        return row_of(record, target)
    except IllegalMessage as e:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(e)) from e


def row_of(record: bytes, target: bytes | None = None) -> tuple[RowId, int]:
    """Returns the id of a record's row, and its checksum if `target` (see `target_of`) is given, else 0.

    Raises IllegalMessage.
    """
    properties = record_properties(record)
    row = decode_row_id(find_property(properties, ROW_ID) or b"")
    if target is None:
        return row, 0
    chain = decode_sequence(find_property(properties, SEQUENCE) or b"", target)
    if chain is None:
        raise IllegalMessage(f"row {row.row} of {row.writer} has no {GANTRY_SEQ} for this queue")
    return row, chain


def without(batch: RecordBatch, count: int) -> RecordBatch:
    """Returns a copy of the batch without its first `count` records."""
    rest = copy(batch)
    rest.records, rest.sizes, rest.tags_codes = batch.records[count:], batch.sizes[count:], batch.tags_codes[count:]
    return rest


def lost_rows(row: RowId, after: Place, had: Place) -> RequestRefused:
    """Returns the error for a request that continues after a row that is missing from the queue."""
    return RequestRefused(
        ResponseCode.ILLEGAL_OPERATION,
        f"batch {row.batch} of the writer {row.writer} goes on after row {after.row}, and the queue has its rows up to "
        f"{had.row}: the broker has lost some, they must be sent again",
    )


def other_queues(row: RowId, queues: str, written: Written) -> RequestRefused:
    """Returns the error for a repeated batch whose target queues differ from the first attempt."""
    return RequestRefused(
        ResponseCode.ILLEGAL_OPERATION,
        f"batch {row.batch} of the writer {row.writer} goes to the queues {queues}, and went to {written.queues} "
        "in its first attempt: rows would be stored twice. Run the task again: it then sends to the former queues",
    )


def other_rows(row: RowId, written: Written) -> RequestRefused:
    """Returns the error for a repeated batch whose rows or their order differ from the first attempt."""
    return RequestRefused(
        ResponseCode.ILLEGAL_OPERATION,
        f"batch {row.batch} of the writer {row.writer} comes with other rows, or in another order, than when it was "
        f"sent first, up to row {written.row}: they can't be distinguished. Make the same rows in the same order (sort "
        "within the partitions before the write, no random functions), or leave exactlyOnce out, and rows may repeat",
    )
