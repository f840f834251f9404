"""CatalogLoader: reads the manifests of a tier into its catalog, and leaves out the segments of other logs.

A tier can have segments that do not belong to a broker's log: after a failover, the old master may have copied
messages that the new one never had. `manifests` yields the segments of one log for readers without a broker. All
functions block, so they run in threads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from gantrymq.errors import StoreError
from gantrymq.limits import MIB
from gantrymq.store.message_store import ClosedFile
from gantrymq.system import threads
from gantrymq.tier.catalog import TierCatalog
from gantrymq.tier.objects import Objects
from gantrymq.tier.segment import (
    INDEX,
    LOG,
    MANIFESTS,
    QUEUES,
    Manifest,
    base_of,
    decode_manifest,
    is_copy,
    name_of,
    object_name,
    precedes,
    sizes_of,
)

log = logging.getLogger(__name__)

#: Manifests are read in this number of threads, and this many at once. A manifest can have several MiB.
_READERS = 8
_READ_AT_ONCE = 32
#: Maximum size of a manifest, in bytes.
_MANIFEST_BYTES = 64 * MIB


class LogFile(NamedTuple):
    """A file of the broker's log: the store timestamp of its first record in ms; `closed` if it does not change."""

    begin_timestamp: int
    closed: ClosedFile | None


class LogView(NamedTuple):
    """The log of a broker: where it begins and ends, the time of its first record, and its files by their base."""

    base: int
    end: int
    begin_timestamp: int
    files: dict[int, LogFile]


class CatalogLoader:
    """Keeps `catalog` equal to the segments of the broker's log in `objects`.

    Attributes:
        catalog: The segments that belong to the log.
        others: Other segments before the begin of the log, also second copies: their names, and the times at which they
            ended, in ms.
    """

    def __init__(self, objects: Objects) -> None:
        self.catalog = TierCatalog()
        self.others: dict[str, int] = {}
        self._objects = objects
        self._damaged: set[str] = set()
        self._is_same_log = False

    def load(self, names: Sequence[str], view: LogView) -> None:
        """Adds and removes segments. Only new manifests are read. Raises OSError.

        Args:
            names: All segments in the tier, as `segment_names` returns them.
            view: The log, with its files at the bases of the segments.
        """
        catalog, existing = self.catalog, set(names)
        for segment in list(catalog):
            if segment.name not in existing or segment.end > view.end:
                catalog.remove(segment.base)
        self._damaged &= existing
        self.others = {name: ended_at for name, ended_at in self.others.items() if name in existing}
        if view.begin_timestamp < 0:
            # The log is empty. Nothing says whether the segments belong to it.
            return
        known = {*self._damaged, *self.others, *(segment.name for segment in catalog)}
        # Newest first, because an older segment is compared with the one after it.
        wanted = [
            name
            for name in sorted(existing - known, reverse=True)
            if base_of(name) < view.base or base_of(name) in view.files
        ]
        for name, manifest in _read(self._objects, wanted):
            if manifest is None:
                self._damaged.add(name)
            elif manifest.base not in catalog and self._belongs(manifest, view):
                catalog.add(manifest)
            elif manifest.base < view.base:
                self.others[name] = manifest.end_timestamp

    def is_of_another_log(self, names: Sequence[str]) -> bool:
        """Returns whether the tier has segments, and not one of them belongs to the log."""
        return not len(self.catalog) and not self._is_same_log and bool(set(names) - self._damaged)

    def _belongs(self, manifest: Manifest, view: LogView) -> bool:
        if manifest.base < view.base:
            following = next((segment for segment in self.catalog if segment.base > manifest.base), None)
            return precedes(manifest, view if following is None or following.base > view.base else following)
        file = view.files[manifest.base]
        self._is_same_log |= manifest.begin_timestamp == file.begin_timestamp
        return file.closed is not None and is_copy(manifest, file.closed)


def segment_names(objects: Objects) -> list[str]:
    """Returns the names of all segments in a tier, oldest first. Raises OSError."""
    return sorted(name for file_name in objects.names(MANIFESTS) if (name := name_of(file_name)) is not None)


def manifests(objects: Objects) -> list[Manifest]:
    """Returns the manifests of the log with the newest segment, oldest first. Raises OSError.

    A segment that is damaged or incomplete is logged and left out.
    """
    found: list[Manifest] = []
    for _, manifest in _read(objects, segment_names(objects)[::-1]):
        if manifest is not None and precedes(manifest, found[-1] if found else None):
            found.append(manifest)
    return found[::-1]


def _read(objects: Objects, names: Sequence[str]) -> Iterator[tuple[str, Manifest | None]]:
    """Yields the manifests with these names that exist; None for a damaged one. Raises OSError."""
    if not names:
        return
    sizes = {directory: objects.names(directory) for directory in (LOG, QUEUES, INDEX)}
    for name, data in _contents(objects, names):
        try:
            if len(data) > _MANIFEST_BYTES:
                raise StoreError(f"the manifest has more than {_MANIFEST_BYTES} bytes")
            manifest = decode_manifest(data, name)
            for directory, size in sizes_of(manifest).items():
                if sizes[directory].get(name) != size:
                    raise StoreError(f"{object_name(directory, name)} hasn't {size} bytes")
        except StoreError as e:
            log.error("the segment %s in %s is ignored: %s", name, objects, e)
            yield name, None
            continue
        yield name, manifest


def _contents(objects: Objects, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of the manifests that exist. Several are read at the same time. Raises OSError."""
    for start in range(0, len(names), _READ_AT_ONCE):
        some = names[start : start + _READ_AT_ONCE]
        found: dict[str, bytes] = {}

        def read(name: str, found: dict[str, bytes] = found) -> None:
            # If it does not exist, it was deleted after the listing.
            with suppress(FileNotFoundError):
                found[name] = objects.read(object_name(MANIFESTS, name), 0, _MANIFEST_BYTES + 1)

        for error in threads.in_parallel(read, some, _READERS):
            if error is not None:
                raise error
        yield from ((name, found[name]) for name in some if name in found)
