"""LogTable: a table that a master derives from its log, because the messages contain its entries.

- A file in the directory of the configuration contains the table for the log up to a physical offset.
- At start, the broker adds the messages after this offset. It skips log files whose messages have all expired. If that
  takes longer than 0.2 s, it continues when the first request needs the table. Such requests wait until the table is
  complete.
- A slave that becomes master reads the log when the first request needs the table.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from gantrymq.background.repeating import Repeating
from gantrymq.broker.append import Appender
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.errors import RecordError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.record import Record
from gantrymq.system.clock import monotonic, now_ms

log = peer_log(__name__)

#: Interval at which expired entries are removed, in seconds.
_LOOK_S = 10.0
#: Longest time for which a start reads the log, in seconds.
_START_S = 0.2
#: After the start, the log is read in slices of this length, each followed by an equal pause, in seconds.
_SLICE_S = 0.005
#: Longest wait of a request until the log is read, in seconds. It is shorter than the default timeout of a client, 3 s.
_WAIT_S = 2.0


class LogTable(Feature, ABC):
    """The common part of such tables: the file, the reading of the log, and the changes of the role.

    A subclass overrides the abstract methods. Each record with an entry contains `mark`. `entries` describes the
    entries in log lines, errors and the name of a job. `forgetting` is the job that removes expired entries.
    """

    def __init__(
        self, context: BrokerContext, *, appender: Appender, file_name: str, mark: bytes, entries: str, forgetting: str
    ) -> None:
        self._context = context
        self._config = context.config
        self._appender = appender
        self._store = appender.store
        self._path: Path = context.config.store.config_directory / file_name
        self._file = context.persistence.file(self._path, self._encode, follows_log=True)
        self._mark = mark
        self._entries = entries
        #: The records that are still to be read, and the physical offset of the first one.
        self._records: Iterator[Record | None] | None = None
        self._start = 0
        #: True if the broker is a slave.
        self._follows = False
        self._all_read = asyncio.Event()
        self._all_read.set()
        self._reading: Repeating = context.jobs.repeating(f"read {entries}", self._read_on)
        self._looking: Repeating = context.jobs.repeating(forgetting, self._look, _LOOK_S)

    # -- for subclasses -----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _is_needed(self) -> bool:
        """Whether the log can contain entries."""

    @abstractmethod
    def _load_table(self) -> int | None:
        """Reads the file, and returns its physical offset. Returns None if there is no valid file."""

    @abstractmethod
    def _clear(self, position: int) -> None:
        """Empties the table, for the log from a physical offset on."""

    @abstractmethod
    def _keep_ms(self) -> int:
        """Returns the longest time for which an entry is kept, in ms."""

    @abstractmethod
    def _learn(self, record: Record) -> None:
        """Adds the entry of a record, if it has one."""

    @abstractmethod
    def _forget(self) -> int:
        """Removes the expired entries, or as many as one step may remove. Returns their number."""

    @abstractmethod
    def _look(self) -> float | None:
        """Removes expired entries. Schedules a write of the file if the table or the log has changed enough.

        Returns the pause until the next step, in seconds; None if no expired entry is left.
        """

    @abstractmethod
    def _encode(self) -> Iterator[bytes]:
        """Returns the content of the file."""

    # -- lifecycle ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the file, and the log after it for at most _START_S. The store must be open. Raises StoreError.

        A slave reads nothing: it does not use the table, and begins anew when it becomes master.
        """
        if not self._is_needed or self._context.is_slave:
            return
        position = self._load_table()
        start = None if position is None else self._begins(position)
        if start is not None:
            self._all_read.clear()
            # Records before the log of the last `_keep_ms` would only add expired entries.
            self._start = self._recent_start(start)
        else:
            self._begin_anew()
            log.warning("%s doesn't fit the log: it is made from the log from %d on", self._path, self._start)
            # If the broker is killed before the next write, the next start needs a valid file.
            self._file.write_now()
        self._read(_START_S)

    def _begin_anew(self) -> None:
        """Discards the table. The next reads build it from the log of the last `_keep_ms`."""
        self._all_read.clear()
        self._records = None
        self._start = self._recent_start()
        self._clear(self._start)

    def _recent_start(self, begin: int = 0) -> int:
        """Returns the start of the last log file that begins before the last `_keep_ms`, or `begin` if it is later."""
        return self._store.start_of(now_ms() - self._keep_ms(), begin)

    def _read(self, seconds: float) -> bool:
        """Adds the entries in the log to the table for `seconds`. Returns whether the table is complete."""
        end = monotonic() + seconds
        if self._records is None:
            self._records = self._store.look_for_records(self._mark, self._start)
        try:
            for record in self._records:
                if record is not None:
                    self._learn(record)
                if monotonic() >= end:
                    return False
        except RecordError as e:
            # Requests must not wait for a log that stays damaged.
            log.error(
                "%s: the log can't be read to its end, so the broker stores messages after the damage again if they "
                "are repeated: %s",
                self._entries,
                e,
            )
        except BaseException:
            # Entries may be missing, so the next call starts again.
            self._records = None
            raise
        self._records = None
        self._forget()
        self._all_read.set()
        return True

    def _read_on(self) -> float | None:
        if not self._read(_SLICE_S):
            return _SLICE_S
        self._looking.start()
        return None

    async def start(self) -> None:
        if self.is_read and self._is_needed:
            self._looking.start()

    async def become_slave(self) -> None:
        """Stops the background work. From this point, the log is a copy of the master's."""
        self._follows = True
        await self.stop()

    async def become_master(self) -> None:
        """Discards the table, because the broker was a slave. The log has the messages of the former master."""
        if self._follows:
            self._follows = False
            self._begin_anew()
            self._file.write_soon()

    async def stop(self) -> None:
        self._reading.cancel()
        self._looking.cancel()

    def _begins(self, position: int) -> int | None:
        """Returns the physical offset at which to continue; None if the file does not belong to this log."""
        store = self._store
        if position < store.min_physical_offset or position == store.max_physical_offset:
            return max(position, store.min_physical_offset)
        try:
            record = next(store.records_with(b"", position), None)
        except RecordError:
            return None
        # If the file ends with a blank, the next record is at the start of the next file.
        end_of_file = position - position % store.config.mapped_file_size_commit_log
        end_of_file += store.config.mapped_file_size_commit_log
        return position if record is not None and record.physical_offset in (position, end_of_file) else None

    # -- requests -----------------------------------------------------------------------------------------------

    @property
    def _is_current(self) -> bool:
        """Whether the table has all entries of the log. A slave's log grows without the table."""
        return self.is_read and not self._follows

    @property
    def is_read(self) -> bool:
        """Whether the table is complete. Requests must wait until then."""
        return self._all_read.is_set()

    async def read(self) -> None:
        """Continues to read the log, and returns when `is_read`. Raises RequestRefused after _WAIT_S."""
        self._reading.start(0.0)
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._all_read.wait()
        except TimeoutError:
            raise self._still_reading() from None

    def _still_reading(self) -> RequestRefused:
        return RequestRefused(
            ResponseCode.SYSTEM_BUSY,
            f"[OVERLOAD]system busy: the broker still reads in its log {self._entries} before it started, try again "
            "later",
        )
