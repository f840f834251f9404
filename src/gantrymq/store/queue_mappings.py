"""Limits the number of mapped queue files. The files that were used last stay mapped."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from gantrymq.store.mapped_file import MappedFile

#: The default of the system's limit, vm.max_map_count, is 65,530. The others are for up to 5,000 files of the log, with
#: two mappings each, and for libraries and threads. Decision record: docs/decisions/many-queues.md.
MOST_MAPPINGS = 53_248


class MappingQueue(Protocol):
    """The part of a ConsumeQueue that this module needs."""

    max_offset: int

    def is_written_to(self, file: MappedFile) -> bool:
        """Returns whether the next units are written to this file's mapping."""

    def unmap_file(self, file: MappedFile) -> None: ...


class _Entry:
    __slots__ = ("queue", "written_until")

    def __init__(self, queue: MappingQueue) -> None:
        self.queue = queue
        #: The queue's end when this file was last kept. Its initial value includes the message for which the file is
        #: mapped.
        self.written_until = queue.max_offset + 1


class QueueMappings:
    """The mapped files of all queues of a store, at most `limit`. The least recently used file is unmapped first.

    An exact order would cost each pull and each message a list operation. Instead, a read marks the file, and a write
    changes the queue's end. A file that was used since the last check is kept and moves to the end of the list (clock
    algorithm).
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = MOST_MAPPINGS if limit is None else limit
        self._files: OrderedDict[MappedFile, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def map(self, file: MappedFile, queue: MappingQueue) -> None:
        """Maps a file of a queue. Raises StoreFull or StoreError."""
        # Unmaps other files first, so that this file isn't selected.
        while len(self._files) >= self._limit:
            self._unmap_oldest()
        file.map()
        file.is_used = False
        self._files[file] = _Entry(queue)

    def forget(self, file: MappedFile) -> None:
        """Removes a file that was unmapped, or was never mapped."""
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
