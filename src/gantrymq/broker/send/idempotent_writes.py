"""IdempotentWrites: stores each row of an idempotent writer only once, even if the writer sends it again.

A writer is one partition of a Spark write. `protocol/row_ids.py` defines rows, ids and checksums. A writer's rows
arrive at a queue in order. If the checksum shows that the rows are the same, the queue therefore has all rows up to the
writer's last stored row. The broker keeps only this last row for each writer and queue, in 400 bytes. A table of all
rows would use 150 bytes for each row.

The table is derived from the log (`log_table`), because each message contains its id. config/gantryWriters.json is
written before the first row is stored. Without this file, the table is empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

from gantrymq.broker.append import Appender
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.send.idempotent_rows import (
    ROW_ID,
    SEQUENCE,
    Rows,
    count_known,
    lost_rows,
    other_queues,
    other_rows,
    row_of,
    sent_row,
    without,
)
from gantrymq.broker.send.log_table import LogTable
from gantrymq.broker.send.write_ids import WriteIds, Written, key_of
from gantrymq.broker.tables import in_pieces
from gantrymq.errors import IllegalMessage, RecordError, RequestRefused, StoreError
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import GetWriterQueuesRequestHeader, GetWriterQueuesResponseHeader
from gantrymq.protocol.properties import find_property
from gantrymq.protocol.record import Record
from gantrymq.protocol.row_ids import (
    AFTER_FIELD,
    BEGINNING,
    MAX_ID_LENGTH,
    QUEUES_FIELD,
    RowId,
    decode_place,
    decode_row_id,
    decode_sequence,
    is_queue_list,
    target_of,
)
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.record_batch import RecordBatch
from gantrymq.system import files
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

FILE_NAME = "gantryWriters.json"
#: The file is rewritten each time the log has grown by this size, in bytes. A restart reads the log after the file's
#: position.
_LOG_BYTES = 64 * 1024 * 1024
#: Maximum number of queues that one step of a request looks up.
_QUEUES_AT_ONCE = 500


class IdempotentWrites(LogTable):
    """Handles the idempotent writes of one broker, and keeps their table."""

    def __init__(self, context: BrokerContext, *, appender: Appender) -> None:
        super().__init__(
            context,
            appender=appender,
            file_name=FILE_NAME,
            mark=b"\x02" + SEQUENCE + b"\x01",
            entries="what idempotent writers have written",
            forgetting="forget idempotent writers",
        )
        self._long_requests = context.long_requests
        self.table = WriteIds()
        self._has_file = False
        #: (topic, queue id) -> the queue at the last request. If the store has another object, the queue was deleted.
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        #: Topic -> largest queue id in the table.
        self._last_queues: dict[str, int] = {}
        context.events.topics_deleted.subscribe(lambda names, queues: self._topics_deleted(names))

    def __len__(self) -> int:
        return len(self.table.ranges)

    def handlers(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.GET_WRITER_QUEUES: self._get_queues}

    # -- lifecycle ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        backup = self._path.with_name(self._path.name + ".bak")
        self._has_file = files.exists(self._path) or files.exists(backup)
        super().load()

    async def become_slave(self) -> None:
        """Also creates the file. The slave's log can have rows, and the file makes a start as master look for them."""
        await super().become_slave()
        if not self._has_file:
            self._has_file = True
            self._file.write_soon()

    @property
    def _is_needed(self) -> bool:
        return self._has_file

    def _load_table(self) -> int | None:
        table = self._file.load(WriteIds, can_be_rebuilt=True)
        if table is None:
            return None
        self.table = table
        for key in table.ranges:
            topic, _, rest = key.partition("@")
            queue_id = rest.partition("@")[0]
            if queue_id.isdecimal():
                self._has_queue(topic, int(queue_id))
        return table.position

    def _clear(self, position: int) -> None:
        self.table = WriteIds(position)

    def _keep_ms(self) -> int:
        return self._config.idempotent_writer_keep_time

    def _forget(self) -> int:
        return self.table.forget(now_ms() - self._keep_ms())

    def _learn(self, record: Record) -> None:
        """Adds the row of a record to the table, if it is newer than the writer's entry."""
        topic, queue_id = record.topic.decode(errors="replace"), record.queue_id
        chain = decode_sequence(find_property(record.properties, SEQUENCE) or b"", target_of(topic, queue_id))
        queue = self._store.find_queue(topic, queue_id)
        if chain is None or queue is None:
            return
        unit = queue.unit(record.queue_offset)
        if unit is None or unit[:2] != (record.physical_offset, record.size):
            return
        try:
            row = decode_row_id(find_property(record.properties, ROW_ID) or b"")
        except IllegalMessage:
            return
        key = key_of(topic, queue_id, row.writer)
        before = self.table.ranges.get(key)
        if before is None or before[:2] < (row.batch, row.row):
            queues = before.queues if before is not None and before.batch == row.batch else ""
            written = Written(row.batch, row.row, chain, record.queue_offset, record.store_timestamp, queues)
            self.table.put(key, written, self._config.idempotent_writer_max_num)
            self._has_queue(topic, queue_id)

    def _encode(self) -> Iterator[bytes]:
        if self._is_current:
            self.table.read_to(self._store.max_physical_offset)
        return in_pieces(self.table)

    def _look(self) -> float | None:
        if self._forget() or self._store.max_physical_offset - self.table.position > _LOG_BYTES:
            self._file.changed()
        return None

    # -- requests -----------------------------------------------------------------------------------------------

    def rows(self, request: RemotingCommand, batch: RecordBatch) -> Rows:
        """Returns the rows of a request, and which of them are new.

        Raises RequestRefused if a row is invalid, or if the rows neither continue nor repeat the rows of the queue.
        """
        topic, queue_id = batch.queue.topic, batch.queue.queue_id
        try:
            after = decode_place(request.ext_fields.get(AFTER_FIELD, ""))
        except IllegalMessage as e:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(e)) from e
        first, _ = sent_row(batch.records[0])
        last, chain = sent_row(batch.records[-1], target_of(topic, queue_id))
        if first[:2] != last[:2] or not after.row < first.row <= last.row:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"rows {first} to {last} after {after.row} are no part of a writer's rows"
            )
        self._look_at_queue(batch.queue)
        key = key_of(topic, queue_id, last.writer)
        written = self.table.ranges.get(key)
        if written is not None and not self._is_there(batch.queue, last.writer, written):
            written = None
        if written is None and after != BEGINNING and len(self.table.ranges) < self._config.idempotent_writer_max_num:
            # The table is not full, so no entry of the writer was dropped. The rows themselves are lost.
            raise lost_rows(last, after, BEGINNING)
        queues = _listed_queues(request)
        if written is not None and written.batch == last.batch:
            if queues and written.queues and queues != written.queues:
                raise other_queues(last, queues, written)
            queues = queues or written.queues
        known = 0 if written is None else count_known(written, first, last, after, batch)
        rows = Rows(key, batch.queue, last, chain, len(batch), batch, last.row, queues=queues)
        if written is None or not known:
            return rows
        if last.row == written.row and chain != written.chain:
            raise other_rows(last, written)
        if known < len(batch):
            return rows._replace(new=without(batch, known))
        offset = written.queue_offset - len(batch) + 1
        is_last = last.row == written.row and self._row_at(batch.queue, offset) == first
        return rows._replace(new=None, last_row=written.row, first_offset=offset if is_last else -1)

    @property
    def is_begun(self) -> bool:
        """Whether the file exists. Rows are stored only after that: without the file, a start does not read the log."""
        return self._has_file

    async def begin(self) -> None:
        """Creates the file. Raises StoreError."""
        self._file.changed()
        await self._file.written()
        if not self._has_file:
            self._has_file = True
            self._looking.start()

    def append(self, rows: Rows) -> tuple[int, list[int]]:
        """Stores the new rows. Returns the queue offset of the first row and the physical offsets of all rows.

        Returns -1 and [] if the queue already had some of the rows, whose offsets are unknown. The response then has no
        msgId. Raises as `Appender.append_batch` does.
        """
        if rows.new is None:
            units = [rows.queue.unit(rows.first_offset + i) for i in range(rows.total if rows.first_offset >= 0 else 0)]
            return rows.first_offset, [unit[0] for unit in units if unit is not None]
        first_offset = rows.queue.max_offset
        offsets = self._appender.append_batch(rows.new)
        now = now_ms()
        written = Written(rows.last.batch, rows.last.row, rows.chain, rows.queue.max_offset - 1, now, rows.queues)
        dropped = self.table.put(rows.key, written, self._config.idempotent_writer_max_num)
        self._has_queue(rows.queue.topic, rows.queue.queue_id)
        self._file.changed()
        if dropped is not None and dropped.at_ms >= now - self._config.idempotent_writer_keep_time:
            log.warning(
                "more than %d idempotent writers and queues (idempotentWriterMaxNum): the oldest one, of %d s ago, is "
                "forgotten, what it sends again is stored again",
                self._config.idempotent_writer_max_num,
                (now - dropped.at_ms) // 1000,
            )
        return (first_offset, offsets) if len(offsets) == rows.total else (-1, [])

    def _get_queues(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the target queues of a writer's batch, if the broker has rows of this batch."""
        header = request.read_header(GetWriterQueuesRequestHeader)
        if len(header.writer) > MAX_ID_LENGTH:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the writer has more than {MAX_ID_LENGTH} characters")
        if not self.is_read:
            self._reading.start(0.0)
            raise self._still_reading()
        return self._long_requests.run(connection, request, self._queues_of(header))

    def _queues_of(self, header: GetWriterQueuesRequestHeader) -> Steps:
        for queue_id in range(self._last_queues.get(header.topic, -1) + 1):
            if not (queue_id + 1) % _QUEUES_AT_ONCE:
                yield
            written = self.table.ranges.get(key_of(header.topic, queue_id, header.writer))
            if written is None or written.batch != header.batch or not written.queues:
                continue
            queue = self._store.find_queue(header.topic, queue_id)
            if queue is not None and self._is_there(queue, header.writer, written):
                return RemotingCommand.response(header=GetWriterQueuesResponseHeader(queues=written.queues))
        return RemotingCommand.response(header=GetWriterQueuesResponseHeader())

    def _has_queue(self, topic: str, queue_id: int) -> None:
        self._last_queues[topic] = max(queue_id, self._last_queues.get(topic, 0))

    def _topics_deleted(self, names: Collection[str]) -> None:
        """Removes all entries of deleted topics."""
        had_rows = {name for name in names if self._last_queues.pop(name, None) is not None}
        if not had_rows:
            return
        for place in [place for place in self._queues if place[0] in had_rows]:
            del self._queues[place]
        for key in [key for key in self.table.ranges if key.partition("@")[0] in had_rows]:
            del self.table.ranges[key]
        self._file.changed()

    def _look_at_queue(self, queue: ConsumeQueue) -> None:
        """Removes all entries of a queue that was deleted because it was unused, and created again."""
        place = queue.topic, queue.queue_id
        before = self._queues.get(place)
        if before is not queue:
            self._queues[place] = queue
            if before is not None:
                start = key_of(*place, "")
                for key in [key for key in self.table.ranges if key.startswith(start)]:
                    del self.table.ranges[key]
                self._file.changed()

    def _is_there(self, queue: ConsumeQueue, writer: str, written: Written) -> bool:
        """Returns whether the queue has the row. Its topic may have been deleted and created again."""
        if written.queue_offset < queue.log_min_offset:
            # The log has lost the row. The entries of a deleted queue were removed.
            return True
        row = self._row_at(queue, written.queue_offset)
        return row is not None and row == (writer, written.batch, written.row)

    def _row_at(self, queue: ConsumeQueue, queue_offset: int) -> RowId | None:
        """Returns the id of the row at a queue offset. None if there is no row."""
        unit = queue.unit(queue_offset)
        if unit is None:
            return None
        try:
            return row_of(self._store.record_bytes(unit[0]))[0]
        except (IllegalMessage, RecordError, StoreError):
            return None


def _listed_queues(request: RemotingCommand) -> str:
    """The field `gantryQueues` of a request; "" if it is missing or invalid."""
    text = request.ext_fields.get(QUEUES_FIELD, "")
    return _shared(text) if text and is_queue_list(text) else ""


@lru_cache(maxsize=1024)
def _shared(text: str) -> str:
    """Returns one object for equal strings, to save memory. `sys.intern` of Python 3.12 never frees its strings."""
    return text
