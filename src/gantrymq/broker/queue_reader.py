"""QueueReader: reads a queue that the broker itself consumes, and skips damaged records.

Without it, one damaged record would block all later records. The reader counts and logs each skipped record.
"""

from __future__ import annotations

from collections.abc import Iterator

from gantrymq.errors import RecordError
from gantrymq.logs import peer_log
from gantrymq.protocol.record import Record
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue
from gantrymq.store.message_store import MessageStore

log = peer_log(__name__)


class QueueReader:
    """Reads the queues of one part of the broker.

    Attributes:
        skipped: Number of damaged records.
    """

    def __init__(self, store: MessageStore, what: str) -> None:
        """Creates the reader. `what` describes the messages in log lines."""
        self.skipped = 0
        self._store = store
        self._what = what

    def records(self, queue: ConsumeQueue, offset: int, limit: int) -> Iterator[tuple[int, Record | None]]:
        """Yields at most `limit` messages from a queue offset on, as pairs of the next queue offset and the record.

        The record is None for an entry that is damaged or contains no message. An offset outside of the queue is
        corrected first: the queue may have lost its end in a power failure, and its start may have expired. Raises
        StoreError if the store can't be read at all.
        """
        if not queue.min_offset <= offset <= queue.max_offset:
            offset = max(min(offset, queue.max_offset), queue.min_offset)
            yield offset, None
        units = queue.units(offset, limit)
        if not units and offset < queue.max_offset:
            yield min(queue.next_file_offset(offset), queue.max_offset), None
        for physical_offset, size, _ in UNIT.iter_unpack(units):
            if size != FILLER_SIZE and physical_offset < self._store.min_physical_offset:
                end = queue.count_before(self._store.min_physical_offset)
                log.warning("%s: the messages %d to %d of %r have been deleted", self._what, offset, end - 1, queue)
                yield end, None
                return
            record = None if size == FILLER_SIZE else self._read(queue, offset, physical_offset, size)
            offset += 1
            yield offset, record

    def skip(self, queue: ConsumeQueue, offset: int, physical_offset: int, why: object) -> None:
        """Counts a message that can't be used, and logs its position."""
        self.skipped += 1
        log.error(
            "%s: message %d of %s-%d, at %d in the commit log, is skipped: %s",
            self._what,
            offset,
            queue.topic,
            queue.queue_id,
            physical_offset,
            why,
        )

    def _read(self, queue: ConsumeQueue, offset: int, physical_offset: int, size: int) -> Record | None:
        if physical_offset >= self._store.max_physical_offset:
            self.skip(queue, offset, physical_offset, "the log ends before it")
            return None
        try:
            record = self._store.read_record(physical_offset)
        except RecordError as e:
            self.skip(queue, offset, physical_offset, e)
            return None
        if (record.size, record.queue_offset, record.queue_id) != (size, offset, queue.queue_id) or (
            record.topic != queue.topic_bytes
        ):
            self.skip(queue, offset, physical_offset, "another one stands there")
            return None
        return record
