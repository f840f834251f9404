"""Reads a store's files without opening the store: no writes, no lock (`inspect`, `verify`, `dump`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from gantrymq.errors import StoreError
from gantrymq.protocol.record import Record
from gantrymq.store.checkpoint import Checkpoint, load_checkpoint
from gantrymq.store.config import UNIT_SIZE, StoreConfig
from gantrymq.store.consume_queue import FILLER_SIZE, NO_UNIT, UNIT
from gantrymq.store.directory import lock_directory
from gantrymq.store.index_file import IndexHeader, read_header
from gantrymq.store.log_paths import LogFile, find_log_files
from gantrymq.store.log_reader import LogReader
from gantrymq.store.mapped_file import list_files, open_directory
from gantrymq.store.message_index import index_paths
from gantrymq.system import files

_OPEN_FILES = 200
#: Number of units per read.
_CHUNK = 4096


def is_in_use(root: Path) -> bool:
    """Returns whether a broker has locked the store."""
    try:
        fd = files.open(root / "lock", files.O_RDONLY | files.O_CLOEXEC)
    except FileNotFoundError:
        return _is_directory_locked(root)
    except OSError:
        return False
    try:
        return files.is_locked_by_java(fd)
    finally:
        files.close(fd)


def _is_directory_locked(root: Path) -> bool:
    """Returns whether a broker locked the directory, for a store without its file `lock`. Tries to take the lock."""
    try:
        fd = open_directory(root)
    except OSError:
        return False
    try:
        return not lock_directory(fd, root)
    finally:
        files.close(fd)


class OfflineLog:
    """The files of a commit log in one or several directories. Raises StoreError if a directory can't be read."""

    def __init__(self, *directories: Path) -> None:
        self.files, _ = find_log_files(directories)
        self.min_offset = self.files[0].base if self.files else 0
        #: The end of the last file. The records end before this position.
        self.limit = self.files[-1].base + self.files[-1].length if self.files else 0
        self._mapped: tuple[memoryview, int] | None = None

    def file_at(self, physical_offset: int) -> LogFile | None:
        """Returns the file that contains this offset; None if there is none."""
        for file in self.files:
            if file.base <= physical_offset < file.base + file.length:
                return file
        return None

    def view_at(self, physical_offset: int) -> tuple[memoryview, int] | None:
        """Returns the bytes of the file that contains this offset, and their base; None outside of the log."""
        if self._mapped is not None and 0 <= physical_offset - self._mapped[1] < len(self._mapped[0]):
            return self._mapped
        file = self.file_at(physical_offset)
        if file is None:
            return None
        try:
            fd = files.open(file.path, files.O_RDONLY | files.O_CLOEXEC)
            try:
                mapping = files.map_to_read(fd, file.length)
            finally:
                files.close(fd)
        except OSError as e:
            raise StoreError(f"can't read {file.path}: {e.strerror or e}") from e
        self._mapped = memoryview(mapping), file.base
        return self._mapped

    def reader(self, start: int | None = None) -> LogReader:
        """Returns a reader from `start` on, by default from the start of the log."""
        return LogReader(self, self.min_offset if start is None else start)

    def records(self, begin: int, end: int) -> Iterator[Record]:
        """Yields the records that start in the range from `begin` to `end`."""
        return takewhile(lambda record: record.physical_offset < end, LogReader(self, begin))


class Unit(NamedTuple):
    """A queue unit and its queue offset."""

    offset: int
    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_filler(self) -> bool:
        return self.size == FILLER_SIZE and self.physical_offset == 0


class OfflineQueue:
    """The files of one consume queue. `first_offset` and `end` are queue offsets."""

    def __init__(self, topic: str, queue_id: int, directory: Path, opened: OpenFiles) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = directory
        self._lengths = list_files(directory)
        self._files = opened
        bases = list(self._lengths)
        # All files have the same size, but the last one may be truncated.
        self.file_size = bases[1] - bases[0] if len(bases) > 1 else max(self._lengths.values(), default=0)
        self.first_offset = bases[0] // UNIT_SIZE if bases else 0
        self.end = self._end()

    def __repr__(self) -> str:
        return f"{self.topic}-{self.queue_id}"

    def _end(self) -> int:
        """Returns the queue offset after the last unit. All bytes after it are zero."""
        for base in reversed(self._lengths):
            low, high = 0, self._lengths[base] // UNIT_SIZE
            while low < high:
                middle = (low + high) // 2
                if self._read(base, middle * UNIT_SIZE, UNIT_SIZE) == NO_UNIT:
                    high = middle
                else:
                    low = middle + 1
            if low:
                return base // UNIT_SIZE + low
        return self.first_offset

    def _read(self, base: int, at: int, size: int) -> bytes:
        return files.pread(self._files.descriptor(self.directory / f"{base:020d}"), size, at)

    def unit(self, offset: int) -> Unit | None:
        """Returns the unit at a queue offset; None if there is none."""
        return next(self.units(offset, offset + 1), None)

    def has(self, offset: int, units: bytes) -> bool:
        """Returns whether the queue has exactly these units, starting at `offset`."""
        done = 0
        while done < len(units):
            at = offset * UNIT_SIZE + done
            base = at - at % self.file_size if self.file_size else 0
            size = min(len(units) - done, base + self.file_size - at)
            if base not in self._lengths or self._read(base, at - base, size) != units[done : done + size]:
                return False
            done += size
        return True

    def units(self, begin: int, end: int) -> Iterator[Unit]:
        """Yields the existing units in this range of queue offsets. Skips missing files."""
        offset, end = max(begin, self.first_offset), min(end, self.end)
        while offset < end:
            at = offset * UNIT_SIZE
            base = at - at % self.file_size
            count = min(end - offset, (base + self.file_size - at) // UNIT_SIZE, _CHUNK)
            if base in self._lengths:
                data = self._read(base, at - base, count * UNIT_SIZE)
                for number, unit in enumerate(UNIT.iter_unpack(data[: len(data) // UNIT_SIZE * UNIT_SIZE])):
                    yield Unit(offset + number, *unit)
            offset += count


class OpenFiles:
    """Caches the descriptors of recently read files. A store can have more files than a process may open."""

    def __init__(self) -> None:
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def descriptor(self, path: Path) -> int:
        """Returns the descriptor of a file. Raises StoreError if it can't be opened."""
        fd = self._descriptors.get(path)
        if fd is None:
            try:
                fd = self._descriptors[path] = files.open(path, files.O_RDONLY | files.O_CLOEXEC)
            except OSError as e:
                raise StoreError(f"can't read {path}: {e.strerror or e}") from e
            if len(self._descriptors) > _OPEN_FILES:
                files.close(self._descriptors.popitem(last=False)[1])
        else:
            self._descriptors.move_to_end(path)
        return fd

    def close(self) -> None:
        while self._descriptors:
            files.close(self._descriptors.popitem()[1])


def offline_queues(directory: Path, opened: OpenFiles) -> dict[tuple[str, int], OfflineQueue]:
    """Returns {(topic, queue id): queue}. Raises StoreError."""
    try:
        topics = files.children(directory) if files.is_directory(directory) else ()
        paths = sorted(
            path
            for topic in topics
            if files.is_directory(topic)
            for path in files.children(topic)
            if path.name.isascii() and path.name.isdigit()
        )
    except OSError as e:
        raise StoreError(f"can't read {directory}: {e}") from e
    queues = [
        OfflineQueue(path.parent.name, int(path.name), path, opened) for path in paths if files.is_directory(path)
    ]
    return {(queue.topic, queue.queue_id): queue for queue in queues}


class QueueSummary(NamedTuple):
    """A queue's range of offsets, from its oldest unit at `first_offset`. The unit's message may have been deleted."""

    topic: str
    queue_id: int
    first_offset: int
    max_offset: int


class StoreSummary(NamedTuple):
    """A store by names, sizes and headers of its files. `disk_bytes` counts allocated blocks, not file lengths."""

    root: Path
    in_use: bool
    was_closed: bool
    checkpoint: Checkpoint
    log_files: list[LogFile]
    queues: list[QueueSummary]
    index_files: list[tuple[Path, IndexHeader]]
    disk_bytes: int


def inspect(config: StoreConfig) -> StoreSummary:
    """Reads names, sizes and headers of the store's files, but no records. Raises StoreError if there is no store."""
    root = config.store_path_root_dir
    log = OfflineLog(*config.commit_log_directories)
    if not log.files and not files.is_directory(config.consume_queue_directory):
        raise StoreError(f"{root} has no store: neither commitlog nor consumequeue is there")
    elsewhere = [path for path in config.commit_log_directories if not path.is_relative_to(root)]
    opened = OpenFiles()
    try:
        queues = offline_queues(config.consume_queue_directory, opened)
        return StoreSummary(
            root,
            is_in_use(root),
            not files.exists(root / "abort"),
            load_checkpoint(root / "checkpoint"),
            log.files,
            [QueueSummary(topic, id_, queue.first_offset, queue.end) for (topic, id_), queue in queues.items()],
            [(path, read_header(path)) for path in index_paths(config.index_directory)],
            sum(files.disk_bytes(directory) for directory in (root, *elsewhere)),
        )
    finally:
        opened.close()
