"""Searches the log for committed transactions that have no op message yet.

A commit stores the message. The op message follows within `transactionOpBatchInterval`. Before it is written, the
broker may be killed, or another broker may become master. The end of the log is therefore read at each start and change
of role. Each committed message has the physical offset of its half message.
"""

from __future__ import annotations

from collections.abc import Iterator

from gantrymq.broker.transaction.half_messages import half_of
from gantrymq.broker.transaction.op_messages import REMOVE_CODE, lists_all, op_queue
from gantrymq.errors import GantryError, RecordError
from gantrymq.logs import peer_log
from gantrymq.protocol.record import Record
from gantrymq.store.consume_queue import UNIT
from gantrymq.store.message_store import MessageStore

log = peer_log(__name__)

#: A property of every committed message. The half message has the same property, because a transaction cannot end
#: without it.
_MARK = b"PGROUP\x01"
#: Maximum number of op messages that one step reads.
_OP_STEP = 64
#: Largest part of the log that is read, in bytes. Reading it takes some seconds. The last op message is usually much
#: closer to the end, unless `transactionOpBatchInterval` is long.
_MOST_BYTES = 2 * 1024**3


def committed_halves(store: MessageStore, begin: int) -> Iterator[Record | None]:
    """Yields the half messages of commits since the last op message, and since the physical offset `begin`.

    Yields None after each step. Raises StoreError.
    """
    for last in _last_listing(store):
        if last is None:
            yield None
        else:
            begin = max(begin, last)
    end, file_size = store.max_physical_offset, store.config.mapped_file_size_commit_log
    # A scan must start at a record, and each file starts with one.
    begin = max(begin, store.min_physical_offset, (end - _MOST_BYTES) // file_size * file_size)
    try:
        for record in store.look_for_records(_MARK, begin):
            if record is None:
                yield None
            elif record.physical_offset >= end:
                return
            elif (half := half_of(store, record)) is not None:
                yield half
    except RecordError as e:
        log.error("which transactions were committed last can't be read from the log, some may be checked again: %s", e)


def _last_listing(store: MessageStore) -> Iterator[int | None]:
    """Yields the physical offset of the last op message that `lists_all`; None after each step."""
    queue = op_queue(store)
    offset = queue.max_offset
    while offset > queue.min_offset:
        start = max(offset - _OP_STEP, queue.min_offset)
        for physical_offset, _, code in reversed(list(UNIT.iter_unpack(queue.units(start, offset - start)))):
            if code != REMOVE_CODE:
                continue
            try:
                record = store.read_record(physical_offset)
            except GantryError:
                continue
            if record.topic == queue.topic_bytes and lists_all(record):
                yield physical_offset
                return
        offset = start
        yield None
