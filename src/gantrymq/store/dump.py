"""Reads the messages in a store's log that match a filter, without opening the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gantrymq.errors import CompressionError, RecordError, StoreError
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.record import Record
from gantrymq.store.config import StoreConfig
from gantrymq.store.index_keys import keys_of
from gantrymq.store.offline import OfflineLog


@dataclass(slots=True, frozen=True)
class MessageFilter:
    """Selects messages. None accepts all values of a field.

    `end_offset` is exclusive. `begin_ms` and `end_ms` are store timestamps in milliseconds, both inclusive. `key` is a
    unique key or one of the KEYS.
    """

    topic: str | None = None
    queue_id: int | None = None
    begin_offset: int = 0
    end_offset: int | None = None
    begin_ms: int = 0
    end_ms: int | None = None
    key: str | None = None

    def accepts(self, record: Record) -> bool:
        """Returns whether a record matches the filter."""
        return (
            (self.topic is None or record.topic == self.topic.encode())
            and (self.queue_id is None or record.queue_id == self.queue_id)
            and self.begin_offset <= record.queue_offset
            and (self.end_offset is None or record.queue_offset < self.end_offset)
            and self.begin_ms <= record.store_timestamp
            and (self.end_ms is None or record.store_timestamp <= self.end_ms)
            and (self.key is None or self.key.encode() in keys_of(record.properties))
        )


def dump(config: StoreConfig, wanted: MessageFilter) -> Iterator[MessageExt]:
    """Yields the messages in the order of the log.

    Messages of deleted topics and of open or rolled-back transactions are included. If a body can't be decompressed, it
    is returned as stored. Raises StoreError at a damaged record.
    """
    log = OfflineLog(*config.commit_log_directories)
    reader = log.reader(_start(log, wanted.begin_ms))
    for record in reader:
        if wanted.accepts(record):
            try:
                message = MessageExt(record)
            except RecordError as e:
                raise StoreError(str(e)) from e
            try:
                _ = message.body
            except CompressionError:
                message.body = message.stored_body
            yield message
    if reader.problem:
        raise StoreError(f"the log can't be read any further than {reader.end}: {reader.problem}")


def _start(log: OfflineLog, begin_ms: int) -> int:
    """Returns the start of the last file whose first record was stored before `begin_ms`."""
    start = log.min_offset
    for file in log.files:
        first = next(iter(log.reader(file.base)), None)
        if first is None or first.store_timestamp >= begin_ms:
            break
        start = file.base
    return start
