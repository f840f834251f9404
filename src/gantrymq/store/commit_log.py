"""The commit log: every record of the broker, one after the other, in files of a fixed size (`store/CommitLog`).

A physical offset counts bytes from the first record ever written; a file's name is the offset of its first byte. A
record never spans files: what is left at a file's end is a blank, `int32 size | int32 0xCBD43194 | anything`.

`MessageStore.append` writes records itself, through `mapping`, `base`, `position` and `limit`; here is what it needs
once in a while: the next file, and blocks on the disk ahead of it. The flusher's thread does that too, under a lock,
and calls `flush`.
"""

from __future__ import annotations

import logging
import mmap
import threading
from pathlib import Path

from gantrymq.errors import RecordError, StoreError, StoreFull
from gantrymq.protocol.record import BLANK_SIZE, Record, decode_record, pack_blank, store_timestamp_at
from gantrymq.store.mapped_file import MappedFile, list_files, sync_directory, sync_file

log = logging.getLogger(__name__)

#: Blocks are reserved in such pieces, and by the flusher's thread when less than half a piece is left.
_RESERVE = 64 * 1024 * 1024


class CommitLog:
    """The log in `directory`. After `load` and `start_at` it can be written to."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        #: Where the next record goes: a physical offset, the end of all records.
        self.position = 0
        #: A record that ends beyond this physical offset needs `make_room` first.
        self.limit = 0
        #: The file written to: its mapping, and the physical offset of its first byte.
        self.mapping: mmap.mmap | None = None
        self.base = 0
        #: When the last record was stored, ms.
        self.store_timestamp = 0
        #: All before this physical offset is on the disk, and the store timestamp that belongs to it.
        self.flushed = 0
        self.flushed_timestamp = 0
        #: The physical offset at which the first file begins.
        self.min_offset = 0
        #: Why nothing may be written any more.
        self.failure: StoreError | None = None
        #: Why nothing may be written for now.
        self._pause: StoreFull | None = None
        self._files: dict[int, MappedFile] = {}
        self._closed = False
        self._lock = threading.Lock()

    # -- opening ------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Finds the files. Raises StoreError when they can't be those of one log with this file size."""
        lengths = list_files(self.directory)
        if lengths:
            last = max(lengths)
            if lengths[last] == 0:
                log.warning("%s is empty: deleted", MappedFile(self.directory, last, 0).path)
                MappedFile(self.directory, last, 0).delete()
                del lengths[last]
        self.min_offset = expected = min(lengths, default=0)
        for base, length in lengths.items():
            file = MappedFile(self.directory, base, self.file_size)
            is_last = base == max(lengths)
            short = length < self.file_size
            if base % self.file_size or length > self.file_size or (short and (not is_last or len(lengths) == 1)):
                raise StoreError(
                    f"{file.path} has {length} bytes, mappedFileSizeCommitLog is {self.file_size}: set it to the "
                    f"size that the store was made with, or, if the file was cut off, `truncate -s {self.file_size}` it"
                )
            if base != expected:
                raise StoreError(
                    f"{self.directory} lacks the file before {file.path.name}: bring it back, or begin anew"
                )
            if short:
                log.warning(
                    "%s has %d bytes in place of %d: the rest is taken as empty", file.path, length, self.file_size
                )
            expected = base + self.file_size
            self._files[base] = file
        # Recovery finds out how far the records go.
        self.position = expected

    def start_at(self, end: int, flushed: int) -> None:
        """Makes `end` the place of the next record: files after it are deleted, and zero follows it.

        All before `flushed` is taken to be on the disk. Raises StoreError, OSError.
        """
        # From the last on: what a power failure leaves must be without gaps.
        for base in sorted((base for base in self._files if base >= end), reverse=True):
            log.info("deleting %s, which is after the end of the log", self._files[base].path)
            self._files.pop(base).delete()
            sync_directory(self.directory)
        self.position = end
        self.flushed = min(flushed, end)
        self.limit = 0
        if (file := self.file_at(end)) is not None:
            file.clear_from(end - file.base)
            # Else, after a power failure, what was cut off could follow upon a record that was written later.
            sync_file(file.path)

    # -- reading ------------------------------------------------------------------------------------------------

    def file_at(self, physical_offset: int) -> MappedFile | None:
        return self._files.get(physical_offset // self.file_size * self.file_size)

    def view_at(self, physical_offset: int) -> tuple[memoryview, int] | None:
        """(the file's bytes, its base) where a record may begin; None outside of the log."""
        if not 0 <= physical_offset < self.position:
            return None
        file = self.file_at(physical_offset)
        if file is None:
            return None
        if file.view is None:
            self._map(file)
        assert file.view is not None
        return file.view, file.base

    def read(self, physical_offset: int, *, check_crc: bool = True) -> Record:
        """The record that begins there. Raises RecordError when none does, StoreError outside of the log."""
        found = self.view_at(physical_offset)
        if found is None:
            raise StoreError(f"the log has {self.min_offset} to {self.position}: there is nothing at {physical_offset}")
        view, base = found
        record = decode_record(view, physical_offset - base, check_crc=check_crc)
        if record.physical_offset != physical_offset or physical_offset + record.size > self.position:
            raise RecordError(f"no record begins at the physical offset {physical_offset}")
        return record

    def read_bytes(self, physical_offset: int) -> bytes:
        """The record that begins there, as it stands. Raises as `read` does."""
        size = self.read(physical_offset).size
        found = self.view_at(physical_offset)
        assert found is not None, "read would have raised"
        view, base = found
        return bytes(view[physical_offset - base : physical_offset - base + size])

    def store_time(self, physical_offset: int) -> int:
        """When the record there was stored, ms; -1 when there is none (`pickupStoreTimestamp`)."""
        found = self.view_at(physical_offset)
        if found is None:
            return -1
        view, base = found
        return store_timestamp_at(view, physical_offset - base)

    # -- writing ------------------------------------------------------------------------------------------------

    def make_room(self, size: int) -> None:
        """Makes the next `size` bytes writable, in the next file when this one's rest is too small.

        Raises StoreFull when the disk is full; it may be tried again then. Raises StoreError when the log takes no
        more.
        """
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if self._pause is not None:
                raise self._pause
            if size + BLANK_SIZE > self.file_size:
                raise StoreError(f"a record of {size} bytes doesn't fit into a file of {self.file_size} bytes")
            base = self.position // self.file_size * self.file_size
            if self.position + size + BLANK_SIZE > base + self.file_size:
                # The next file first: if the disk is full, nothing has happened.
                self._create(base + self.file_size, size)
                if (file := self._files[base]).reserved < file.size:
                    file.reserve(self.position - base, self.position - base + BLANK_SIZE)
                pack_blank(file.map(), self.position - base, base + self.file_size - self.position)
                base += self.file_size
                self.position = base
            file = self._create(base, self.position - base + size)
            self.base = base
            self.mapping = file.map()
            self.limit = base + min(file.reserved, file.size - BLANK_SIZE)

    def prepare(self) -> None:
        """Reserves blocks and makes the next file before they are needed. Called by the flusher's thread."""
        with self._lock:
            file = self._files.get(self.base)
            if self.limit == 0 or file is None:
                return
            used = self.position - self.base
            if file.reserved < file.size and used + _RESERVE // 2 > file.reserved:
                file.reserve(file.reserved, file.reserved + _RESERVE)
                self.limit = self.base + min(file.reserved, file.size - BLANK_SIZE)
            if used > file.size // 2:
                self._create(self.base + self.file_size, 1)

    def pause(self, reason: StoreFull | None) -> None:
        """Takes no records, for this reason, until it is called with None."""
        with self._lock:
            self._pause = reason
            if reason is not None:
                self.limit = 0

    def _create(self, base: int, needed: int) -> MappedFile:
        """The file at `base` with the first `needed` bytes reserved."""
        file = self._files.get(base)
        if file is None:
            file = MappedFile(self.directory, base, self.file_size)
            file.map()
            try:
                # Before it is used: a power failure must not leave the file after it, but not this one.
                sync_file(file.path)
                sync_directory(self.directory)
            except OSError as e:
                file.delete()
                raise StoreError(f"can't bring {file.path} to the disk: {e.strerror or e}") from e
            self._files[base] = file
        if file.reserved < needed:
            file.map()
            start = max(file.reserved, self.position - base, 0)
            file.reserve(start, max(needed, start + _RESERVE))
        return file

    def _map(self, file: MappedFile) -> None:
        with self._lock:
            if self._closed and self.failure is not None:
                raise self.failure
            file.map()

    # -- deleting old files -------------------------------------------------------------------------------------

    def completed_at(self, file: MappedFile) -> float:
        """When a file got its last record, ms: then the next one got its first."""
        timestamp = self.store_time(file.base + self.file_size)
        return timestamp if timestamp >= 0 else file.path.stat().st_mtime * 1000

    def delete_first(self, before_ms: float) -> bool:
        """Deletes the first file if it was complete by then and is on the disk; whether it did.

        Slices of it that a socket still holds stay good. Raises StoreError.
        """
        end = self.min_offset + self.file_size
        file = self._files.get(self.min_offset)
        if file is None or end > min(self.position, self.flushed):
            return False
        try:
            if self.completed_at(file) >= before_ms:
                return False
            log.info("deleting %s", file.path)
            file.path.unlink(missing_ok=True)
            # Before the next one is: what a power failure leaves must be without gaps.
            sync_directory(self.directory)
        except OSError as e:
            raise StoreError(f"can't delete {file.path}: {e.strerror or e}") from e
        del self._files[self.min_offset]
        self.min_offset = end
        file.unmap()
        return True

    # -- flushing -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Brings all records to the disk; waits without the GIL. Raises StoreError, and then takes no more records.

        After a failed fdatasync the kernel counts the pages as written; a second one that succeeds would mean nothing.
        """
        if self.failure is not None:
            raise self.failure
        timestamp = self.store_timestamp
        position = self.position
        try:
            while self.flushed < position:
                base = self.flushed // self.file_size * self.file_size
                sync_file(self._files[base].path)
                self.flushed = min(position, base + self.file_size)
        except OSError as e:
            failure = StoreError(f"{self.directory} can't be written to the disk, so no more messages are taken: {e}")
            self.fail(failure)
            raise failure from e
        self.flushed_timestamp = timestamp

    def fail(self, failure: StoreError) -> None:
        with self._lock:
            self.failure = failure
            self.limit = 0

    def close(self) -> None:
        """Unmaps the files; whoever still writes or reads gets a StoreError."""
        self._closed = True
        self.fail(StoreError(f"the commit log {self.directory} is closed"))
        self.mapping = None
        for file in self._files.values():
            file.unmap()
