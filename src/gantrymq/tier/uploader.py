"""Writes segments into a tier, deletes them, and reads the manifests. All functions block, so they run in threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from gantrymq.errors import StoreError
from gantrymq.store.config import UNIT_SIZE
from gantrymq.system import files, threads
from gantrymq.tier.catalog import TierCatalog
from gantrymq.tier.objects import TEMPORARY, Objects, ObjectWriter
from gantrymq.tier.segment import (
    INDEX,
    LOG,
    MANIFESTS,
    QUEUES,
    Manifest,
    QueueRange,
    base_of,
    decode_manifest,
    encode_manifest,
    object_name,
    sizes_of,
)

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
#: Manifests are read in this number of threads, and this many at once. A manifest can have several MiB.
_READERS = 8
_READ_AT_ONCE = 32


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
        """Drops what was written since the last `commit`."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()


class UnitRanges:
    """Collects the ranges of queues in the order of their units."""

    def __init__(self) -> None:
        self.ranges: list[QueueRange] = []

    def add(self, topic: str, queue_id: int, first: int, units: bytes) -> None:
        """Adds units of a queue from the queue offset `first` on, which may follow the last ones."""
        count = len(units) // UNIT_SIZE
        if self.ranges:
            last = self.ranges[-1]
            if (last.topic, last.queue_id, last.first + last.count) == (topic, queue_id, first):
                self.ranges[-1] = QueueRange(topic, queue_id, last.first, last.count + count)
                return
        self.ranges.append(QueueRange(topic, queue_id, first, count))


def copy_log_file(objects: Objects, base: int, path: Path, size: int, is_stopped: Callable[[], bool]) -> None:
    """Copies the file of the log with the physical offset `base`. Raises OSError, also when `is_stopped`."""
    # Not through the mapping: if a page is not in memory, reading it would block all threads of the process.
    fd = files.open(path, files.O_RDONLY | files.O_CLOEXEC)
    try:
        with objects.create(object_name(LOG, base)) as writer:
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


def finish_segment(objects: Objects, manifest: Manifest) -> None:
    """Writes the manifest of a segment whose other objects are complete. Raises OSError."""
    for directory, size in sizes_of(manifest).items():
        name = object_name(directory, manifest.base)
        found = objects.names(directory).get(name.rpartition("/")[2])
        if found != size:
            raise OSError(f"{objects}/{name} has {found} bytes after its upload instead of {size}")
    with objects.create(object_name(MANIFESTS, manifest.base)) as writer:
        writer.write(encode_manifest(manifest))


def delete_segment(objects: Objects, base: int) -> None:
    """Deletes a segment. Its manifest is deleted first, so an interrupted deletion leaves no damaged segment.

    Raises OSError.
    """
    for directory in (MANIFESTS, INDEX, QUEUES, LOG):
        objects.delete(object_name(directory, base))


def load_catalog(objects: Objects, known: TierCatalog | None = None) -> TierCatalog:
    """Returns the segments of a tier; `known` if they are the same. Raises as `manifests` does."""
    if known is not None and [segment.base for segment in known] == _bases(objects):
        return known
    catalog = TierCatalog()
    for manifest in manifests(objects):
        catalog.add(manifest)
    return catalog


def manifests(objects: Objects) -> Iterator[Manifest]:
    """Yields the manifests of a tier, oldest first. Raises OSError.

    A segment that is damaged or incomplete is logged and left out.
    """
    sizes = {directory: objects.names(directory) for directory in (LOG, QUEUES, INDEX)}
    for base, data in _contents(objects, _bases(objects)):
        try:
            manifest = decode_manifest(data, base)
            for directory, size in sizes_of(manifest).items():
                name = object_name(directory, base)
                if sizes[directory].get(name.rpartition("/")[2]) != size:
                    raise StoreError(f"{name} hasn't {size} bytes")
        except StoreError as e:
            log.error("the segment %020d in %s is ignored: %s", base, objects, e)
            continue
        yield manifest


def _contents(objects: Objects, bases: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yields (base, content) of the manifests that exist. Several are read at the same time. Raises OSError."""
    for start in range(0, len(bases), _READ_AT_ONCE):
        some = bases[start : start + _READ_AT_ONCE]
        found: dict[int, bytes] = {}

        def read(base: int, found: dict[int, bytes] = found) -> None:
            # If it does not exist, it was deleted after the listing.
            with suppress(FileNotFoundError):
                found[base] = objects.read(object_name(MANIFESTS, base))

        for error in threads.in_parallel(read, some, _READERS):
            if error is not None:
                raise error
        yield from sorted(found.items())


def _bases(objects: Objects) -> list[int]:
    return sorted(base for name in objects.names(MANIFESTS) if (base := base_of(name)) is not None)


def delete_remains(objects: Objects, catalog: TierCatalog) -> int:
    """Deletes objects without a manifest, of interrupted uploads and deletions. Returns their number. Raises OSError.

    Objects after the end of the last segment stay: the next upload replaces them.
    """
    complete = _bases(objects)
    deleted = 0
    for directory in (LOG, QUEUES, INDEX):
        for name in objects.names(directory):
            base = base_of(name.removesuffix(TEMPORARY))
            is_remains = name.endswith(TEMPORARY) or base not in complete
            if base is not None and base < catalog.end and is_remains:
                objects.delete(f"{directory}/{name}")
                deleted += 1
    return deleted
