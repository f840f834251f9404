"""Writes segments into a tier, and deletes them. All functions block, so they run in threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT
from gantrymq.system import files
from gantrymq.tier.objects import TEMPORARY, Objects, ObjectWriter
from gantrymq.tier.segment import (
    INDEX,
    LOG,
    MANIFESTS,
    QUEUES,
    Manifest,
    QueueRange,
    base_of,
    encode_manifest,
    name_of,
    object_name,
    sizes_of,
)

_CHUNK_BYTES = 1 << 20


class PiecewiseObject:
    """An object that is written in pieces, in a thread, while the caller makes the next piece.

    Attributes:
        size: Number of bytes so far.
    """

    def __init__(self, objects: Objects, name: str) -> None:
        self.size = 0
        self._objects = objects
        self._name = name
        self._writer: ObjectWriter | None = None

    def write(self, data: bytes) -> None:
        """Appends bytes. The first call creates the object. Raises OSError."""
        if self._writer is None:
            self._writer = self._objects.create(self._name)
        self._writer.write(data)
        self.size += len(data)

    def commit(self) -> None:
        """Makes the object visible. Raises OSError."""
        self.write(b"")
        writer, self._writer = self._writer, None
        assert writer is not None
        writer.commit()

    def discard(self) -> None:
        """Discards the bytes written since the last `commit`."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()


class UnitRanges:
    """Collects the ranges of queues in the order of their units.

    Attributes:
        ranges: The ranges.
        last_record: Physical offset of the last record, 0 without records.
        last_size: Size of the last record in bytes, 0 without records.
    """

    def __init__(self) -> None:
        self.ranges: list[QueueRange] = []
        self.last_record = 0
        self.last_size = 0

    def add(self, topic: str, queue_id: int, first: int, units: bytes) -> None:
        """Adds units of a queue from the queue offset `first` on, which may follow the last ones."""
        count = len(units) // UNIT_SIZE
        for at in range(len(units) - UNIT_SIZE, -1, -UNIT_SIZE):
            physical_offset, size, _ = UNIT.unpack_from(units, at)
            if size != FILLER_SIZE:
                if physical_offset >= self.last_record:
                    self.last_record, self.last_size = physical_offset, size
                break
        if self.ranges:
            last = self.ranges[-1]
            if (last.topic, last.queue_id, last.first + last.count) == (topic, queue_id, first):
                self.ranges[-1] = QueueRange(topic, queue_id, last.first, last.count + count)
                return
        self.ranges.append(QueueRange(topic, queue_id, first, count))


def copy_log_file(objects: Objects, name: str, path: Path, size: int, is_stopped: Callable[[], bool]) -> None:
    """Copies the file of the log for the segment with this name. Raises OSError, also when `is_stopped`."""
    # Not through the mapping: if a page is not in memory, reading it would block all threads of the process.
    fd = files.open(path, files.O_RDONLY | files.O_CLOEXEC)
    try:
        with objects.create(object_name(LOG, name)) as writer:
            for at in range(0, size, _CHUNK_BYTES):
                if is_stopped():
                    raise OSError(f"the upload of {path} was stopped")
                wanted = min(_CHUNK_BYTES, size - at)
                data = files.pread(fd, wanted, at)
                if len(data) < wanted:
                    raise OSError(f"{path} ends at {at + len(data)} instead of {size}")
                writer.write(data)
    finally:
        files.close(fd)


def finish_segment(objects: Objects, manifest: Manifest, is_stopped: Callable[[], bool]) -> None:
    """Writes the manifest of a segment whose other objects are complete. Raises OSError, also when `is_stopped`."""
    for directory, size in sizes_of(manifest).items():
        found = objects.names(directory).get(manifest.name)
        if found != size:
            name = object_name(directory, manifest.name)
            raise OSError(f"{objects}/{name} has {found} bytes after its upload instead of {size}")
    with objects.create(object_name(MANIFESTS, manifest.name)) as writer:
        writer.write(encode_manifest(manifest))
        if is_stopped():
            raise OSError(f"the upload of the segment {manifest.name} was stopped")


def delete_segment(objects: Objects, name: str) -> None:
    """Deletes a segment. Its manifest is deleted first, so an interrupted deletion leaves no damaged segment.

    Raises OSError.
    """
    for directory in (MANIFESTS, INDEX, QUEUES, LOG):
        objects.delete(object_name(directory, name))


def delete_remains(objects: Objects, end: int) -> int:
    """Deletes objects without a manifest, of interrupted uploads and deletions. Returns their number. Raises OSError.

    Objects at or after the physical offset `end` stay: another broker may be writing them.
    """
    complete = {name_of(name) for name in objects.names(MANIFESTS)}
    deleted = 0
    for directory in (LOG, QUEUES, INDEX):
        for file_name in objects.names(directory):
            name = name_of(file_name.removesuffix(TEMPORARY))
            is_remains = file_name.endswith(TEMPORARY) or name not in complete
            if name is not None and base_of(name) < end and is_remains:
                objects.delete(f"{directory}/{file_name}")
                deleted += 1
    return deleted
