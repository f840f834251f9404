"""Which queue files are mapped: as many as the system lets a process have, those that were used last."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from gantrymq.store.mapped_file import MappedFile

#: vm.max_map_count is 65,530 unless set.
MOST_MAPPINGS = 32_768


class MappingQueue(Protocol):
    """What of a ConsumeQueue is needed here."""

    max_offset: int

    def is_written_to(self, file: MappedFile) -> bool:
        """Whether the next units go to this file's mapping."""

    def unmap_file(self, file: MappedFile) -> None: ...


class _Entry:
    __slots__ = ("queue", "written_until")

    def __init__(self, queue: MappingQueue) -> None:
        self.queue = queue
        #: The queue's end when this file was last spared; at first behind the message that it is mapped for.
        self.written_until = queue.max_offset + 1


class QueueMappings:
    """The mapped files of all queues of a store, at most `limit`; what was used longest ago is unmapped first.

    To be exact about that would cost each pull a move in a list, and each message, too. So whoever reads marks the
    file, `append` doesn't even do that; a file that was read or written to since it was last looked at is spared once,
    and comes behind all others (the clock algorithm).
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = MOST_MAPPINGS if limit is None else limit
        self._files: OrderedDict[MappedFile, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def map(self, file: MappedFile, queue: MappingQueue) -> None:
        """Maps a file of the queue that isn't mapped. Raises StoreFull, StoreError."""
        # Before: this one must not be among those that have to go.
        while len(self._files) >= self._limit:
            self._unmap_oldest()
        file.map()
        file.is_used = False
        self._files[file] = _Entry(queue)

    def forget(self, file: MappedFile) -> None:
        """A file is unmapped, or never was mapped."""
        self._files.pop(file, None)

    def _unmap_oldest(self) -> None:
        while True:
            file, entry = next(iter(self._files.items()))
            queue = entry.queue
            is_written = queue.is_written_to(file) and queue.max_offset != entry.written_until
            if not (is_written or file.is_used):
                queue.unmap_file(file)
                return
            file.is_used = False
            entry.written_until = queue.max_offset
            self._files.move_to_end(file)
