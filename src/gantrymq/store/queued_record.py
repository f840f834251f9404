"""Verifies that a record starts at a log offset that a client sent."""

from __future__ import annotations

from gantrymq.errors import RecordError
from gantrymq.protocol.record import Record
from gantrymq.store.message_store import MessageStore


def queued_record(store: MessageStore, physical_offset: int) -> Record:
    """Returns the record that starts at this offset and is in its queue. Raises RecordError or StoreError.

    A message body can contain bytes that look like a record with any topic and properties. Therefore the queue unit at
    the record's queue offset must point to this offset. A record without a queue unit can't be distinguished from a
    forged one. This includes records of deleted queues, and prepared or rolled-back messages.
    """
    if not store.min_physical_offset <= physical_offset < store.max_physical_offset:
        raise RecordError(
            f"the log has {store.min_physical_offset} to {store.max_physical_offset}: nothing is at {physical_offset}"
        )
    record = store.read_record(physical_offset)
    queue = store.find_queue(record.topic.decode(errors="replace"), record.queue_id)
    unit = None if queue is None else queue.unit(record.queue_offset)
    if unit is None or unit[:2] != (physical_offset, record.size):
        raise RecordError(f"what is at {physical_offset} is in no queue")
    return record
