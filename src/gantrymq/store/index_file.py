"""One file of the index: an on-disk hash table from `topic#key` to physical offsets (`index/IndexFile`).

    header   int64 beginTimestamp | endTimestamp | beginPhyOffset | endPhyOffset | int32 hashSlotCount | indexCount
    slots    int32 number of the newest entry; an entry with the hash h belongs to the slot h % (number of slots)
    entries  int32 hash | int64 physical offset | int32 seconds after beginTimestamp | int32 the slot's entry before

Entries are numbered from 1. The number 0 means none, and indexCount is the number of the next entry. Records are added
in the order of the log, so a slot's chain leads from the newest entry to the oldest. A file is 420 MB long but sparse.
Blocks for the slots are reserved at once. Blocks for entries are preallocated in pieces by a thread (`Preallocation`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from gantrymq.errors import StoreError, StoreFull
from gantrymq.kernels.interface import IndexEntries
from gantrymq.store.mapped_file import MappedFile
from gantrymq.store.preallocation import Preallocation
from gantrymq.system import files

NAME_LENGTH = len("yyyyMMddHHmmssSSS")
HEADER = Struct(">4q2i")
HEADER_SIZE = HEADER.size
SLOT = Struct(">i")
ENTRY = Struct(">iqii")
ENTRY_SIZE = ENTRY.size
_RESERVE = 4 * 1024 * 1024
_MAX_INT = (1 << 31) - 1

_unpack_slot = SLOT.unpack_from
_pack_slot = SLOT.pack_into
_pack_entry = ENTRY.pack_into


#: A new entry: the key's hash, the record's physical offset and its store timestamp in milliseconds.
Entry = tuple[int, int, int]


class IndexHeader(NamedTuple):
    """Header of an index file. Store timestamps are in ms. Records up to the one at `end_phy_offset` have been read."""

    begin_timestamp: int
    end_timestamp: int
    begin_phy_offset: int
    end_phy_offset: int
    hash_slot_count: int
    index_count: int


class IndexEntry(NamedTuple):
    """Entry of an index file. `timestamp` is in ms. `previous` is the number of the slot's next older entry, or 0."""

    number: int
    hash: int
    physical_offset: int
    timestamp: int
    previous: int


def file_size(hash_slots: int, max_entries: int) -> int:
    """Returns the size of an index file in bytes."""
    return HEADER_SIZE + hash_slots * SLOT.size + max_entries * ENTRY_SIZE


def read_header(path: Path) -> IndexHeader:
    """Returns the header of a file. Raises StoreError if the file has no header."""
    try:
        fd = files.open(path, files.O_RDONLY | files.O_CLOEXEC)
        try:
            header = IndexHeader(*HEADER.unpack(files.pread(fd, HEADER_SIZE, 0)))
        finally:
            files.close(fd)
    except (OSError, StructError) as e:
        raise StoreError(f"can't read {path}: {e}") from e
    return header._replace(index_count=max(header.index_count, 1))


class IndexFile:
    """The index file at `path`, with `hash_slots` slots and `max_entries` entries. The first entry is never used.

    `header` contains the initial values of a new file. `put` changes them in memory; `write_header` writes them.
    """

    def __init__(
        self, path: Path, hash_slots: int, max_entries: int, header: IndexHeader, preallocation: Preallocation
    ) -> None:
        self.path = path
        self.hash_slots = hash_slots
        self.max_entries = max_entries
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_phy_offset,
            self.end_phy_offset,
            self.hash_slot_count,
            self.index_count,
        ) = header
        #: Whether the file was removed from the store. It must then not be read, mapped or created again.
        self.is_gone = False
        self._preallocation = preallocation
        #: Entries can be written without a check up to the file position `_limit`. `_needed` is the end of the
        #: requested blocks.
        self._limit = self._needed = 0
        self._entries_at = HEADER_SIZE + hash_slots * SLOT.size
        self._file = MappedFile(path.parent, 0, file_size(hash_slots, max_entries), read_ahead=False, name=path.name)

    @property
    def is_full(self) -> bool:
        return self.index_count >= self.max_entries

    # -- writing ------------------------------------------------------------------------------------------------

    def put(self, entries: list[Entry] | IndexEntries, start: int = 0) -> int:
        """Adds entries from index `start` on until the file is full. Returns their number.

        Raises StoreBusy, StoreFull or StoreError.
        """
        first = number = self.index_count
        mapping, limit = self._file.mapping, self._limit
        put = self._put_list if isinstance(entries, list) else self._put_native
        try:
            while start < len(entries) and number < self.max_entries:
                at = self._entries_at + number * ENTRY_SIZE
                if mapping is None or at + ENTRY_SIZE > limit:
                    self.need_file(at + ENTRY_SIZE)
                    mapping, limit = self._file.map(), self._limit
                count = min(len(entries) - start, self.max_entries - number, (limit - at) // ENTRY_SIZE)
                self.hash_slot_count += put(mapping, entries, start, count, number)
                if number == 1:
                    _, self.begin_phy_offset, self.begin_timestamp = entries[start]
                start += count
                number += count
        finally:
            if number > first:
                self.index_count = number
                _, self.end_phy_offset, self.end_timestamp = entries[start - 1]
        return number - first

    def _put_list(
        self, mapping: files.Mapping, entries: list[Entry] | IndexEntries, start: int, count: int, number: int
    ) -> int:
        """Writes `count` entries from index `start` on into the mapping. The first one gets the number `number`.

        Returns the number of slots that were empty before.
        """
        at, hash_slots = self._entries_at + number * ENTRY_SIZE, self.hash_slots
        begin = self.begin_timestamp
        new_slots = 0
        for place in range(start, start + count):
            key_hash, physical_offset, store_timestamp = entries[place]
            slot_at = HEADER_SIZE + key_hash % hash_slots * 4
            (previous,) = _unpack_slot(mapping, slot_at)
            if not 0 < previous < number:
                previous = 0
                new_slots += 1
            # The first entry's time counts from the end of the previous file, as in Java.
            seconds = (store_timestamp - begin) // 1000 if store_timestamp > begin > 0 else 0
            _pack_entry(mapping, at, key_hash, physical_offset, seconds if seconds < _MAX_INT else _MAX_INT, previous)
            _pack_slot(mapping, slot_at, number)
            if number == 1:
                begin = store_timestamp
            at += ENTRY_SIZE
            number += 1
        return new_slots

    def _put_native(
        self, mapping: files.Mapping, entries: list[Entry] | IndexEntries, start: int, count: int, number: int
    ) -> int:
        """Does the same as `_put_list` in native code."""
        assert not isinstance(entries, list)
        return entries.put(start, count, mapping, self.hash_slots, number, self.begin_timestamp)

    def need_file(self, end: int = 0) -> None:
        """Ensures that blocks are reserved up to `end`, and at least for the first entry. Requests more in advance.

        Raises StoreBusy, StoreFull or StoreError as `Preallocation.need` does.
        """
        end = max(end, self._entries_at + ENTRY_SIZE)
        file = self._file
        if end > file.reserved:
            # The reserved part of an existing file is unknown, so blocks are reserved from its start.
            self._needed = end + _RESERVE
            self._preallocation.need(self._make)
        self._limit = limit = file.reserved - _RESERVE // 2
        if end > limit:
            self._limit = file.reserved
            if file.reserved < file.size:
                self._needed = file.reserved + _RESERVE
                self._preallocation.ask(self._make)

    def _make(self) -> None:
        """Creates the requested blocks. Called by the preallocation thread. Raises StoreFull or StoreError."""
        file = self._file
        if self.is_gone or file.reserved >= min(self._needed, file.size):
            return
        is_new = not files.exists(file.path)
        try:
            file.make(file.reserved, self._needed)
        except StoreFull:
            if is_new:
                # Release the blocks that were reserved before the disk was full.
                with suppress(OSError):
                    files.unlink(file.path)
            raise
        if self.is_gone:
            # The file has left the store in the meantime and may have been deleted.
            files.unlink(file.path, missing_ok=True)

    def number_at(self, physical_offset: int) -> int:
        """Returns the number of the first entry at or after this physical offset; `index_count` if there is none.

        Does not map the file. Raises StoreError.
        """
        low, high = 1, self.index_count
        while low < high:
            middle = (low + high) // 2
            if ENTRY.unpack(self.entries(middle, middle + 1))[1] < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def drop_from(self, number: int, timestamp: int) -> None:
        """Deletes the entries from `number` on. The first entry can't be deleted.

        `timestamp` is the store timestamp of the last remaining entry. Raises StoreError.
        """
        mapping = self._file.map()
        for dropped in range(self.index_count - 1, number - 1, -1):
            key_hash, _, _, previous = ENTRY.unpack_from(mapping, self._entries_at + dropped * ENTRY_SIZE)
            _pack_slot(mapping, HEADER_SIZE + key_hash % self.hash_slots * 4, previous)
            if not previous:
                self.hash_slot_count -= 1
        self.index_count = number
        self.end_phy_offset = self.entry(number - 1).physical_offset
        self.end_timestamp = timestamp
        self.write_header()

    def write_header(self) -> None:
        """Writes the header into the mapping. Raises StoreFull or StoreError."""
        if self._file.mapping is None:
            self._file.map()
        if self._file.reserved < HEADER_SIZE:
            self._file.reserve(0, HEADER_SIZE)
        assert self._file.mapping is not None
        HEADER.pack_into(
            self._file.mapping,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_phy_offset,
            self.end_phy_offset,
            self.hash_slot_count,
            self.index_count,
        )

    # -- reading ------------------------------------------------------------------------------------------------

    def entry(self, number: int) -> IndexEntry:
        """Returns an entry. `number` is between 1 and `index_count` - 1."""
        key_hash, physical_offset, seconds, previous = ENTRY.unpack_from(
            self._file.map(), self._entries_at + number * ENTRY_SIZE
        )
        return IndexEntry(number, key_hash, physical_offset, self.begin_timestamp + seconds * 1000, previous)

    def entries(self, begin: int, end: int) -> bytes:
        """Returns the bytes of the entries with the numbers `begin` to before `end`, without mapping the file.

        The file must not be gone. Raises StoreError, also if the file is too short.
        """
        at, size = self._entries_at + begin * ENTRY_SIZE, (end - begin) * ENTRY_SIZE
        if self._file.mapping is not None:
            return self._file.mapping[at : at + size]
        try:
            fd = files.open(self._file.path_text, files.O_RDONLY | files.O_CLOEXEC)
            try:
                data = files.pread(fd, size, at)
            finally:
                files.close(fd)
        except OSError as e:
            raise StoreError(f"can't read {self.path}: {e}") from e
        if len(data) < size:
            raise StoreError(f"{self.path} ends before the entry {end}")
        return data

    def chain(self, key_hash: int) -> Iterator[IndexEntry]:
        """Yields the entries of the hash's slot, newest first. Some entries can have other hashes.

        Between two entries the file may be unmapped and is then mapped again. If it is deleted, the chain ends.
        """
        if self.is_gone:
            return
        (number,) = _unpack_slot(self._file.map(), HEADER_SIZE + key_hash % self.hash_slots * 4)
        newest = self.index_count
        # Numbers decrease along a chain. In a damaged file, the chain ends where they do not.
        while 0 < number < newest:
            entry = self.entry(number)
            yield entry
            if self.is_gone:
                return
            newest, number = number, entry.previous

    def unmap(self) -> None:
        self._file.unmap()

    def close(self) -> None:
        self.is_gone = True
        self._preallocation.forget(self._make)
        self._file.close()

    def delete(self) -> None:
        """Deletes the file. Raises OSError."""
        self.is_gone = True
        self._preallocation.forget(self._make)
        self._file.delete()
