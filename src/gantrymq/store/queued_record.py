"""Which record begins at a place of the log that somebody from outside names."""

from __future__ import annotations

from gantrymq.errors import RecordError
from gantrymq.protocol.record import Record
from gantrymq.store.message_store import MessageStore


def queued_record(store: MessageStore, physical_offset: int) -> Record:
    """The record that begins there and stands in its queue. Raises RecordError when none does, StoreError.

    A body may hold bytes that look like a record, with any topic and any properties. So the queue is asked: the unit at
    the record's queue offset points to where a record really begins. One whose queue is deleted, or that is in no queue
    (sent as prepared or rolled back), can't be told from a forged one.
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
