"""The format of a segment: a file of the commit log in the tier, in four objects. Java has no such format.

    commitlog/NAME      the file of the log, unchanged
    queues/NAME         the 20-byte units of its messages, one queue after the other, as in the consume queues
    index/NAME          the 20-byte entries of its keys, in the order of the log, as in the index files
    segments/NAME.json  the manifest. It is written last: without it, the segment does not exist

NAME is BASE-ID: the physical offset of the first byte, in 20 digits, and an id that no other segment has. No object is
ever replaced, so two brokers that copy the same file write two segments. `is_copy` and `precedes` decide which one
belongs to a log.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol
from zlib import crc32

import msgspec

from gantrymq.errors import StoreError
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.index_file import ENTRY_SIZE
from gantrymq.store.message_store import ClosedFile
from gantrymq.system import files, randomness
from gantrymq.system.clock import now_ms

VERSION = 1
LOG, QUEUES, INDEX, MANIFESTS = "commitlog", "queues", "index", "segments"
_SUFFIX = ".json"
_NAME = re.compile(r"(\d{20})-[0-9a-f]{27}", re.ASCII)
#: Number of bytes at the beginning of a log file that `sample_crc32` includes.
_HEAD_BYTES = 4096


class QueueRange(msgspec.Struct, array_like=True, frozen=True):
    """The units of one queue in a segment: `count` units from the queue offset `first` on."""

    topic: str
    queue_id: int
    first: int
    count: int


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """The manifest of a segment.

    Times are store timestamps in ms: of the first record, and of the first record of the next segment. Sizes are in
    bytes. `queues` are in the order of their units. `last_record` is the physical offset of the last record that a
    queue has, and `last_size` its size; both are 0 without records. `crc32` is the result of `sample_crc32`.
    """

    version: int
    base: int
    size: int
    begin_timestamp: int
    end_timestamp: int
    index_size: int
    queues: list[QueueRange]
    id: str
    last_record: int
    last_size: int
    crc32: int

    @property
    def name(self) -> str:
        return segment_name(self.base, self.id)

    @property
    def end(self) -> int:
        return self.base + self.size


_decoder = msgspec.json.Decoder(Manifest)


def new_id() -> str:
    """Returns the id of a new segment. Ids sort by the time at which they were made."""
    return f"{now_ms():011x}{randomness.secret_bytes(8).hex()}"


def segment_name(base: int, segment_id: str) -> str:
    """Returns the name of a segment."""
    return f"{base:020d}-{segment_id}"


def object_name(directory: str, name: str) -> str:
    """Returns the name of an object of a segment."""
    return f"{directory}/{name}{_SUFFIX if directory == MANIFESTS else ''}"


def name_of(file_name: str) -> str | None:
    """Returns the segment of an object, from its name without the directory; None for another name."""
    name = file_name.removesuffix(_SUFFIX)
    return name if _NAME.fullmatch(name) else None


def base_of(name: str) -> int:
    """Returns the base of the segment with this name."""
    return int(name[:20])


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Returns the manifest of the segment with this name. Raises StoreError if it is damaged."""
    try:
        manifest = _decoder.decode(data)
    except msgspec.MsgspecError as e:
        raise StoreError(f"the manifest of the segment {name} is damaged: {e}") from e
    if manifest.version != VERSION:
        raise StoreError(f"the segment {name} has the format {manifest.version}, only {VERSION} is supported")
    if (
        manifest.name != name
        or manifest.size <= 0
        or manifest.index_size < 0
        or manifest.index_size % ENTRY_SIZE
        or manifest.last_size < 0
        or (manifest.last_size and not manifest.base <= manifest.last_record <= manifest.end - manifest.last_size)
        or any(part.first < 0 or part.count <= 0 for part in manifest.queues)
    ):
        raise StoreError(f"the manifest of the segment {name} is damaged: its numbers are impossible")
    return manifest


def sizes_of(manifest: Manifest) -> dict[str, int]:
    """Returns {directory: size in bytes} of the objects of a segment, except its manifest."""
    units = sum(part.count for part in manifest.queues) * UNIT_SIZE
    return {LOG: manifest.size, QUEUES: units, INDEX: manifest.index_size}


def sample_crc32(path: Path, base: int, last_record: int, last_size: int) -> int:
    """Returns a CRC-32 of the beginning and of the last record of a log file. Raises OSError.

    The log is only appended to, and each record has its offsets, its time and its host. If two files agree in their
    last records, they agree in all.
    """
    fd = files.open(path, files.O_RDONLY | files.O_CLOEXEC)
    try:
        head = files.pread(fd, _HEAD_BYTES, 0)
        last = files.pread(fd, last_size, last_record - base) if last_size else b""
    finally:
        files.close(fd)
    if len(last) < last_size:
        raise OSError(f"{path} ends before its record at {last_record - base}")
    return crc32(last, crc32(head))


def is_copy(manifest: Manifest, file: ClosedFile) -> bool:
    """Returns whether a segment has the content of this log file. Raises OSError."""
    return (manifest.base, manifest.end, manifest.begin_timestamp, manifest.end_timestamp, manifest.crc32) == (
        file.begin,
        file.end,
        file.begin_timestamp,
        file.end_timestamp,
        sample_crc32(file.path, file.begin, manifest.last_record, manifest.last_size),
    )


class LogPart(Protocol):
    """A part of a log: a segment, or the files on a broker's disk."""

    @property
    def base(self) -> int: ...

    @property
    def begin_timestamp(self) -> int: ...


def precedes(manifest: Manifest, following: LogPart | None) -> bool:
    """Returns whether a segment can come before another part of the same log.

    If they are adjacent, the segment has the time of the first record of the other one. It differs if two brokers have
    continued the log differently.
    """
    if following is None or manifest.end < following.base:
        return True
    return manifest.end == following.base and manifest.end_timestamp == max(
        manifest.begin_timestamp, following.begin_timestamp
    )
