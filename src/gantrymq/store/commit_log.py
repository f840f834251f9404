"""The commit log: every record of the broker, one after the other, in files of a fixed size (`store/CommitLog`).

A physical offset counts bytes from the first record ever written; a file's name is the offset of its first byte. A
record never spans files: what is left at a file's end is a blank, `int32 size | int32 0xCBD43194 | anything`.

`MessageWriter.append` writes small records itself, through `mapping`, `base`, `position` and `limit`; large ones, and
many at once, are written here. And here is what it needs once in a while: the next file, and blocks on the disk ahead
of it. A thread makes both before they are needed (`log_room`). Which files there are is in `log_files`.
"""

from __future__ import annotations

from pathlib import Path

from gantrymq.errors import RecordError, StoreError, SyncFailed
from gantrymq.protocol.record import (
    BLANK_SIZE,
    MAGIC_BLANK,
    Buffer,
    Record,
    decode_record,
    pack_blank,
    store_timestamp_at,
    unpacker,
)
from gantrymq.store.checkpoint import Checkpoint
from gantrymq.store.log_files import LogFiles
from gantrymq.store.log_room import RESERVE, LogRoom
from gantrymq.store.mapped_file import MappedFile
from gantrymq.store.refusal import Refusal
from gantrymq.store.room_maker import RoomMaker
from gantrymq.store.trash import Trash
from gantrymq.system import files

#: So many bytes cost less when the system writes them than through the mapping, see `MappedFile.write`.
LARGE = 16 * 1024
#: Who refuses all but the copy of another log.
_COPY = "slave"
_unpack_head = unpacker("size", "magic")


class CommitLog:
    """The log in `directory`. After `load` and `start_at` it can be written to."""

    def __init__(self, directory: Path, file_size: int, rooms: RoomMaker) -> None:
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
        #: Why nothing may be written or flushed any more.
        self.failure: Refusal | None = None
        #: Why nothing may be written for now, by who says so.
        self._refusals: dict[str, Refusal] = {}
        self._files = LogFiles(directory, file_size)
        self._room = LogRoom(self._files, rooms, lambda: self.position)
        self._closed = False

    @property
    def min_offset(self) -> int:
        """The physical offset at which the first file begins."""
        return self._files.min_offset

    # -- opening ------------------------------------------------------------------------------------------------

    @property
    def was_missing(self) -> bool:
        """Whether `load` found no file."""
        return self._files.was_missing

    def load(self, checkpoint: Checkpoint, *, was_aborted: bool) -> None:
        """Finds the files; see `LogFiles.load`. Recovery finds out how far the records go."""
        self.position = self._files.load(checkpoint, was_aborted=was_aborted)

    def start_at(self, end: int, flushed: int) -> None:
        """Makes `end` the place of the next record: files after it are deleted, and zero follows it.

        All before `flushed` is taken to be on the disk. Raises StoreError, OSError.
        """
        self._files.end_at(end)
        self.position = end
        self.flushed = min(flushed, end)
        self.limit = 0
        self._room.forget()
        self.mapping = None
        base = end // self.file_size * self.file_size
        if (old := self._files.at(end)) is not None:
            old.clear_from(end - base)
        # So that a power failure leaves at least the file with which later ones go on. And what was cut off could else
        # follow upon a record that was written later.
        self._sync(self._files.made(base))

    def begin_at(self, physical_offset: int, trash: Trash) -> None:
        """Drops all files, and begins with an empty one there; as `start_at`."""
        self._files.drop_all(trash, physical_offset)
        self.flushed = physical_offset
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
        return self._files.at(physical_offset)

    def view_at(self, physical_offset: int) -> tuple[memoryview, int] | None:
        """(the file's bytes, its base) where a record may begin; None outside of the log."""
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
        self._room.check_line()
        if size + BLANK_SIZE > self.file_size:
            raise StoreError(f"a record of {size} bytes doesn't fit into a file of {self.file_size} bytes")
        base = start = self.position // self.file_size * self.file_size
        if self.position + size + BLANK_SIZE > base + self.file_size:
            start += self.file_size
        end = max(self.position, start) + size
        if self._files.reserved(base) < self.position + BLANK_SIZE or self._files.reserved(start) < end + BLANK_SIZE:
            # Nobody is to write what has room before who waits here.
            self.limit = 0
            self._room.need(size)
        if start > base:
            pack_blank(self._files[base].map(), self.position - base, start - self.position)
        limit = reserved = self._files.reserved(start) - BLANK_SIZE
        if reserved + BLANK_SIZE < start + self.file_size:
            limit -= RESERVE // 2
        if start + self.file_size not in self._files:
            limit = min(limit, start + self.file_size // 2)
        if end > limit:
            # When this is used up it will be there.
            self._room.ask(end)
            limit = reserved
        with self._files.lock:
            self._check()
            self.position = max(self.position, start)
            self._write_to(start)
            # While others wait for their turn each record has to ask.
            self.limit = end if self._room.is_closed else limit

    def make_room_for_copy(self, size: int) -> None:
        """Makes the next `size` bytes of this file writable for a copy of another log, whose blanks end its files.

        Raises as `make_room` does; that others may write nothing doesn't count.
        """
        self._check(is_copy=True)
        base = self.position // self.file_size * self.file_size
        end, file_end = self.position + size, base + self.file_size
        reserved = self._files.reserved(base)
        # Behind a blank the next file begins.
        has_next = self._files.reserved(file_end) >= file_end + BLANK_SIZE
        if reserved < end or (end == file_end and not has_next):
            self._room.need_for_copy(end)
        elif (end - base >= self.file_size // 2 and not has_next) or reserved < min(end + RESERVE // 2, file_end):
            # When this is used up it will be there.
            self._room.ask(end)
        if self.base != base or self.mapping is None:
            with self._files.lock:
                self._check(is_copy=True)
                self._write_to(base)

    def _write_to(self, base: int) -> None:
        """The file at `base` gets the next records, and the one before it none any more."""
        if self.mapping is not None and self.base != base and self.base in self._files:
            self._files[self.base].will_be_written(self.file_size)
        self.base = base
        self.mapping = self._files[base].map()

    def write(self, records: Buffer) -> None:
        """Writes whole records at the log's end, where there is room; they count when `position` is behind them.

        Raises StoreFull, StoreError; then nothing is there. They are all there or none, wherever the process is killed:
        size and magic number of the first come last, without them the log ends before it, and recovery clears what
        follows.
        """
        assert self.mapping is not None
        start = self.position - self.base
        if len(records) < LARGE:
            self.mapping[start + BLANK_SIZE : start + len(records)] = records[BLANK_SIZE:]
        else:
            self._files[self.base].write(start + BLANK_SIZE, memoryview(records)[BLANK_SIZE:])
        self.mapping[start : start + BLANK_SIZE] = records[:BLANK_SIZE]

    def take_in_turn(self) -> None:
        """Has each record ask for room, so that none is written before those that wait."""
        self.limit = 0

    def _check(self, *, is_copy: bool = False) -> None:
        """Raises StoreError when nothing may be written."""
        if self.failure is not None:
            raise self.failure.exception()
        for who, refusal in list(self._refusals.items()):
            if not (is_copy and who == _COPY):
                raise refusal.exception()

    def make_soon(self) -> None:
        """Has room made for the first record."""
        self._room.ask(self.position)

    def sync_new(self) -> None:
        """Brings files that were just made to the disk, before `flush` has to wait for it; as `flush` does."""
        for new in self._files.new():
            self._sync(new)

    def refuse(self, who: str, refusal: Refusal | None) -> None:
        """Takes no records until the same who says None. May be called from any thread."""
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
        """When a file got its last record, ms: then the next one got its first."""
        timestamp = self.store_time(file.base + self.file_size)
        return timestamp if timestamp >= 0 else files.stat(file.path).st_mtime * 1000

    def forget_first(self, before_ms: float) -> Path | None:
        """Lets the first file go if it was complete by then and is on the disk; its path, which is to be deleted.

        It must be gone from the disk before the next one is: what a power failure leaves must be without gaps. Slices
        of it that a socket still holds stay good. Raises StoreError.
        """
        end = self.min_offset + self.file_size
        file = self._files.at(self.min_offset)
        if file is None or end > min(self.position, self.flushed):
            return None
        try:
            if self.completed_at(file) >= before_ms:
                return None
        except OSError as e:
            raise StoreError(f"can't tell how old {file.path} is: {e.strerror or e}") from e
        return self._files.forget_first()

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
            self._files.sync(file)
        except SyncFailed as e:
            text = f"{e}; what was written last may be lost, so no message is taken until the broker is started again"
            failure = Refusal(text, SyncFailed)
            self.fail(failure)
            raise failure.exception() from e

    def close(self) -> None:
        """Unmaps the files; whoever still writes or reads gets a StoreError."""
        self._closed = True
        self.fail(Refusal(f"the commit log {self._files.directory} is closed"))
        self.mapping = None
        self._files.close()
