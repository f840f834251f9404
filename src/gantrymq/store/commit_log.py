"""The commit log: every record of the broker, one after the other, in files of a fixed size (`store/CommitLog`).

A physical offset counts bytes from the first record ever written; a file's name is the offset of its first byte. A
record never spans files: what is left at a file's end is a blank, `int32 size | int32 0xCBD43194 | anything`.

`MessageStore.append` writes records itself, through `mapping`, `base`, `position` and `limit`; here is what it needs
once in a while: the next file, and blocks on the disk ahead of it. A thread makes both before they are needed
(`RoomMaker`); the dictionary of files is changed under a lock, which nobody holds while he waits for the disk.

Only the flusher's thread calls fsync. A file that was just made is in its directory, but perhaps not yet on the disk;
`flush` counts nothing in it as flushed before its entry is. So a power failure may leave a later file without it, which
`load` cuts off. The alternative that lost: fsync before the file is used, which who writes must then wait for.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path

from gantrymq.errors import RecordError, StoreError, SyncFailed
from gantrymq.protocol.record import (
    BLANK_SIZE,
    FIXED_SIZE_V4,
    MAGIC_BLANK,
    Buffer,
    Record,
    decode_record,
    pack_blank,
    store_timestamp_at,
    unpacker,
)
from gantrymq.store.checkpoint import Checkpoint
from gantrymq.store.mapped_file import MappedFile, list_files, open_directory, sync_directory, sync_entries
from gantrymq.store.refusal import Refusal
from gantrymq.store.room_maker import RoomMaker
from gantrymq.store.trash import Trash
from gantrymq.system import files, threads

log = logging.getLogger(__name__)

#: Blocks are reserved in such pieces, the next one when half of it is used.
_RESERVE = 64 * 1024 * 1024
#: Who refuses all but the copy of another log.
_COPY = "slave"
_unpack_head = unpacker("size", "magic")


class CommitLog:
    """The log in `directory`. After `load` and `start_at` it can be written to."""

    def __init__(self, directory: Path, file_size: int, rooms: RoomMaker) -> None:
        self.directory = directory
        self.file_size = file_size
        #: Where the next record goes: a physical offset, the end of all records.
        self.position = 0
        #: A record that ends beyond this physical offset needs `make_room` first.
        self.limit = 0
        #: The file written to: its mapping, and the physical offset of its first byte.
        self.mapping: files.Mapping | None = None
        self.base = 0
        #: When the last record was stored, ms.
        self.store_timestamp = 0
        #: All before this physical offset is on the disk, and the store timestamp that belongs to it.
        self.flushed = 0
        self.flushed_timestamp = 0
        #: Records from there on have no units in the queues yet; None: all have, as anywhere but on some slaves.
        self.units_until: int | None = None
        #: The physical offset at which the first file begins.
        self.min_offset = 0
        #: Why nothing may be written or flushed any more.
        self.failure: Refusal | None = None
        #: Why nothing may be written for now, by who says so.
        self._refusals: dict[str, Refusal] = {}
        self._files: dict[int, MappedFile] = {}
        #: Files whose entries in the directory may not be on the disk, the oldest first.
        self._new: deque[MappedFile] = deque()
        #: What a power failure has left of the log behind a file that is missing.
        self._behind_gap: list[MappedFile] = []
        self._directory_fd: int | None = None
        self._closed = False
        self._lock = threads.Lock()
        self._rooms = rooms
        rooms.for_all.add(self._make_needed)
        #: Held while files and blocks are made, never by who has `_lock`.
        self._making = threads.Lock()
        #: The longest record that room is needed for.
        self._needed = 0
        #: Up to this physical offset a copy of another log needs room.
        self._copy_end = 0

    # -- opening ------------------------------------------------------------------------------------------------

    def load(self, checkpoint: Checkpoint, *, was_aborted: bool) -> None:
        """Finds the files. Raises StoreError when they can't be those of one log with this file size.

        Where a file is missing the log ends, if a power failure may have taken it: by the checkpoint nothing from there
        on was surely on the disk.
        """
        lengths = list_files(self.directory)
        self._drop_unused(lengths, was_aborted=was_aborted)
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
            if base != expected and not self._behind_gap:
                if not was_aborted or self._was_flushed(base, expected, checkpoint):
                    raise StoreError(
                        f"{self.directory} lacks the file before {file.path.name}: bring it back, or begin anew"
                    )
                log.warning("%s lacks the file before %s: the log ends there", self.directory, file.path.name)
            if base != expected:
                self._behind_gap.append(file)
                continue
            if short:
                log.warning(
                    "%s has %d bytes in place of %d: the rest is taken as empty", file.path, length, self.file_size
                )
            expected = base + self.file_size
            self._files[base] = file
        # Recovery finds out how far the records go.
        self.position = expected

    def _drop_unused(self, lengths: dict[int, int], *, was_aborted: bool) -> None:
        """Deletes what a power failure left empty, and a file that was made with another size and never used."""
        last = max(lengths, default=0)
        unused = [base for base, length in lengths.items() if length == 0 and (was_aborted or base == last)]
        if list(lengths) == [0] and lengths[0] != self.file_size and not any(self._head(0)[:BLANK_SIZE]):
            unused = [0]
        for base in unused:
            path = MappedFile(self.directory, base, 0).path
            log.warning("%s has no messages: deleted", path)
            files.unlink(path)
            del lengths[base]

    def _was_flushed(self, after: int, missing: int, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint says that the log was on the disk beyond the missing file, up to the one after it."""
        stored = store_timestamp_at(self._head(after), 0)
        return checkpoint.confirm_phy_offset > missing or 0 <= stored <= checkpoint.min_timestamp

    def _head(self, base: int) -> bytes:
        return files.read_bytes(MappedFile(self.directory, base, 0).path, FIXED_SIZE_V4)

    def start_at(self, end: int, flushed: int) -> None:
        """Makes `end` the place of the next record: files after it are deleted, and zero follows it.

        All before `flushed` is taken to be on the disk. Raises StoreError, OSError.
        """
        after = [self._files.pop(base) for base in sorted(self._files) if base > end]
        # From the last on: what a power failure leaves must be without gaps.
        for file in reversed(after + self._behind_gap):
            log.info("deleting %s, which is after the end of the log", file.path)
            file.delete()
            sync_directory(self.directory)
        self._behind_gap.clear()
        files.make_lasting_directory(self.directory)
        self._close_directory()
        self._directory_fd = open_directory(self.directory)
        self._new = deque(file for file in self._new if file.base in self._files)
        self.position = end
        self.flushed = min(flushed, end)
        self.limit = self._needed = self._copy_end = 0
        self.mapping = None
        base = end // self.file_size * self.file_size
        if (old := self._files.get(base)) is not None:
            old.clear_from(end - base)
        # So that a power failure leaves at least the file with which later ones go on. And what was cut off could else
        # follow upon a record that was written later.
        self._sync(self._made(base))

    def begin_at(self, physical_offset: int, trash: Trash) -> None:
        """Drops all files, and begins with an empty one there; as `start_at`."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        trash.add_directory(self.directory, ())
        self.min_offset = self.flushed = physical_offset
        self.store_timestamp = self.flushed_timestamp = 0
        self.start_at(physical_offset, physical_offset)

    def cut(self, end: int) -> None:
        """Drops all from there on, where `begins_at` is true; as `start_at`."""
        self.start_at(end, self.flushed)
        self.store_timestamp = self.flushed_timestamp = max(self.store_time(end - end % self.file_size), 0)

    # -- reading ------------------------------------------------------------------------------------------------

    def begins_at(self, physical_offset: int) -> bool:
        """Whether a record or a blank begins there."""
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

    def slice(self, physical_offset: int, max_bytes: int) -> memoryview | None:
        """See `MessageStore.log_slice`."""
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

    def read(self, physical_offset: int, *, check_crc: bool = True) -> Record:
        """The record that begins there. Raises RecordError when none does, StoreError outside of the log."""
        found = self.view_at(physical_offset)
        if found is None:
            raise self._outside(physical_offset)
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

        Raises StoreBusy while a file is made, StoreFull when the disk is full, StoreError when the log takes no more;
        all of them may pass.
        """
        self._check()
        self._rooms.check_line(self._make_needed)
        if size + BLANK_SIZE > self.file_size:
            raise StoreError(f"a record of {size} bytes doesn't fit into a file of {self.file_size} bytes")
        base = start = self.position // self.file_size * self.file_size
        if self.position + size + BLANK_SIZE > base + self.file_size:
            start += self.file_size
        end = max(self.position, start) + size
        if self._reserved(base) < self.position + BLANK_SIZE or self._reserved(start) < end + BLANK_SIZE:
            self._needed = max(self._needed, size)
            # Nobody is to write what has room before who waits here.
            self.limit = 0
            self._rooms.need(self._make_needed)
        if start > base:
            pack_blank(self._files[base].map(), self.position - base, start - self.position)
        limit = reserved = self._reserved(start) - BLANK_SIZE
        if reserved + BLANK_SIZE < start + self.file_size:
            limit -= _RESERVE // 2
        if start + self.file_size not in self._files:
            limit = min(limit, start + self.file_size // 2)
        if end > limit:
            # When this is used up it will be there.
            self._rooms.ask(self._make_ahead)
            limit = reserved
        with self._lock:
            self._check()
            self.position = max(self.position, start)
            self.base = start
            self.mapping = self._files[start].map()
            # While others wait for their turn each record has to ask.
            self.limit = end if self._rooms.is_closed_for(self._make_needed) else limit

    def make_room_for_copy(self, size: int) -> None:
        """Makes the next `size` bytes of this file writable for a copy of another log, whose blanks end its files.

        Raises as `make_room` does; that others may write nothing doesn't count.
        """
        self._check(is_copy=True)
        base = self.position // self.file_size * self.file_size
        end, file_end = self.position + size, base + self.file_size
        reserved = self._reserved(base)
        # Behind a blank the next file begins.
        has_next = self._reserved(file_end) >= file_end + BLANK_SIZE
        if reserved < end or (end == file_end and not has_next):
            self._copy_end = end
            self._rooms.need(self._make_copy_room)
        elif (end - base >= self.file_size // 2 and not has_next) or reserved < min(end + _RESERVE // 2, file_end):
            # When this is used up it will be there.
            self._rooms.ask(self._make_ahead)
        if self.base != base or self.mapping is None:
            with self._lock:
                self._check(is_copy=True)
                self.base = base
                self.mapping = self._files[base].map()

    def write(self, records: Buffer) -> None:
        """Writes whole records at the log's end, where there is room; they count when `position` is behind them.

        They are all there or none, wherever the process is killed: size and magic number of the first come last,
        without them the log ends before it, and recovery clears what follows.
        """
        assert self.mapping is not None
        start, view = self.position - self.base, memoryview(records)
        self.mapping[start + BLANK_SIZE : start + len(view)] = view[BLANK_SIZE:]
        self.mapping[start : start + BLANK_SIZE] = view[:BLANK_SIZE]

    def take_in_turn(self) -> None:
        """Has each record ask for room, so that none is written before those that wait."""
        self.limit = 0

    def _reserved(self, base: int) -> int:
        """Up to which physical offset the file at `base` has blocks; `base` if there is none."""
        file = self._files.get(base)
        return base if file is None else base + file.reserved

    def _check(self, *, is_copy: bool = False) -> None:
        """Raises StoreError when nothing may be written."""
        if self.failure is not None:
            raise self.failure.exception()
        for who, refusal in list(self._refusals.items()):
            if not (is_copy and who == _COPY):
                raise refusal.exception()

    def _make_needed(self) -> None:
        """Makes what the next record needs; called by the room maker. Raises StoreFull, StoreError."""
        with self._making:
            base, used, needed = self._place()
            if used + needed <= self.file_size:
                self._reserve(base, used, needed)
            else:
                self._reserve(base, used, BLANK_SIZE)
                self._reserve(base + self.file_size, 0, needed)
            self._needed = 0

    def _make_copy_room(self) -> None:
        """Makes what the next bytes of a copy need; as `_make_needed`."""
        with self._making:
            base, used, _ = self._place()
            self._reserve(base, used, self._copy_end - self.position)
            if self._copy_end == base + self.file_size:
                self._reserve(self._copy_end, 0, BLANK_SIZE)

    def _make_ahead(self) -> None:
        """Makes what will be needed; as `_make_needed`."""
        with self._making:
            base, used, _ = self._place()
            self._reserve(base, used, _RESERVE // 2)
            if used >= self.file_size // 2:
                self._reserve(base + self.file_size, 0, BLANK_SIZE)

    def _place(self) -> tuple[int, int, int]:
        """(base of the file written to, bytes of it that are used, bytes that are needed)."""
        needed, position = self._needed, self.position
        base = position // self.file_size * self.file_size
        return base, position - base, needed + BLANK_SIZE

    def _reserve(self, base: int, used: int, least: int) -> None:
        """Makes a file that has blocks for at least so many bytes more than are used."""
        file = self._made(base)
        if file.reserved < min(used + least, self.file_size):
            start = max(file.reserved, used)
            file.reserve(start, start + max(least, _RESERVE))

    def _made(self, base: int) -> MappedFile:
        """The file at `base`, open and mapped."""
        file = self._files.get(base)
        if file is not None:
            file.open()
            file.map()
            return file
        file = MappedFile(self.directory, base, self.file_size)
        try:
            file.open()
            file.map()
        except BaseException:
            with suppress(OSError):
                file.delete()
            raise
        with self._lock:
            self._files[base] = file
            self._new.append(file)
        return file

    def make_soon(self) -> None:
        """Has room made for the first record."""
        self._rooms.ask(self._make_ahead)

    def sync_new(self) -> None:
        """Brings files that were just made to the disk, before `flush` has to wait for it; as `flush` does."""
        for new in list(self._new):
            self._sync(new)

    def refuse(self, who: str, refusal: Refusal | None) -> None:
        """Takes no records until the same who says None. May be called from any thread."""
        if refusal == self._refusals.get(who):
            return
        with self._lock:
            if refusal is None:
                del self._refusals[who]
            else:
                self._refusals[who] = refusal
                self.limit = 0

    @property
    def trouble(self) -> str | None:
        """Why it can't take records, whoever writes them; None while it can."""
        if self.failure is not None:
            return self.failure.text
        return next((refusal.text for who, refusal in list(self._refusals.items()) if who != _COPY), None)

    def refuse_all_but_copy(self, refusal: Refusal | None) -> None:
        """Takes nothing but the copy of another log, until None is said."""
        self.refuse(_COPY, refusal)
        # Who may write has to ask.
        self.limit = 0

    @property
    def is_copy(self) -> bool:
        """Takes nothing but the copy of another log."""
        return _COPY in self._refusals

    def fail(self, failure: Refusal) -> None:
        """Takes and flushes no records any more."""
        with self._lock:
            self.failure = failure
            self.limit = 0

    def _map(self, file: MappedFile) -> None:
        with self._lock:
            if self._closed and self.failure is not None:
                raise self.failure.exception()
            file.map()

    # -- deleting old files -------------------------------------------------------------------------------------

    def completed_at(self, file: MappedFile) -> float:
        """When a file got its last record, ms: then the next one got its first."""
        timestamp = self.store_time(file.base + self.file_size)
        return timestamp if timestamp >= 0 else files.stat(file.path).st_mtime * 1000

    def forget_first(self, before_ms: float) -> Path | None:
        """Lets the first file go if it was complete by then and is on the disk; its path, which is to be deleted.

        It must be gone from the disk before the next one is: what a power failure leaves must be without gaps. Slices
        of it that a socket still holds stay good. Raises StoreError.
        """
        end = self.min_offset + self.file_size
        file = self._files.get(self.min_offset)
        if file is None or end > min(self.position, self.flushed):
            return None
        try:
            if self.completed_at(file) >= before_ms:
                return None
        except OSError as e:
            raise StoreError(f"can't tell how old {file.path} is: {e.strerror or e}") from e
        log.info("deleting %s", file.path)
        del self._files[self.min_offset]
        self.min_offset = end
        file.close()
        return file.path

    # -- flushing -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Brings all records to the disk; waits without the GIL. Called by the flusher's thread.

        Raises SyncFailed, and then takes no more records: the kernel counts the pages as written, and a second
        fdatasync that succeeds would mean nothing. Raises OSError for what may pass, such as no descriptor left.
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
                # Before it counts as flushed: then it may be deleted, which closes it, too.
                file.close_descriptor()
            self.flushed = min(position, base + self.file_size)
        self.flushed_timestamp = timestamp

    def _sync(self, file: MappedFile) -> None:
        """Brings a file and the entries of new ones to the disk. Raises as `flush` does."""
        try:
            file.sync()
            count = len(self._new)
            if count and self._directory_fd is not None:
                sync_entries(self._directory_fd, self.directory)
                for _ in range(count):
                    self._new.popleft()
        except SyncFailed as e:
            text = f"{e}; what was written last may be lost, so no message is taken until the broker is started again"
            failure = Refusal(text, SyncFailed)
            self.fail(failure)
            raise failure.exception() from e

    def close(self) -> None:
        """Unmaps the files; whoever still writes or reads gets a StoreError."""
        self._closed = True
        self.fail(Refusal(f"the commit log {self.directory} is closed"))
        self.mapping = None
        with ExitStack() as stack:
            for file in self._files.values():
                stack.callback(file.close)
            stack.callback(self._close_directory)

    def _close_directory(self) -> None:
        fd, self._directory_fd = self._directory_fd, None
        if fd is not None:
            files.close(fd)
