"""The format of a segment: a file of the commit log in the tier, in four objects. Java has no such format.

    commitlog/BASE      the file of the log, unchanged
    queues/BASE         the 20-byte units of its messages, one queue after the other, as in the consume queues
    index/BASE          the 20-byte entries of its keys, in the order of the log, as in the index files
    segments/BASE.json  the manifest. It is written last: without it, the segment does not exist

BASE is the physical offset of the first byte, in 20 digits.
"""

from __future__ import annotations

import msgspec

from gantrymq.errors import StoreError
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.index_file import ENTRY_SIZE

VERSION = 1
LOG, QUEUES, INDEX, MANIFESTS = "commitlog", "queues", "index", "segments"
_SUFFIX = ".json"


class QueueRange(msgspec.Struct, array_like=True, frozen=True):
    """The units of one queue in a segment: `count` units from the queue offset `first` on."""

    topic: str
    queue_id: int
    first: int
    count: int


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """The manifest of a segment.

    Times are store timestamps in ms: of the first record, and of the first record of the next segment. Sizes are in
    bytes. `queues` are in the order of their units.
    """

    version: int
    base: int
    size: int
    begin_timestamp: int
    end_timestamp: int
    index_size: int
    queues: list[QueueRange]

    @property
    def end(self) -> int:
        return self.base + self.size


_decoder = msgspec.json.Decoder(Manifest)


def object_name(directory: str, base: int) -> str:
    """Returns the name of an object of the segment at `base`."""
    return f"{directory}/{base:020d}{_SUFFIX if directory == MANIFESTS else ''}"


def base_of(name: str) -> int | None:
    """Returns the base in the name of an object without its directory; None for another name."""
    digits = name.removesuffix(_SUFFIX)
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else None


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes, base: int) -> Manifest:
    """Returns the manifest of the segment at `base`. Raises StoreError if it is damaged."""
    try:
        manifest = _decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise StoreError(f"the manifest of the segment {base:020d} is damaged: {e}") from e
    if manifest.version != VERSION:
        raise StoreError(f"the segment {base:020d} has the format {manifest.version}, only {VERSION} is supported")
    if (
        manifest.base != base
        or manifest.size <= 0
        or manifest.index_size < 0
        or manifest.index_size % ENTRY_SIZE
        or any(part.first < 0 or part.count <= 0 for part in manifest.queues)
    ):
        raise StoreError(f"the manifest of the segment {base:020d} is damaged: its numbers are impossible")
    return manifest


def sizes_of(manifest: Manifest) -> dict[str, int]:
    """Returns {directory: size in bytes} of the objects of a segment, except its manifest."""
    units = sum(part.count for part in manifest.queues) * UNIT_SIZE
    return {LOG: manifest.size, QUEUES: units, INDEX: manifest.index_size}
