"""The files of a queue of units. They are mapped on demand, and a thread preallocates space for the next units.

`MessageWriter.append` writes units directly, through `mapping`, `position` and `limit`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gantrymq.errors import StoreError
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.mapped_file import MappedFile, store_error
from gantrymq.store.preallocation import Preallocation
from gantrymq.store.queue_mappings import QueueMappings
from gantrymq.system import files

#: Blocks are reserved in pieces of this size: a small one for each of thousands of queues, a large one for a busy
#: queue.
RESERVE = 800 * UNIT_SIZE
_RESERVE_MORE = 8000 * UNIT_SIZE


class QueueFiles:
    """Files of `file_size` bytes in `directory`. `max_offset` is the queue offset of the next unit."""

    __slots__ = (
        "_directory",
        "_file_size",
        "_files",
        "_gone",
        "_mappings",
        "_needed",
        "_preallocation",
        "limit",
        "mapping",
        "max_offset",
        "position",
    )

    def __init__(self, directory: str, file_size: int, mappings: QueueMappings, preallocation: Preallocation) -> None:
        self.max_offset = 0
        #: Position of the next unit in `mapping`. At `limit`, the next unit needs a call of `preallocate` first.
        self.mapping: files.Mapping | None = None
        self.position = 0
        self.limit = 0
        self._directory = directory
        self._file_size = file_size
        self._files: dict[int, MappedFile] = {}
        #: The reason why the files must not be used any more.
        self._gone = ""
        self._mappings = mappings
        self._preallocation = preallocation
        #: Units before this queue offset need preallocated space.
        self._needed = 0

    @property
    def exists(self) -> bool:
        """Whether the queue has files and was not deleted."""
        return bool(self._files) and not self._gone

    @property
    def first_offset(self) -> int:
        """The queue offset at which the first file starts."""
        return next(iter(self._files), 0) // UNIT_SIZE

    def next_file_offset(self, offset: int) -> int:
        """Returns the first queue offset of the file after the file with `offset` (`rollNextFile`)."""
        per_file = self._file_size // UNIT_SIZE
        return offset - offset % per_file + per_file

    def _place(self, offset: int) -> tuple[int, int]:
        """Returns the base of the file of a queue offset, and the position in this file."""
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

    # -- preallocation ------------------------------------------------------------------------------------------

    def preallocate(self) -> None:
        """Makes the next unit's position writable. Raises StoreBusy, StoreFull or StoreError, as the log does."""
        self._need_file(1)
        base, at = self._place(self.max_offset)
        file = self._files[base]
        self.mapping, self.position = self._map(file), at
        limit = reserved = file.reserved
        following = self._files.get(base + self._file_size)
        if reserved < self._file_size or following is None or not following.reserved:
            limit -= min(RESERVE, reserved) // 2
        if at + UNIT_SIZE > limit:
            # Preallocate more before this space is used up.
            if reserved >= self._file_size:
                self._file(base + self._file_size)
            self._preallocation.ask(self._make_ahead)
            limit = reserved
        # While requests wait for this queue, each unit must call this method, so that none overtakes them.
        self.limit = at + UNIT_SIZE if self._preallocation.is_waited_for(self._make_needed) else limit

    def _need_file(self, count: int) -> None:
        """Ensures that there is space for `count` units after the last one. Raises as `preallocate` does."""
        if self._gone:
            raise StoreError(self._gone)
        self._preallocation.check_wait_queue(self._make_needed)
        end = self.max_offset + count
        if [base for base, at, size in self._pieces(end) if self._file(base).reserved < at + size]:
            self._needed = max(self._needed, end)
            self._preallocation.need(self._make_needed)

    def _pieces(self, end: int) -> list[tuple[int, int, int]]:
        """Returns (base of a file, position in it, bytes) for each file with units from the last one to `end`."""
        pieces = []
        offset = self.max_offset
        while offset < end:
            base, at = self._place(offset)
            size = min((end - offset) * UNIT_SIZE, self._file_size - at)
            pieces.append((base, at, size))
            offset += size // UNIT_SIZE
        return pieces

    def _make_needed(self) -> None:
        """Creates the space for the next units. Called by the preallocation thread. Raises StoreFull or StoreError."""
        for base, at, size in self._pieces(self._needed):
            if (file := self._files[base]).reserved < at + size:
                self._make(file, at, max(size, RESERVE))

    def _make_ahead(self) -> None:
        """Creates space in advance. Raises as `_make_needed` does."""
        base, at = self._place(self.max_offset)
        if (file := self._files.get(base)) is not None and file.reserved < self._file_size:
            # Doubles the space, so that it lasts until the thread runs again even for a busy queue.
            self._make(file, max(at, file.reserved), max(_RESERVE_MORE, file.reserved))
        elif (following := self._files.get(base + self._file_size)) is not None and not following.reserved:
            self._make(following, 0, RESERVE)

    def _make(self, file: MappedFile, start: int, size: int) -> None:
        with self._preallocation.making_for_queues:
            if self._gone or file.reserved >= start + size:
                return
            try:
                file.make(start, start + size)
            except StoreError:
                if not self._gone:
                    raise
                return  # The directory was deleted at the same time.
            if self._gone:
                # The queue was deleted in the meantime, so delete the new file, too.
                files.unlink(file.path, missing_ok=True)
                with suppress(OSError):
                    files.remove_directory(Path(self._directory))
                    files.remove_directory(Path(self._directory).parent)

    def preallocate_for(self, count: int) -> None:
        """Makes the positions of the next `count` units writable. Raises as `preallocate` does."""
        if self.position + count * UNIT_SIZE > self.limit:
            # Requests that wait for preallocation come first, even if fewer units would fit.
            self.limit = 0
            self._need_file(count)
            self.preallocate()

    # -- mapping, deleting, closing -----------------------------------------------------------------------------

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
        """Returns whether the next units are written to this file's mapping."""
        return self.mapping is not None and self.mapping is file.mapping

    def unmap_file(self, file: MappedFile) -> None:
        """Releases the mapping of a file. It is mapped again on demand."""
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
        """Unmaps all files. Later use raises StoreError with the text `why`."""
        self._gone = why
        self._preallocation.forget(self._make_needed)
        self._preallocation.forget(self._make_ahead)
        self.unmap()

    def _forget_files(self, why: str) -> list[MappedFile]:
        """Marks the files as deleted and returns them. Later use raises StoreError with the text `why`."""
        self._gone = why
        self._preallocation.forget(self._make_needed)
        self._preallocation.forget(self._make_ahead)
        self.mapping = None
        self.position = self.limit = 0
        for file in self._files.values():
            self._mappings.forget(file)
        return list(self._files.values())
