"""All light queues of a store (`LmqDispatch`, `RocksDBConsumeQueueStore.dispatchLMQ`).

A message that names light queues gets a queue offset in each of them when it is appended. The record has these offsets
as a property, so the commit log is the only source of the units:

- A master adds the units when it appends the record.
- A slave, and a store that is opened, read new records of the log and add the units of those with the property.
- New units are committed to the database in batches, with the physical offset up to which the database is complete.
- If the database is missing or damaged, all units are read from the log again.

An error of the database never prevents the start, the stop, a role change or an ordinary message. `catch_up` tries
again. While units are missing, light queues can't be read, and messages for them are refused.

Light queues stay when their messages have expired, so that their offsets go on.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from gantrymq.background.report import JobReport
from gantrymq.errors import RecordError, StoreError, StoreFull
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
from gantrymq.store.consume_queue import UNIT, Unit
from gantrymq.store.flusher import Flusher
from gantrymq.store.light.light_collect import collect_light
from gantrymq.store.light.light_queue import LightQueue
from gantrymq.store.log_scan import LogScan
from gantrymq.store.message_writer import PutResult
from gantrymq.store.preallocation import Preallocation
from gantrymq.store.queue_mappings import QueueMappings
from gantrymq.system import clock

if TYPE_CHECKING:
    from gantrymq.store.light.unit_database import NewUnit, UnitDatabase

log = logging.getLogger(__name__)

#: Number of light queues that stay in memory when nobody uses them. One takes about 600 bytes.
MAX_CACHED = 100_000
#: Number of units that one transaction commits. It takes about 3 ms.
_AT_ONCE = 500
#: If the database can't be written, this number of units waits in memory, about 50 MB. Then messages for light queues
#: are refused.
_MOST_PENDING = 200_000
#: Time per round of `catch_up` and `expire`, in seconds, and the pause between two rounds if there is more to do.
_SLICE_S = 0.02
_PAUSE_S = 0.1
#: Longest time that a change to the role of a master reads records, in seconds. `catch_up` reads the rest.
_PROMOTION_S = 1.0
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
        #: The light queues that came into use last. A dict would search for its first entry among deleted ones.
        self._cached: OrderedDict[str, LightQueue] = OrderedDict()
        #: The units that are not committed, in the order of the log.
        self._pending: list[NewUnit] = []
        #: The light queues of these units, by their ids.
        self._uncommitted: dict[int, LightQueue] = {}
        self._new_names: list[tuple[int, str]] = []
        #: Whether the last commit failed. Only `catch_up` tries again.
        self._has_failed = False
        self._next_id = 1
        self._count = 0
        self._is_slave = False
        #: Whether the database is open.
        self._has_database = False
        #: Whether units of this broker's own log are missing: from the start to the end of `open`, and after an error.
        self._is_behind = True
        #: If units come from the log: the physical offset up to which records were read, and the offset to reach.
        self._read_to = self._read_until = 0
        #: The database's position, and the physical offset before which no units are left.
        self._position = 0
        self._expired_to = 0
        #: Records before this physical offset can be read a second time, to build the database anew.
        self._seen_to = 0
        #: Called with each light queue that begins anew on a slave, and the physical offset of its first record.
        #: Offsets in the old queue are outdated.
        self.restart_listeners: list[Callable[[LightQueue, int], None]] = []
        #: The end of the log when it was cut, until the database has been cut there.
        self._cut_at: int | None = None
        #: The end of the log after a crash or a cut: see `ConsumeQueue.recovered_end`. None if it has lost nothing.
        self._recovered_at: int | None = None

    @property
    def _follows_log(self) -> bool:
        """Whether units come from the log: on a slave, and while units are missing."""
        return self._is_slave or self._is_behind

    # -- lifecycle ----------------------------------------------------------------------------------------------

    def open(self, progress: Callable[[int], None] | None = None, *, was_aborted: bool) -> None:
        """Opens the database, and adds the units that it lacks. If that fails, `catch_up` does it.

        `progress` is called with the physical offset up to which the log was read. `was_aborted` is true after a crash.
        """
        self._read_until = self._seen_to = self._log.position
        self._recovered_at = self._log.position if was_aborted else None
        try:
            self._open_database()
            self._read_log(self._log.position, progress)
            self._is_behind = False
            self._commit_all()
        except (StoreError, OSError) as e:
            self._failed(e)

    def forget_recovery(self) -> None:
        """Removes `recovered_end` from all queues, because the lost records were received again."""
        self._recovered_at = None
        for queue in list(self._used.values()):
            queue.set_recovered(None)

    def collector(self, topic: str) -> Callable[..., None]:
        """Returns the function that collects the records of a light queue, which have other queue offsets."""
        return partial(collect_light, topic)

    def flusher(self, interval_s: float, report: JobReport) -> LightQueueFlusher:
        """Returns a thread that flushes the units to disk every `interval_s` seconds, when it is started."""
        return LightQueueFlusher(self._database, self._log, interval_s, report)

    def _open_database(self) -> None:
        """Opens the database, or begins an empty one if it doesn't belong to the log. Raises StoreError or OSError."""
        database, commit_log = self._database, self._log
        position = database.open()
        if position > commit_log.position:
            # A power failure has destroyed the end of the log.
            database.cut(commit_log.position)
            position = commit_log.position
        if not self._is_of_log(position):
            log.warning("%s doesn't belong to the log, and is built anew", database.path)
            database.discard()
            position = database.open()
        self._next_id = database.largest_queue_id + 1
        self._count = database.count()
        self._position = position
        self._read_to = max(position, commit_log.min_offset)
        self._cut_at = None
        self._has_database = True

    def _is_of_log(self, position: int) -> bool:
        """Returns whether a record begins at the position, and the last unit's record names its queue and offset.

        Both may have expired. If the end of the log was replaced while the database was not cut, this is false.
        """
        commit_log = self._log
        if commit_log.min_offset < position < commit_log.position and not commit_log.begins_at(position):
            return False
        last = self._database.last_unit()
        if last is None or last[2] < commit_log.min_offset:
            return True
        name, queue_offset, physical_offset = last
        try:
            record = commit_log.read(physical_offset)
        except (RecordError, StoreError):
            return False
        return queue_offsets(record.properties).get(name) == queue_offset

    def set_slave(self, is_slave: bool) -> None:
        """Sets the role. A slave gets its units from the log. A new master that is not complete reads the rest soon."""
        was_slave, self._is_slave = self._is_slave, is_slave
        if is_slave and not was_slave:
            if not self._is_behind:
                self._read_to = self._log.position
            self._read_until = self._log.position
        elif was_slave and not is_slave:
            self._is_behind = True
            if self._has_database:
                try:
                    self._apply_cut()
                    self._is_behind = not self._read_log(self._log.position, deadline=clock.monotonic() + _PROMOTION_S)
                except StoreError as e:
                    self._failed(e)

    def close(self) -> None:
        """Commits the new units, and closes the database. If that fails, the next `open` reads them from the log."""
        if self._has_database:
            try:
                self._apply_cut()
                self._commit_all()
            except StoreError as e:
                self._failed(e)
        self._has_database = False
        self._database.close()

    def catch_up(self) -> float | None:
        """Repeats failed operations, and commits new units, for some time. Call it every second.

        Returns the time in seconds after which it has more to do, or None. Raises StoreError or OSError.
        """
        deadline = clock.monotonic() + _SLICE_S
        try:
            if self._database.is_damaged and self._has_database:
                self._begin_anew()
            if not self._has_database:
                self._is_behind = True
                self._open_database()
            self._apply_cut()
            has_more = self._commit(deadline)
            self._has_failed = False
            if self._follows_log:
                until = self._read_until if self._is_slave else self._log.position
                self._is_behind &= not self._read_log(until, deadline=deadline)
        except (StoreError, OSError) as e:
            # The caller logs the error.
            self._has_failed = True
            self._failed(e)
            raise
        return _PAUSE_S if has_more or self._is_behind else None

    def _failed(self, error: Exception) -> None:
        if not self._has_failed:
            log.error("light queues are unavailable or lag behind the log until this works: %s", error)
        self._has_failed = True
        if self._database.is_damaged:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Drops everything that came from the database, because it is damaged. `catch_up` opens an empty one."""
        self._seen_to = max(self._seen_to, self._end)
        self._has_database = False
        self._is_behind = True
        self._drop_pending()
        for queue in list(self._used.values()):
            queue.begin_at(None, 0)
            queue.mark_stale()
        self._database.close()

    # -- queues -------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> LightQueue:
        """Returns a light queue. Without messages, it is empty. Raises StoreError, also while units are missing."""
        if self._is_behind or self._cut_at is not None:
            self._check_complete()
        return self._queue(name)

    def _check_complete(self) -> None:
        """Raises StoreError while units are missing. Consumers would take their offsets for illegal ones."""
        if self._is_behind:
            raise StoreError("units of light queues are being read from the log")
        self._apply_cut()

    def _queue(self, name: str) -> LightQueue:
        queue = self._cached.get(name)
        if queue is None:
            queue = self._used.get(name)
            if queue is None:
                queue = LightQueue(name, self._database, self._mappings, self._preallocation)
                self._load(queue)
                self._used[name] = queue
            self._cached[name] = queue
            if len(self._cached) > MAX_CACHED:
                self._cached.popitem(last=False)
        if queue.log_begin < self._log.min_offset:
            if queue.is_stale:
                self._load(queue)
            else:
                queue.correct_min_offset(self._log.min_offset)
        return queue

    def _load(self, queue: LightQueue) -> None:
        row_id, end = self._database.find(queue.topic) or (None, 0)
        queue.begin_at(row_id, end)
        queue.correct_min_offset(self._log.min_offset)
        queue.set_recovered(self._recovered_at)

    @property
    def queue_count(self) -> int:
        """Number of light queues that have had a message and were not deleted."""
        return self._count

    def count(self, prefix: str) -> int:
        """Returns the number of light queues whose names begin with `prefix`. Raises StoreError."""
        self._check_complete()
        self._commit_all()
        return self._database.count(prefix)

    def last_places(self, prefix: str, after: str) -> list[tuple[str, int]]:
        """Returns the next light queues after a name, each with the physical offset of its last message, or -1.

        Reads at most some hundreds of names, in a few milliseconds. An empty result is the end. Raises StoreError.
        """
        self._check_complete()
        self._commit_all()
        return self._database.last_places(prefix, after, _AT_ONCE)

    def delete(self, name: str, before: int) -> bool:
        """Deletes a light queue, unless it has a message at or after the physical offset `before`.

        Returns whether it was deleted. Its next message has the offset 0 then. Raises StoreError.

        The records stay in the log, and slaves keep the queue. When they receive a message with the offset 0, they drop
        its earlier units, and call `restart_listeners`.
        """
        queue = self.queue(name)
        self._commit_all()
        last = queue.units(queue.max_offset - 1, 1)
        if last and UNIT.unpack(last)[0] >= before:
            return False
        if queue.row_id is not None:
            self._database.delete_queue(queue.row_id)
            self._count -= 1
        queue.begin_after_deletion()
        return True

    def take_arrived(self) -> Collection[LightQueue]:
        """Returns the light queues that have received messages since the last call."""
        arrived, self._arrived = self._arrived, {}
        return arrived

    # -- adding units -------------------------------------------------------------------------------------------

    def named(self, names: Sequence[str]) -> list[LightQueue | None]:
        """Returns the light queues with these names; None for a name that is no light queue's.

        Commits some units if there are many. Raises StoreFull if the message can't be stored now.
        """
        try:
            if len(self._pending) >= _AT_ONCE:
                self._commit_some()
            if len(names) == 1 and names[0].startswith(LIGHT_QUEUE_PREFIX):
                # Saves 0.5 us.
                return [self.queue(names[0])]
            return [self.queue(name) if is_light_queue(name) else None for name in names]
        except StoreError as e:
            self._failed(e)
            raise StoreFull("light queues are unavailable: the broker's log has the reason") from e

    def _commit_some(self) -> None:
        if not self._has_failed:
            try:
                self._commit(0.0)
            except StoreError as e:
                self._failed(e)
        if len(self._pending) >= _MOST_PENDING:
            raise StoreError(f"{len(self._pending)} units of light queues are not committed")

    def add(self, queues: list[LightQueue | None], result: PutResult, code: int) -> None:
        """Adds the units of a record that was appended."""
        unit = result.physical_offset, result.size, code
        if len(queues) == 1 and queues[0] is not None:
            self._add(queues[0], unit)
            return
        for queue in dict.fromkeys(queues):
            if queue is not None:
                self._add(queue, unit)

    def dispatch(self, until: int) -> Collection[LightQueue]:
        """Adds the units of the records that end before the physical offset `until`, if units come from the log.

        Returns the light queues with new messages. If that fails, the next call and `catch_up` try again.
        """
        if not self._follows_log:
            return ()
        self._read_until = until
        if self._has_database and not self._is_behind:
            try:
                self._apply_cut()
                self._read_log(until)
            except StoreError as e:
                self._failed(e)
        return self.take_arrived()

    def _read_log(self, until: int, progress: Callable[[int], None] | None = None, *, deadline: float = inf) -> bool:
        """Adds the units of the records that end before `until`. Returns False if the time ended. Raises StoreError."""
        while (begin := max(self._read_to, self._log.min_offset)) < until:
            scan = LogScan(self._log, OFFSET_MARK, begin, until)
            try:
                for record in scan:
                    if record is not None:
                        self._add_units_of(record)
                    self._read_to = scan.position
                    if len(self._pending) >= _AT_ONCE:
                        self._make_space()
                    if progress is not None:
                        progress(self._read_to)
                    if record is None and clock.monotonic() >= deadline:
                        return False
            except RecordError as e:
                file_size = self._log.file_size
                next_file = (scan.position // file_size + 1) * file_size
                log.error("light queues lack the messages up to the physical offset %d: %s", next_file, e)
                self._read_to = min(next_file, self._log.position)
                continue
            self._read_to = scan.position
            break
        return True

    def _make_space(self) -> None:
        """Commits some units. Raises StoreError if there are too many.

        If the disk is slow, and during `open`, this waits for it.
        """
        if len(self._pending) >= 10 * _AT_ONCE and self._database.must_checkpoint:
            self._database.checkpoint()
        self._commit_some()

    def _add_units_of(self, record: Record) -> None:
        if record.sys_flag & TRANSACTION_PREPARED or not allows_light_queues(record.topic.decode(errors="replace")):
            return
        unit = record.physical_offset, record.size, tags_code(find_property(record.properties, _TAGS) or b"")
        for name, offset in queue_offsets(record.properties).items():
            queue = self._queue(name)
            if offset != queue.max_offset:
                self._begin_at(queue, offset)
                if not offset and record.physical_offset >= self._seen_to:
                    for listener in self.restart_listeners:
                        listener(queue, record.physical_offset)
            self._add(queue, unit)
            if self._recovered_at is not None and record.physical_offset < self._recovered_at:
                queue.recovered_end = queue.max_offset

    def _begin_at(self, queue: LightQueue, offset: int) -> None:
        """Makes `offset` the next offset of a queue, because a record has it. Drops the units from there on.

        The offset can be greater because the log of this broker begins later. It is 0 if the master deleted the queue,
        and lower if a client has set the property itself, in a message that the master did not dispatch. The last
        record is right.
        """
        self._commit_all()
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
            self._count += 1
            self._new_names.append((queue.row_id, queue.topic))
        offset = queue.max_offset
        self._pending.append((queue.row_id, offset, *unit))
        queue.add(unit)
        self._uncommitted[queue.row_id] = queue
        self._arrived[queue] = None

    # -- the database -------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Commits all new units, however long it takes. Raises StoreError."""
        self._apply_cut()
        self._commit_all()

    def _commit_all(self) -> None:
        while self._commit(inf):
            self._database.checkpoint()

    def _commit(self, deadline: float) -> bool:
        """Commits new units, 500 or more, until the time ends or the disk must catch up. Returns whether more are left.

        Raises StoreError.
        """
        while self._pending or self._end != self._position:
            if self._database.must_checkpoint:
                return True
            self._commit_next()
            if clock.monotonic() >= deadline:
                break
        return bool(self._pending)

    @property
    def _end(self) -> int:
        """The physical offset up to which units were added."""
        return self._read_to if self._follows_log else self._log.position

    def _commit_next(self) -> None:
        count = min(_AT_ONCE, len(self._pending))
        units, position = self._pending[:count], self._end
        if count < len(self._pending):
            # The position is the start of a record, so a record's units are committed together.
            last = units[-1][2]
            units += takewhile(lambda unit: unit[2] == last, self._pending[count:])
            if len(units) < len(self._pending):
                position = self._pending[len(units)][2]
        # The ids of new queues ascend in the order of their first units.
        largest = max((unit[0] for unit in units), default=0)
        names = list(takewhile(lambda name: name[0] <= largest, self._new_names))
        self._database.commit(names, units, position)
        self._position = position
        del self._pending[: len(units)]
        del self._new_names[: len(names)]
        ends = {unit[0]: unit[1] + 1 for unit in units}
        for queue_id, end in ends.items():
            if self._uncommitted[queue_id].committed(end):
                del self._uncommitted[queue_id]

    def expire(self) -> bool:
        """Deletes units of expired records for some time. Returns whether there are more. Only logs errors."""
        begin = self._log.min_offset
        if self._expired_to == begin or not self._has_database or self._has_failed:
            return False
        deadline = clock.monotonic() + _SLICE_S
        try:
            # New units can be of expired records, too.
            self._apply_cut()
            if self._commit(deadline):
                return True
            while self._expired_to < begin and clock.monotonic() < deadline and not self._database.must_checkpoint:
                if not self._database.expire(begin):
                    self._expired_to = begin
        except StoreError as e:
            self._failed(e)
            return False
        return self._expired_to < begin

    # -- a log that was cut -------------------------------------------------------------------------------------

    def log_was_cut(self) -> None:
        """Drops the units after the end of the log. If that fails, it is repeated before the next use."""
        end = self._log.position
        self._read_to = self._position = min(self._read_to, self._position, end)
        self._read_until = min(self._read_until, end)
        self._seen_to = min(self._seen_to, end)
        self._recovered_at = end if self._recovered_at is None else min(self._recovered_at, end)
        self._drop_pending()
        if not self._has_database:
            # `_open_database` checks whether the database belongs to the log.
            return
        self._cut_at = end if self._cut_at is None else min(self._cut_at, end)
        try:
            self._apply_cut()
        except StoreError as e:
            self._failed(e)

    def _apply_cut(self) -> None:
        """Cuts the database where the log was cut. Raises StoreError."""
        if self._cut_at is None:
            return
        cut = self._database.cut(self._cut_at)
        self._cut_at = None
        for queue in list(self._used.values()):
            if queue.row_id in cut:
                queue.mark_stale()
                self._queue(queue.topic)

    def _drop_pending(self) -> None:
        uncommitted, self._uncommitted = self._uncommitted, {}
        self._count -= len(self._new_names)
        self._new_names, self._pending = [], []
        for queue in uncommitted.values():
            queue.drop_tail()
            queue.mark_stale()


class LightQueueFlusher(Flusher):
    """The thread that flushes the database to disk."""

    def __init__(self, database: UnitDatabase, commit_log: CommitLog, interval_s: float, report: JobReport) -> None:
        super().__init__("light queue flusher", commit_log, interval_s, report)
        self._database = database

    def _round(self) -> None:
        self._database.checkpoint()
