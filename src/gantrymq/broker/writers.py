"""Idempotent writers: of each writer and queue the last row, so that rows which are sent again are dropped.

What rows, ids and checksums are is said in `protocol/row_ids.py`. A writer's rows come to a queue in order, so it has
all up to its last one, if the checksum says that they were the same. The table is made from the log and is nothing
but a shortcut to it: each message has its own id. config/gantryWriters.json has the table as it was at a physical
offset; at the start what the log has after it is added. Without the file there is nothing to remember: it is written
before the first such row is stored.

The alternative that lost: remembering each row, as a reader's `deduplicate` does: 150 bytes a row in place of 400 a
writer and queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import NamedTuple

import msgspec

from gantrymq.background.jobs import Jobs
from gantrymq.broker.appender import Appender
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.part import Part
from gantrymq.broker.saving import Saving, in_pieces
from gantrymq.errors import IllegalMessage, RecordError, RequestRefused, StoreError
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.properties import find_property
from gantrymq.protocol.record import Record, record_properties
from gantrymq.protocol.row_ids import (
    AFTER_FIELD,
    BEGINNING,
    GANTRY_ID,
    GANTRY_SEQ,
    Place,
    RowId,
    decode_place,
    decode_row_id,
    decode_sequence,
    target_of,
)
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.record_batch import RecordBatch
from gantrymq.system import files
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

FILE_NAME = "gantryWriters.json"
_ID = GANTRY_ID.encode()
_SEQ = GANTRY_SEQ.encode()
#: How often it is looked what isn't needed any more, s.
_LOOK_S = 10.0
#: The table is written anew when the log has grown by so much, for a start has to read what came after it.
_LOG_BYTES = 64 * 1024 * 1024


class Written(NamedTuple):
    """What a writer wrote last into a queue: `queue_offset` is its last row's, `at_ms` when it was stored."""

    batch: int
    row: int
    chain: int
    queue_offset: int
    at_ms: int


class WriterTable(msgspec.Struct):
    """The file's content: all up to the physical offset `position`. What was written last is at the end.

    A key is `topic@queue@writer`.
    """

    position: int = 0
    ranges: dict[str, Written] = {}

    def put(self, key: str, written: Written, most: int) -> Written | None:
        """Remembers it, in place of the oldest ones if there would be more than `most`; returns the last of these."""
        self.ranges.pop(key, None)
        self.ranges[key] = written
        dropped = None
        while len(self.ranges) > most:
            dropped = self.ranges.pop(next(iter(self.ranges)))
        return dropped

    def forget(self, before_ms: int) -> int:
        """Forgets what was written before; how many that were."""
        old = []
        for key, written in self.ranges.items():
            if written.at_ms >= before_ms:
                break
            old.append(key)
        for key in old:
            del self.ranges[key]
        return len(old)


class Rows(NamedTuple):
    """The rows of one request: `new` are those that the queue hasn't got yet, `total` is how many there are in all.

    `last_row` is what the queue has when `new` is stored. `first_offset` is the queue offset of the first row when none
    is new, as far as it is known, else -1.
    """

    key: str
    queue: ConsumeQueue
    last: RowId
    chain: int
    total: int
    new: RecordBatch | None
    last_row: int
    first_offset: int = -1


class Writers(Part):
    """The idempotent writers of one broker."""

    def __init__(self, config: BrokerConfig, path: Path, appender: Appender, jobs: Jobs, *, saving: Saving) -> None:
        self._config = config
        self._path = path
        self._appender = appender
        self._store = appender.store
        self._table = WriterTable()
        self._file = saving.file(path, self._encode, follows_log=True)
        self._has_file = False
        self._looking = jobs.repeating("forget idempotent writers", self._look, _LOOK_S)

    def __len__(self) -> int:
        return len(self._table.ranges)

    # -- life ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """The store is open. Raises StoreError."""
        backup = self._path.with_name(self._path.name + ".bak")
        self._has_file = files.exists(self._path) or files.exists(backup)
        if not self._has_file:
            return
        table = self._file.load(WriterTable, can_be_rebuilt=True)
        keep_from = now_ms() - self._config.idempotent_writer_keep_time
        start = None if table is None else self._begins(table.position)
        if table is not None and start is not None:
            self._read_log(table, start)
        else:
            table, start = WriterTable(), self._store.start_of(keep_from)
            log.warning(
                "%s doesn't fit the log: idempotent writers are made from the log from %d on", self._path, start
            )
            self._read_log(table, start)
            self._file.write_now()
        table.forget(keep_from)

    def _read_log(self, table: WriterTable, start: int) -> None:
        self._table = table
        try:
            for record in self._store.records_with(b"\x02" + _SEQ + b"\x01", start):
                self._learn(record)
        except RecordError as e:
            log.error("idempotent writers: the log can't be read on: %s", e)

    async def start(self) -> None:
        if self._has_file:
            self._looking.start()

    async def stop(self) -> None:
        self._looking.cancel()

    def _begins(self, position: int) -> int | None:
        """Where to read on from; None if the file isn't this log's."""
        store = self._store
        if position < store.min_physical_offset or position == store.max_physical_offset:
            return max(position, store.min_physical_offset)
        try:
            record = next(store.records_with(b"", position), None)
        except RecordError:
            return None
        # What is left at the end of a file of the log has no record.
        end_of_file = position - position % store.config.mapped_file_size_commit_log
        end_of_file += store.config.mapped_file_size_commit_log
        return position if record is not None and record.physical_offset in (position, end_of_file) else None

    def _learn(self, record: Record) -> None:
        """Takes over what a record of the log says."""
        topic, queue_id = record.topic.decode(errors="replace"), record.queue_id
        chain = decode_sequence(find_property(record.properties, _SEQ) or b"", target_of(topic, queue_id))
        queue = self._store.find_queue(topic, queue_id)
        if chain is None or queue is None:
            return
        unit = queue.unit(record.queue_offset)
        if unit is None or unit[:2] != (record.physical_offset, record.size):
            return
        try:
            row = decode_row_id(find_property(record.properties, _ID) or b"")
        except IllegalMessage:
            return
        key = _key(topic, queue_id, row.writer)
        before = self._table.ranges.get(key)
        if before is None or before[:2] < (row.batch, row.row):
            written = Written(row.batch, row.row, chain, record.queue_offset, record.store_timestamp)
            self._table.put(key, written, self._config.idempotent_writer_max_num)

    def _encode(self) -> Iterator[bytes]:
        self._table.position = self._store.max_physical_offset
        return in_pieces(self._table)

    def _look(self) -> None:
        forgotten = self._table.forget(now_ms() - self._config.idempotent_writer_keep_time)
        if forgotten or self._store.max_physical_offset - self._table.position > _LOG_BYTES:
            self._file.changed()

    # -- requests -----------------------------------------------------------------------------------------------

    def rows(self, request: RemotingCommand, batch: RecordBatch) -> Rows:
        """Which rows of a request are to be stored.

        Raises RequestRefused for rows that aren't those that the queue has, or none at all.
        """
        topic, queue_id = batch.queue.topic, batch.queue.queue_id
        try:
            after = decode_place(request.ext_fields.get(AFTER_FIELD, ""))
        except IllegalMessage as e:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(e)) from e
        first, _ = self._sent_row(batch.records[0])
        last, chain = self._sent_row(batch.records[-1], target_of(topic, queue_id))
        if first[:2] != last[:2] or not after.row < first.row <= last.row:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"rows {first} to {last} after {after.row} are no part of a writer's rows"
            )
        key = _key(topic, queue_id, last.writer)
        written = self._table.ranges.get(key)
        if written is not None and not self._is_there(batch.queue, last.writer, written):
            written = None
        if written is None and after != BEGINNING and len(self._table.ranges) < self._config.idempotent_writer_max_num:
            # None had to make room for others: it would be known.
            raise _lost_rows(last, after, BEGINNING)
        known = 0 if written is None else self._known(written, first, last, after, batch)
        rows = Rows(key, batch.queue, last, chain, len(batch), batch, last.row)
        if written is None or not known:
            return rows
        if last.row == written.row and chain != written.chain:
            raise _other_rows(last, written)
        if known < len(batch):
            return rows._replace(new=_without(batch, known))
        offset = written.queue_offset - len(batch) + 1
        is_last = last.row == written.row and self._row_at(batch.queue, offset) == first
        return rows._replace(new=None, last_row=written.row, first_offset=offset if is_last else -1)

    @property
    def is_begun(self) -> bool:
        """Whether there is a file, without which the log isn't read at the start; no row may be stored before."""
        return self._has_file

    async def begin(self) -> None:
        """Makes the file. Raises StoreError."""
        self._file.changed()
        await self._file.written()
        if not self._has_file:
            self._has_file = True
            self._looking.start()

    def append(self, rows: Rows) -> tuple[int, list[int]]:
        """Stores what is new; the queue offset of the first row and the physical offsets of all.

        When the queue had some of them, and it isn't known where, these are -1 and [] (the answer has no msgId then).
        Raises as `Appender.append_batch` does.
        """
        if rows.new is None:
            units = [rows.queue.unit(rows.first_offset + i) for i in range(rows.total if rows.first_offset >= 0 else 0)]
            return rows.first_offset, [unit[0] for unit in units if unit is not None]
        first_offset = rows.queue.max_offset
        offsets = self._appender.append_batch(rows.new)
        now = now_ms()
        written = Written(rows.last.batch, rows.last.row, rows.chain, rows.queue.max_offset - 1, now)
        dropped = self._table.put(rows.key, written, self._config.idempotent_writer_max_num)
        self._file.changed()
        if dropped is not None and dropped.at_ms >= now - self._config.idempotent_writer_keep_time:
            log.warning(
                "more than %d idempotent writers and queues (idempotentWriterMaxNum): the oldest one, of %d s ago, is "
                "forgotten, what it sends again is stored again",
                self._config.idempotent_writer_max_num,
                (now - dropped.at_ms) // 1000,
            )
        return (first_offset, offsets) if len(offsets) == rows.total else (-1, [])

    def _known(self, written: Written, first: RowId, last: RowId, after: Place, batch: RecordBatch) -> int:
        """How many of the rows the queue has. Raises RequestRefused when it has others."""
        if written.batch < first.batch:
            if after != BEGINNING:
                raise _lost_rows(last, after, BEGINNING)
            return 0
        if written.batch > first.batch:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"batch {first.batch} of the writer {first.writer} comes after its batch {written.batch}: was a "
                "checkpoint taken back? A query with a new checkpoint, or another txnAppId, is another writer",
            )
        if first.row > written.row:
            if after == (written.row, written.chain):
                return 0
            if after.row > written.row:
                raise _lost_rows(last, after, Place(written.row, written.chain))
            raise _other_rows(first, written)
        if last.row <= written.row:
            return len(batch)
        # Some are known: the rows are in order.
        low, high = 0, len(batch)
        while low < high:
            middle = (low + high) // 2
            if self._sent_row(batch.records[middle])[0].row <= written.row:
                low = middle + 1
            else:
                high = middle
        row, chain = self._sent_row(batch.records[low - 1], target_of(batch.queue.topic, batch.queue.queue_id))
        if (row.row, chain) != (written.row, written.chain):
            raise _other_rows(row, written)
        return low

    def _is_there(self, queue: ConsumeQueue, writer: str, written: Written) -> bool:
        """Whether the queue has the row, as far as can be told: its topic may have been made anew since."""
        if written.queue_offset < queue.min_offset:
            return True
        row = self._row_at(queue, written.queue_offset)
        return row is not None and row == (writer, written.batch, written.row)

    def _row_at(self, queue: ConsumeQueue, queue_offset: int) -> RowId | None:
        unit = queue.unit(queue_offset)
        if unit is None:
            return None
        try:
            return self._row(self._store.record_bytes(unit[0]))[0]
        except (IllegalMessage, RecordError, StoreError):
            return None

    def _sent_row(self, record: bytes, target: bytes | None = None) -> tuple[RowId, int]:
        """As `_row`. Raises RequestRefused."""
        try:
            return self._row(record, target)
        except IllegalMessage as e:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(e)) from e

    @staticmethod
    def _row(record: bytes, target: bytes | None = None) -> tuple[RowId, int]:
        """A record's row and, for a `target`, the checksum. Raises IllegalMessage."""
        properties = record_properties(record)
        row = decode_row_id(find_property(properties, _ID) or b"")
        if target is None:
            return row, 0
        chain = decode_sequence(find_property(properties, _SEQ) or b"", target)
        if chain is None:
            raise IllegalMessage(f"row {row.row} of {row.writer} has no {GANTRY_SEQ} for this queue")
        return row, chain


def _key(topic: str, queue_id: int, writer: str) -> str:
    return f"{topic}@{queue_id}@{writer}"


def _without(batch: RecordBatch, count: int) -> RecordBatch:
    """The batch but for its first records."""
    rest = copy(batch)
    rest.records, rest.sizes, rest.tags_codes = batch.records[count:], batch.sizes[count:], batch.tags_codes[count:]
    return rest


def _lost_rows(row: RowId, after: Place, had: Place) -> RequestRefused:
    return RequestRefused(
        ResponseCode.ILLEGAL_OPERATION,
        f"batch {row.batch} of the writer {row.writer} goes on after row {after.row}, and the queue has its rows up to "
        f"{had.row}: the broker has lost some, they must be sent again",
    )


def _other_rows(row: RowId, written: Written) -> RequestRefused:
    return RequestRefused(
        ResponseCode.ILLEGAL_OPERATION,
        f"batch {row.batch} of the writer {row.writer} comes with other rows, or in another order, than when it was "
        f"sent first, up to row {written.row}: they can't be told apart. Make the same rows in the same order (sort "
        "within the partitions before the write, no random functions), or leave exactlyOnce out, and rows may repeat",
    )
