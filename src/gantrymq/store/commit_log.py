"""The commit log: all records of a broker, one after the other, in files of a fixed size (`store/CommitLog`).

A physical offset counts bytes from the first record ever written. A file is named after the offset of its first byte. A
record never spans two files. The rest of a file is a blank: `int32 size | int32 0xCBD43194 | anything`.

`MessageWriter.append` writes small records directly, through `mapping`, `base`, `position` and `limit`. This module
writes large records and batches. It also provides the next file and its blocks. A thread preallocates them
(`log_preallocation`). `log_files` manages the files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gantrymq.errors import RecordError, StoreError, SyncFailed
from gantrymq.protocol.record import (
    BLANK_SIZE,
    MAGIC_BLANK,
    Buffer,
    Record,
    decode_record,
    decode_without_body,
    pack_blank,
    store_timestamp_at,
    unpacker,
)
from gantrymq.store.checkpoint import Checkpoint
from gantrymq.store.log_files import LogFiles
from gantrymq.store.log_paths import LogPaths
from gantrymq.store.log_preallocation import RESERVE, LogPreallocation
from gantrymq.store.mapped_file import MappedFile
from gantrymq.store.preallocation import Preallocation
from gantrymq.store.refusal import Refusal
from gantrymq.store.trash import Trash
from gantrymq.system import files

#: From this size in bytes on, `pwrite` is faster than the mapping. See `MappedFile.write`.
LARGE = 16 * 1024
#: Source of the refusal that rejects everything except replicated data.
_COPY = "slave"
_unpack_head = unpacker("size", "magic")


class CommitLog:
    """The commit log in the directories `paths`. It accepts records after `load` and `start_at`."""

    def __init__(self, paths: LogPaths, file_size: int, preallocation: Preallocation) -> None:
        self.file_size = file_size
        #: The end of all records: the physical offset of the next record.
        self.position = 0
        #: A record that ends after this physical offset needs a call of `preallocate` first.
        self.limit = 0
        #: The current file: its mapping, and the physical offset of its first byte.
        self.mapping: files.Mapping | None = None
        self.base = 0
        #: Store timestamp of the last record, in milliseconds.
        self.store_timestamp = 0
        #: The physical offset up to which all records are on disk, and the matching store timestamp.
        self.flushed = 0
        self.flushed_timestamp = 0
        #: On some slaves, records from this physical offset on have no queue units yet. None if all records have units.
        self.units_until: int | None = None
        #: The reason why the log permanently rejects writes and flushes.
        self.failure: Refusal | None = None
        #: The reasons why the log temporarily rejects writes, by source.
        self._refusals: dict[str, Refusal] = {}
        self.paths = paths
        self._files = LogFiles(paths, file_size)
        self._log_preallocation = LogPreallocation(self._files, preallocation, lambda: self.position)
        self._closed = False

    @property
    def min_offset(self) -> int:
        """The physical offset at which the first file starts."""
        return self._files.min_offset

    # -- opening ------------------------------------------------------------------------------------------------

    @property
    def was_missing(self) -> bool:
        """Whether `load` found no file."""
        return len(self._files.empty) == len(self.paths.all)

    @property
    def may_lack_end(self) -> bool:
        """Whether `load` found no file in one of several directories, which may have had the last files."""
        return self.paths.has_several and bool(self._files.empty)

    def check_end(self, last_record: int) -> None:
        """Raises StoreError if the log lacks the file with this offset."""
        if last_record >= self.position:
            raise self._files.ends_early(self.position)

    def load(self, checkpoint: Checkpoint, *, was_aborted: bool) -> None:
        """Finds the files; see `LogFiles.load`. Recovery then determines the end of the records."""
        self.position = self._files.load(checkpoint, was_aborted=was_aborted)

    def start_at(self, end: int, flushed: int) -> None:
        """Sets the position of the next record to `end`. Deletes later files and clears the rest of this file.

        Everything before `flushed` counts as on disk. Raises StoreError or OSError.
        """
        self._files.end_at(end)
        self.position = end
        self.flushed = min(flushed, end)
        self.limit = 0
        self._log_preallocation.forget()
        self.mapping = None
        base = end // self.file_size * self.file_size
        if (old := self._files.at(end)) is not None:
            old.clear_from(end - base)
        # Flush now: after a power failure, later files can be used only if this file exists. Truncated records must not
        # reappear after a later record.
        self._sync(self._files.made(base))

    def begin_at(self, physical_offset: int, trash: Trash) -> None:
        """Deletes all files and starts with an empty one at this offset. Raises as `start_at` does."""
        self._files.drop_all(trash, physical_offset)
        self.flushed = physical_offset
        self.store_timestamp = self.flushed_timestamp = 0
        self.start_at(physical_offset, physical_offset)

    def cut(self, end: int) -> None:
        """Deletes all data from this offset on, where a record must start (`begins_at`). Raises as `start_at` does."""
        self.start_at(end, self.flushed)
        self.store_timestamp = self.flushed_timestamp = max(self.store_time(end - end % self.file_size), 0)

    # -- reading ------------------------------------------------------------------------------------------------

    def begins_at(self, physical_offset: int) -> bool:
        """Returns whether a record or a blank starts at this offset."""
        found = self.view_at(physical_offset)
        if found is None:
            return False
        view, base = found
        at = physical_offset - base
        if at + BLANK_SIZE <= len(view) and _unpack_head(view, at) == (len(view) - at, MAGIC_BLANK):
            return True
        try:
            self.read(physical_offset)
        except RecordError:
            return False
        return True

    def file_at(self, physical_offset: int) -> MappedFile | None:
        """Returns the file that contains this offset; None if there is none."""
        return self._files.at(physical_offset)

    def view_at(self, physical_offset: int) -> tuple[memoryview, int] | None:
        """Returns the bytes of the file that contains this offset, and their base; None outside of the log."""
        if not 0 <= physical_offset < self.position:
            return None
        file = self._files.at(physical_offset)
        if file is None:
            return None
        if file.view is None:
            self._map(file)
        assert file.view is not None
        return file.view, file.base

    def slice(self, physical_offset: int, max_bytes: int) -> memoryview | None:
        """Returns a slice of the log; see `MessageStore.log_slice`."""
        found = self.view_at(physical_offset)
        if found is None:
            if physical_offset == self.position:
                return None
            raise self._outside(physical_offset)
        view, base = found
        start = physical_offset - base
        return view[start : min(start + max_bytes, self.position - base)]

    def _outside(self, physical_offset: int) -> StoreError:
        return StoreError(f"the log has {self.min_offset} to {self.position}: there is nothing at {physical_offset}")

    def read(self, physical_offset: int, *, check_crc: bool = True, with_body: bool = True) -> Record:
        """Returns the record at this offset. If `with_body` is false, its body is empty, and its CRC is not checked.

        Raises RecordError if no record starts there, and StoreError if the offset is outside the log.
        """
        found = self.view_at(physical_offset)
        if found is None:
            raise self._outside(physical_offset)
        view, base = found
        at = physical_offset - base
        record = decode_record(view, at, check_crc=check_crc) if with_body else decode_without_body(view, at)
        if record.physical_offset != physical_offset or physical_offset + record.size > self.position:
            raise RecordError(f"no record begins at the physical offset {physical_offset}")
        return record

    def read_bytes(self, physical_offset: int) -> bytes:
        """Returns the bytes of the record at this offset. Raises as `read` does."""
        size = self.read(physical_offset).size
        found = self.view_at(physical_offset)
        assert found is not None, "read would have raised"
        view, base = found
        return bytes(view[physical_offset - base : physical_offset - base + size])

    def store_time(self, physical_offset: int) -> int:
        """Returns the store timestamp of a record, in ms; -1 if none is at this offset (`pickupStoreTimestamp`)."""
        found = self.view_at(physical_offset)
        if found is None:
            return -1
        view, base = found
        return store_timestamp_at(view, physical_offset - base)

    # -- writing ------------------------------------------------------------------------------------------------

    def preallocate(self, size: int) -> None:
        """Makes the next `size` bytes writable, in the next file if they don't fit into this one.

        Raises StoreBusy while a file is preallocated, StoreFull if the disk is full, and StoreError if the log rejects
        records. All of these conditions can be temporary.
        """
        self._check()
        self._log_preallocation.check_wait_queue()
        if size + BLANK_SIZE > self.file_size:
            raise StoreError(f"a record of {size} bytes doesn't fit into a file of {self.file_size} bytes")
        base = start = self.position // self.file_size * self.file_size
        if self.position + size + BLANK_SIZE > base + self.file_size or self._files.is_ended(base):
            start += self.file_size
        end = max(self.position, start) + size
        if self._files.reserved(base) < self.position + BLANK_SIZE or self._files.reserved(start) < end + BLANK_SIZE:
            # Requests that wait for preallocation come first, even if a smaller record would fit.
            self.limit = 0
            self._log_preallocation.need(size)
        if start > base:
            pack_blank(self._files[base].map(), self.position - base, start - self.position)
        limit = reserved = self._files.reserved(start) - BLANK_SIZE
        if reserved + BLANK_SIZE < start + self.file_size:
            limit -= RESERVE // 2
        if start + self.file_size not in self._files:
            limit = min(limit, start + self.file_size // 2)
        if end > limit:
            # Preallocate more before this space is used up.
            self._log_preallocation.ask(end)
            limit = reserved
        with self._files.lock:
            self._check()
            self.position = max(self.position, start)
            self._write_to(start)
            # While requests wait, each record must call this method, so that none overtakes them.
            self.limit = end if self._log_preallocation.is_closed else limit

    def preallocate_for_copy(self, size: int) -> None:
        """Makes the next `size` bytes of this file writable for replicated data.

        A replicated log contains the blanks at the ends of files. Raises as `preallocate` does, but ignores the refusal
        of other writes.
        """
        self._check(is_copy=True)
        base = self.position // self.file_size * self.file_size
        end, file_end = self.position + size, base + self.file_size
        reserved = self._files.reserved(base)
        # After a blank, the next file starts.
        has_next = self._files.reserved(file_end) >= file_end + BLANK_SIZE
        if reserved < end or (end == file_end and not has_next):
            self._log_preallocation.need_for_copy(end)
        elif (end - base >= self.file_size // 2 and not has_next) or reserved < min(end + RESERVE // 2, file_end):
            # Preallocate more before this space is used up.
            self._log_preallocation.ask(end)
        if self.base != base or self.mapping is None:
            with self._files.lock:
                self._check(is_copy=True)
                self._write_to(base)

    def _write_to(self, base: int) -> None:
        """Makes the file at `base` the current file. The previous file gets no more records."""
        if self.mapping is not None and self.base != base and self.base in self._files:
            self._files[self.base].will_be_written(self.file_size)
        self.base = base
        self.mapping = self._files[base].map()

    def write(self, records: Buffer) -> None:
        """Writes complete records at the end of the log. They become valid when the caller advances `position`.

        Space must be available. Raises StoreFull or StoreError; nothing is written then. Later records then go to the
        next file if another disk can take it.

        If the process is killed, either all records are in the log or none. The size and magic number of the first
        record are written last. Without them, the log ends before this record, and recovery clears the rest.
        """
        assert self.mapping is not None
        start = self.position - self.base
        if len(records) < LARGE:
            self.mapping[start + BLANK_SIZE : start + len(records)] = records[BLANK_SIZE:]
        else:
            try:
                self._files[self.base].write(start + BLANK_SIZE, memoryview(records)[BLANK_SIZE:])
            except StoreError as e:
                if self._files.end_early(self.base, e):
                    self.limit = 0
                raise
        self.mapping[start : start + BLANK_SIZE] = records[:BLANK_SIZE]

    def take_in_turn(self) -> None:
        """Forces each record to call `preallocate`, so that none overtakes requests that wait."""
        self.limit = 0

    def _check(self, *, is_copy: bool = False) -> None:
        """Raises StoreError if the log rejects writes."""
        if self.failure is not None:
            raise self.failure.exception()
        for who, refusal in list(self._refusals.items()):
            if not (is_copy and who == _COPY):
                raise refusal.exception()

    def make_soon(self) -> None:
        """Requests preallocation for the first record."""
        self._log_preallocation.ask(self.position)

    def sync_new(self) -> None:
        """Flushes files that were just created, so that `flush` need not wait for them. Raises as `flush` does."""
        for new in self._files.new():
            self._sync(new)

    def refuse(self, who: str, refusal: Refusal | None) -> None:
        """Rejects records until the same source calls with None. Any thread may call this."""
        if refusal == self._refusals.get(who):
            return
        with self._files.lock:
            if refusal is None:
                del self._refusals[who]
            else:
                self._refusals[who] = refusal
                self.limit = 0

    @property
    def trouble(self) -> str | None:
        """The reason why the log can't accept any records, not even replicated ones; None if it can."""
        if self.failure is not None:
            return self.failure.text
        return next((refusal.text for who, refusal in list(self._refusals.items()) if who != _COPY), None)

    def refuse_all_but_copy(self, refusal: Refusal | None) -> None:
        """Rejects all writes except replicated data. None accepts all writes again."""
        self.refuse(_COPY, refusal)
        # Forces the next write to check the refusal.
        self.limit = 0

    @property
    def is_copy(self) -> bool:
        """Whether the log accepts replicated data only."""
        return _COPY in self._refusals

    def fail(self, failure: Refusal) -> None:
        """Permanently rejects writes and flushes."""
        with self._files.lock:
            self.failure = failure
            self.limit = 0

    def _map(self, file: MappedFile) -> None:
        with self._files.lock:
            if self._closed and self.failure is not None:
                raise self.failure.exception()
            file.map()

    # -- deleting old files -------------------------------------------------------------------------------------

    def completed_at(self, file: MappedFile) -> float:
        """Returns the time of a file's last write, in ms: the time at which the next file got its first record."""
        timestamp = self.store_time(file.base + self.file_size)
        return timestamp if timestamp >= 0 else files.stat(file.path).st_mtime * 1000

    def forget_first(self, before_ms: float, needed_from: Callable[[], int]) -> Path | None:
        """Removes the first file from the log if it was complete before `before_ms` and is on disk.

        A file with data at or after the physical offset `needed_from` stays.

        Returns the path, which the caller deletes; None if the file has to stay. Files must be deleted from the disk in
        order, so that a power failure leaves no gap. Slices of the file that a socket still uses stay valid. Raises
        StoreError.
        """
        end = self.min_offset + self.file_size
        file = self._files.at(self.min_offset)
        if file is None or end > min(self.position, self.flushed):
            return None
        try:
            if self.completed_at(file) >= before_ms:
                return None
        except OSError as e:
            raise StoreError(f"can't read the age of {file.path}: {e.strerror or e}") from e
        if needed_from() < end:
            return None
        return self._files.forget_first()

    # -- flushing -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Flushes all records to disk, without the GIL. Called by the flusher's thread.

        Raises SyncFailed, and rejects all further records. After a failed fdatasync the kernel marks the pages as
        clean, so the success of a second call would prove nothing. Raises OSError for temporary problems, such as a
        lack of file descriptors.
        """
        if self.failure is not None:
            raise self.failure.exception()
        timestamp = self.store_timestamp
        position = self.position
        while self.flushed < position:
            base = self.flushed // self.file_size * self.file_size
            file = self._files[base]
            self._sync(file)
            if position >= base + self.file_size:
                # Closes the file before `flushed` advances: after that, a deletion of the file may close it as well.
                file.close_descriptor()
            self.flushed = min(position, base + self.file_size)
        self.flushed_timestamp = timestamp

    def _sync(self, file: MappedFile) -> None:
        """Flushes a file and the directory entries of new files. Raises as `flush` does."""
        try:
            self._files.sync(file)
        except SyncFailed as e:
            text = f"{e}; the last writes may be lost: messages are rejected until the broker is restarted"
            failure = Refusal(text, SyncFailed)
            self.fail(failure)
            raise failure.exception() from e

    def close(self) -> None:
        """Unmaps the files. Later reads and writes raise StoreError."""
        self._closed = True
        self.fail(Refusal(f"the commit log {self.paths} is closed"))
        self.mapping = None
        self._files.close()
