"""`send_batches` encodes the rows of Arrow batches and sends them as messages."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from gantrymq.arrow.connection_pool import TaskConnections
from gantrymq.arrow.idempotent_sender import IdempotentSender
from gantrymq.arrow.row_messages import RowEncoder
from gantrymq.arrow.row_sender import RowSender


def send_batches(
    batches: Iterable[pa.RecordBatch],
    encoder: RowEncoder,
    sender: RowSender | IdempotentSender,
    brokers: TaskConnections,
) -> int:
    """Sends the rows of all batches. When all of them are stored, returns the number of rows.

    Raises IllegalMessage, which names the row, and the errors of a send.
    """
    rows = 0
    # The rows of one batch are in flight while the next batch is encoded.
    in_flight = None
    for batch in batches:
        messages = encoder.encode(batch)
        if in_flight is not None:
            in_flight.result()
        in_flight = brokers.submit(sender.send(messages))
        rows += batch.num_rows
    if in_flight is not None:
        in_flight.result()
    return rows
