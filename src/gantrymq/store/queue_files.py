"""The files of a queue of units: mapped when they are needed, with room ahead of the next unit made by a thread.

`MessageWriter.append` writes units itself, through `mapping`, `position` and `limit`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gantrymq.errors import StoreError
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.mapped_file import MappedFile, store_error
from gantrymq.store.queue_mappings import QueueMappings
from gantrymq.store.room_maker import RoomMaker
from gantrymq.system import files

#: Blocks are reserved for so many units at once: few for each of thousands of queues, more where many come.
RESERVE = 800 * UNIT_SIZE
_RESERVE_MORE = 8000 * UNIT_SIZE


class QueueFiles:
    """Files of `file_size` bytes in `directory`; the next unit gets the queue offset `max_offset`."""

    __slots__ = (
        "_directory",
        "_file_size",
        "_files",
        "_gone",
        "_mappings",
        "_needed",
        "_rooms",
        "limit",
        "mapping",
        "max_offset",
        "position",
    )

    def __init__(self, directory: Path, file_size: int, mappings: QueueMappings, rooms: RoomMaker) -> None:
        self.max_offset = 0
        #: Where the next unit goes in `mapping`; at `limit` it needs `make_room` first.
        self.mapping: files.Mapping | None = None
        self.position = 0
        self.limit = 0
        self._directory = directory
        self._file_size = file_size
        self._files: dict[int, MappedFile] = {}
        #: Why they must not be used any more.
        self._gone = ""
        self._mappings = mappings
        self._rooms = rooms
        #: The units before this queue offset need room.
        self._needed = 0

    @property
    def exists(self) -> bool:
        """Has files, and was not deleted."""
        return bool(self._files) and not self._gone

    @property
    def first_offset(self) -> int:
        """The queue offset at which the first file begins."""
        return next(iter(self._files), 0) // UNIT_SIZE

    def next_file_offset(self, offset: int) -> int:
        """The queue offset at which the file after that of `offset` begins (`rollNextFile`)."""
        per_file = self._file_size // UNIT_SIZE
        return offset - offset % per_file + per_file

    def _place(self, offset: int) -> tuple[int, int]:
        """(base of the file, place in it) of a queue offset."""
        at = offset * UNIT_SIZE
        return at - at % self._file_size, at % self._file_size

    def _map(self, file: MappedFile) -> files.Mapping:
        if file.mapping is not None:
            file.is_used = True
            return file.mapping
        if self._gone:
            raise StoreError(self._gone)
        self._mappings.map(file, self)
        assert file.mapping is not None
        return file.mapping

    # -- room ---------------------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Makes the place of the next unit writable. Raises StoreBusy, StoreFull, StoreError, as the log's does."""
        self._need_room(1)
        base, at = self._place(self.max_offset)
        file = self._files[base]
        self.mapping, self.position = self._map(file), at
        limit = reserved = file.reserved
        following = self._files.get(base + self._file_size)
        if reserved < self._file_size or following is None or not following.reserved:
            limit -= min(RESERVE, reserved) // 2
        if at + UNIT_SIZE > limit:
            # When this is used up there will be more.
            if reserved >= self._file_size:
                self._file(base + self._file_size)
            self._rooms.ask(self._make_ahead)
            limit = reserved
        # While others wait for this queue each unit has to ask: between two turns of theirs nobody is to come first.
        self.limit = at + UNIT_SIZE if self._rooms.is_waited_for(self._make_needed) else limit

    def _need_room(self, count: int) -> None:
        """Returns when there is room for so many units behind the last one; raises as `make_room` does."""
        if self._gone:
            raise StoreError(self._gone)
        self._rooms.check_line(self._make_needed)
        end = self.max_offset + count
        if [base for base, at, size in self._pieces(end) if self._file(base).reserved < at + size]:
            self._needed = max(self._needed, end)
            self._rooms.need(self._make_needed)

    def _pieces(self, end: int) -> list[tuple[int, int, int]]:
        """(base of a file, place in it, bytes) for each file that units from the last one to `end` are in."""
        pieces = []
        offset = self.max_offset
        while offset < end:
            base, at = self._place(offset)
            size = min((end - offset) * UNIT_SIZE, self._file_size - at)
            pieces.append((base, at, size))
            offset += size // UNIT_SIZE
        return pieces

    def _make_needed(self) -> None:
        """Makes what the next units need; called by the room maker. Raises StoreFull, StoreError."""
        for base, at, size in self._pieces(self._needed):
            if (file := self._files[base]).reserved < at + size:
                self._make(file, at, max(size, RESERVE))

    def _make_ahead(self) -> None:
        """Makes what will be needed; as `_make_needed`."""
        base, at = self._place(self.max_offset)
        if (file := self._files.get(base)) is not None and file.reserved < self._file_size:
            # As much again: where many come it must last for longer than the thread may take.
            self._make(file, max(at, file.reserved), max(_RESERVE_MORE, file.reserved))
        elif (following := self._files.get(base + self._file_size)) is not None and not following.reserved:
            self._make(following, 0, RESERVE)

    def _make(self, file: MappedFile, start: int, size: int) -> None:
        with self._rooms.making_for_queues:
            if self._gone or file.reserved >= start + size:
                return
            try:
                file.make(start, start + size)
            except StoreError:
                if not self._gone:
                    raise
                return  # Its directory was taken away in the midst of it.
            if self._gone:
                # Deleted meanwhile: what was made in its place goes, too.
                files.unlink(file.path, missing_ok=True)
                with suppress(OSError):
                    files.remove_directory(self._directory)
                    files.remove_directory(self._directory.parent)

    def make_room_for(self, count: int) -> None:
        """Makes the places of the next units writable, as many as there are; raises as `make_room` does."""
        if self.position + count * UNIT_SIZE > self.limit:
            # Nobody is to write what has room before who waits here.
            self.limit = 0
            self._need_room(count)
            self.make_room()

    # -- mapped, deleted, closed --------------------------------------------------------------------------------

    def _file(self, base: int) -> MappedFile:
        file = self._files.get(base)
        if file is None:
            file = MappedFile(self._directory, base, self._file_size, read_ahead=False)
            in_order = not self._files or base > max(self._files)
            self._files[base] = file
            if not in_order:
                self._files = dict(sorted(self._files.items()))
        return file

    def is_written_to(self, file: MappedFile) -> bool:
        """Whether the next units go to this file's mapping."""
        return self.mapping is not None and self.mapping is file.mapping

    def unmap_file(self, file: MappedFile) -> None:
        """Lets a mapping go; it is made anew when it is needed."""
        if self.is_written_to(file):
            self.mapping = None
            self.position = self.limit = 0
        self._mappings.forget(file)
        file.unmap()

    def unmap(self) -> None:
        for file in self._files.values():
            self.unmap_file(file)

    def _delete(self, base: int) -> None:
        file = self._files[base]
        self.unmap_file(file)
        try:
            file.delete()
        except OSError as e:
            raise store_error(e, f"can't delete {file.path}") from e
        del self._files[base]

    def close(self, why: str) -> None:
        """Unmaps all; later use raises a StoreError that says `why`."""
        self._gone = why
        self._rooms.forget(self._make_needed)
        self._rooms.forget(self._make_ahead)
        self.unmap()

    def _forget_files(self, why: str) -> list[MappedFile]:
        """The files are deleted: later use raises a StoreError that says `why`. Returns them."""
        self._gone = why
        self._rooms.forget(self._make_needed)
        self._rooms.forget(self._make_ahead)
        self.mapping = None
        self.position = self.limit = 0
        for file in self._files.values():
            self._mappings.forget(file)
        return list(self._files.values())
