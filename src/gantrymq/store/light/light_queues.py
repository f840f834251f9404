"""All light queues of a store (`LmqDispatch`, `RocksDBConsumeQueueStore.dispatchLMQ`).

A message that names light queues gets a queue offset in each of them when it is appended. The record has these offsets
as a property, so the commit log is the only source of the units:

- A master adds the units when it appends the record.
- A slave, and a store that is opened, read new records of the log and add the units of those with the property.
- New units are committed to the database in batches, with the physical offset up to which the database is complete.
- If the database is missing or damaged, all units are read from the log again.

Light queues stay when their messages have expired, so that their offsets go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from weakref import WeakValueDictionary

from gantrymq.background.report import JobReport
from gantrymq.errors import RecordError, StoreError
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.multi_dispatch import (
    OFFSET_MARK,
    allows_light_queues,
    is_light_queue,
    queue_offsets,
)
from gantrymq.protocol.properties import TAGS, find_property
from gantrymq.protocol.record import Record
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED
from gantrymq.protocol.topic_name import LIGHT_QUEUE_PREFIX
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.consume_queue import Unit
from gantrymq.store.flusher import Flusher
from gantrymq.store.light.light_queue import LightQueue
from gantrymq.store.light.unit_database import NewUnit, UnitDatabase
from gantrymq.store.log_scan import look_for_records
from gantrymq.store.message_writer import PutResult
from gantrymq.store.preallocation import Preallocation
from gantrymq.store.queue_mappings import QueueMappings
from gantrymq.system import clock

log = logging.getLogger(__name__)

#: Number of light queues that stay in memory when nobody uses them. One takes about 600 bytes.
MAX_CACHED = 100_000
#: Number of units that one transaction commits. It takes about 3 ms.
_MOST_PENDING = 500
#: Time per round to delete expired units, in seconds.
_SLICE_S = 0.02
_TAGS = TAGS.encode()


class LightQueues:
    """The light queues of `commit_log`, with units in `database`."""

    def __init__(self, commit_log: CommitLog, database: UnitDatabase, preallocation: Preallocation) -> None:
        #: Light queues that have received messages since the last `take_arrived`.
        self._arrived: dict[LightQueue, None] = {}
        self._log = commit_log
        self._database = database
        self._preallocation = preallocation
        self._mappings = QueueMappings()
        #: The light queues that somebody uses. Each name has one object, so that waiting pulls find it.
        self._used: WeakValueDictionary[str, LightQueue] = WeakValueDictionary()
        #: The light queues that came into use last.
        self._cached: dict[str, LightQueue] = {}
        self._pending: list[NewUnit] = []
        #: The light queues of these units.
        self._uncommitted: dict[LightQueue, None] = {}
        self._new_names: list[tuple[int, str]] = []
        self._next_id = 1
        self._is_open = self._is_slave = False
        #: Whether units come from the log: on a slave, and until the end of `open`.
        self._follows_log = True
        #: If so, the physical offset up to which records were read.
        self._read_to = 0
        #: The database's position, and the physical offset before which no units are left.
        self._position = 0
        self._expired_to = 0

    # -- lifecycle ----------------------------------------------------------------------------------------------

    def open(self, progress: Callable[[int], None] | None = None) -> None:
        """Opens the database, and adds the units that it lacks. Raises StoreError.

        `progress` is called with the physical offset up to which the log was read.
        """
        database, commit_log = self._database, self._log
        position = database.open()
        if position > commit_log.position:
            # A power failure has destroyed the end of the log.
            database.cut(commit_log.position)
            position = commit_log.position
        elif not self._is_of_log():
            log.warning("%s doesn't belong to the log, and is built anew", database.path)
            database.discard()
            position = database.open()
        self._next_id = database.largest_queue_id + 1
        self._position = position
        self._read_to = max(position, commit_log.min_offset)
        self.dispatch(commit_log.position, progress)
        self.flush()
        self._is_open = True
        self._follows_log = self._is_slave

    def _is_of_log(self) -> bool:
        """Returns whether the last unit points to a record that names its queue and offset."""
        last = self._database.last_unit()
        if last is None or last[2] < self._log.min_offset:
            return True
        name, queue_offset, physical_offset = last
        try:
            record = self._log.read(physical_offset)
        except (RecordError, StoreError):
            return False
        return queue_offsets(record.properties).get(name) == queue_offset

    def set_slave(self, is_slave: bool) -> None:
        """Sets the role. A slave gets its units from the log. Raises StoreError."""
        self._is_slave = is_slave
        if not self._is_open:
            return
        if not self._follows_log:
            self._read_to = self._log.position
        elif not is_slave:
            self.dispatch(self._log.position)
        self._follows_log = is_slave

    def close(self) -> None:
        """Closes the database. Units that are not committed are read from the log at the next `open`."""
        self._database.close()

    # -- queues -------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> LightQueue:
        """Returns a light queue. Without messages, it is empty. Raises StoreError."""
        queue = self._cached.get(name)
        if queue is None:
            queue = self._used.get(name)
            if queue is None:
                queue = LightQueue(name, self._database, self._mappings, self._preallocation)
                self._load(queue)
                self._used[name] = queue
            self._cached[name] = queue
            if len(self._cached) > MAX_CACHED:
                del self._cached[next(iter(self._cached))]
        if queue.log_begin < self._log.min_offset:
            queue.correct_min_offset(self._log.min_offset)
        return queue

    def _load(self, queue: LightQueue) -> None:
        row_id, end = self._database.find(queue.topic) or (None, 0)
        queue.begin_at(row_id, end)
        queue.correct_min_offset(self._log.min_offset)

    @property
    def queue_count(self) -> int:
        """Number of light queues that have had a message."""
        return self._next_id - 1

    def take_arrived(self) -> Collection[LightQueue]:
        """Returns the light queues that have received messages since the last call."""
        arrived, self._arrived = self._arrived, {}
        return arrived

    # -- adding units -------------------------------------------------------------------------------------------

    def named(self, names: list[str]) -> list[LightQueue | None]:
        """Returns the light queues with these names; None for a name that is no light queue's.

        Commits the new units if there are many. Raises StoreError if the database can't be used.
        """
        if len(self._pending) >= _MOST_PENDING:
            self.flush()
        if len(names) == 1 and names[0].startswith(LIGHT_QUEUE_PREFIX):
            # Saves 0.5 us.
            return [self.queue(names[0])]
        return [self.queue(name) if is_light_queue(name) else None for name in names]

    def add(self, queues: list[LightQueue | None], result: PutResult, code: int) -> None:
        """Adds the units of a record that was appended."""
        unit = result.physical_offset, result.size, code
        if len(queues) == 1 and queues[0] is not None:
            self._add(queues[0], unit)
            return
        for queue in dict.fromkeys(queues):
            if queue is not None:
                self._add(queue, unit)

    def dispatch(self, until: int, progress: Callable[[int], None] | None = None) -> Collection[LightQueue]:
        """Adds the units of the records before the physical offset `until`, if units come from the log.

        Returns the light queues with new messages. Raises StoreError. The caller may try again.
        """
        if not self._follows_log:
            return ()
        read_to = max(self._read_to, self._log.min_offset)
        for record in look_for_records(self._log, OFFSET_MARK, read_to, until):
            if record is not None:
                self._add_units_of(record)
            elif len(self._pending) >= _MOST_PENDING:
                self.flush()
            if progress is not None:
                progress(self._read_to)
        self._read_to = max(until, read_to)
        return self.take_arrived()

    def dispatch_copied(self, until: int) -> Collection[LightQueue]:
        """Does the same as `dispatch`, but only logs errors. The next call then tries again."""
        try:
            return self.dispatch(until)
        except (StoreError, RecordError) as e:
            log.error("light queues lag behind the log: %s", e)
            return ()

    def _add_units_of(self, record: Record) -> None:
        if record.sys_flag & TRANSACTION_PREPARED or not allows_light_queues(record.topic.decode(errors="replace")):
            return
        unit = record.physical_offset, record.size, tags_code(find_property(record.properties, _TAGS) or b"")
        for name, offset in queue_offsets(record.properties).items():
            queue = self.queue(name)
            if offset != queue.max_offset:
                self._begin_at(queue, offset)
            self._add(queue, unit)
        self._read_to = record.physical_offset + record.size

    def _begin_at(self, queue: LightQueue, offset: int) -> None:
        """Makes `offset` the next offset of a queue, because a record has it. Drops the units from there on.

        The offset can be greater because the log of this broker begins later. It is lower if a client has set the
        property itself, in a message that the master did not dispatch. The last record is right.
        """
        self.flush()
        if queue.row_id is not None and offset < queue.max_offset:
            self._database.cut_queue(queue.row_id, offset)
        if queue.min_offset < min(offset, queue.max_offset):
            queue.begin_at(queue.row_id, offset)
        else:
            queue.begin_after_gap(offset)

    def _add(self, queue: LightQueue, unit: Unit) -> None:
        if queue.row_id is None:
            queue.row_id = self._next_id
            self._next_id += 1
            self._new_names.append((queue.row_id, queue.topic))
        offset = queue.max_offset
        self._pending.append((queue.row_id, offset, *unit))
        queue.add(unit)
        self._uncommitted[queue] = None
        self._arrived[queue] = None

    # -- the database -------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Commits the new units. Raises StoreError."""
        position = self._read_to if self._follows_log else self._log.position
        if not self._pending and position == self._position:
            return
        self._database.commit(self._new_names, self._pending, position)
        self._position = position
        for queue in self._uncommitted:
            queue.committed()
        self._new_names, self._pending, self._uncommitted = [], [], {}

    def expire(self) -> bool:
        """Deletes units of expired records for some time. Returns whether there are more. Raises StoreError."""
        begin = self._log.min_offset
        if self._expired_to == begin:
            return False
        # New units can be of expired records, too.
        self.flush()
        deadline = clock.monotonic() + _SLICE_S
        while self._expired_to < begin and clock.monotonic() < deadline:
            if not self._database.expire(begin):
                self._expired_to = begin
        return self._expired_to < begin

    def log_was_cut(self) -> None:
        """Drops the units after the end of the log. Raises StoreError."""
        end = self._log.position
        self._new_names, self._pending, self._uncommitted = [], [], {}
        self._read_to = self._position = min(self._read_to, self._position, end)
        self._database.cut(end)
        for queue in list(self._used.values()):
            queue.begin_at(None, 0)
            self._load(queue)


class LightQueueFlusher(Flusher):
    """The thread that flushes the database to disk."""

    def __init__(self, database: UnitDatabase, commit_log: CommitLog, interval_s: float, report: JobReport) -> None:
        super().__init__("light queue flusher", commit_log, interval_s, report)
        self._database = database

    def _round(self) -> None:
        self._database.checkpoint()
