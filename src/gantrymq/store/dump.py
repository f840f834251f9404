"""Reads the messages of a store's log, or of a file of a compaction log, without opening the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from struct import Struct

from gantrymq.errors import CompressionError, RecordError, StoreError
from gantrymq.protocol.command import MAX_FRAME_LENGTH
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.record import BLANK_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, Record, decode_record
from gantrymq.store.config import StoreConfig
from gantrymq.store.index_keys import keys_of
from gantrymq.store.mapped_file import store_error
from gantrymq.store.offline import OfflineLog
from gantrymq.system import files

#: Size and magic number of a record.
_HEAD = Struct(">iI")
#: Maximum size of a record of a compaction log, in bytes. A broker receives and sends a message in one frame.
_MAX_RECORD_SIZE = MAX_FRAME_LENGTH


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
                yield _message(record)
            except RecordError as e:
                raise StoreError(str(e)) from e
    if reader.problem:
        raise StoreError(f"the log can't be read any further than {reader.end}: {reader.problem}")


def dump_compaction_log(path: Path, on_damage: Callable[[str], None]) -> Iterator[MessageExt]:
    """Yields the messages of one file of a compaction log, in their order (`DumpCompactionLogCommand`).

    At most one record is in memory. If a body can't be decompressed, it is returned as stored. A record with a wrong
    checksum is left out, and an invalid size or magic number ends the messages. `on_damage` is called with a
    description of either. Raises StoreError if the file can't be read or is not a regular file.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe waits for a writer.
        fd = files.open(path, files.O_RDONLY | files.O_CLOEXEC | files.O_NONBLOCK)
        try:
            if not S_ISREG(files.fstat(fd).st_mode):
                raise StoreError(f"can't read {path}: not a regular file")
            position = 0
            while len(head := files.pread(fd, _HEAD.size, position)) == _HEAD.size:
                size, magic = _HEAD.unpack(head)
                if not size or magic == MAGIC_BLANK:
                    return
                if magic not in (MAGIC_V1, MAGIC_V2) or not BLANK_SIZE < size <= _MAX_RECORD_SIZE:
                    on_damage(f"{path} has no record at {position}: the rest of the file is not read")
                    return
                try:
                    yield _message(decode_record(files.pread(fd, size, position)))
                except RecordError as e:
                    on_damage(f"{path} has a damaged record at {position}, which is left out: {e}")
                position += size
        finally:
            files.close(fd)
    except OSError as e:
        raise store_error(e, f"can't read {path}") from e


def _message(record: Record) -> MessageExt:
    """Returns the message of a record. Raises RecordError."""
    message = MessageExt(record)
    try:
        _ = message.body
    except CompressionError:
        message.body = message.stored_body
    return message


def _start(log: OfflineLog, begin_ms: int) -> int:
    """Returns the start of the last file whose first record was stored before `begin_ms`."""
    start = log.min_offset
    for file in log.files:
        first = next(iter(log.reader(file.base)), None)
        if first is None or first.store_timestamp >= begin_ms:
            break
        start = file.base
    return start
