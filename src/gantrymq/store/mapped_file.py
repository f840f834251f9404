"""Files of a fixed size, named by the offset of their first byte, mapped into memory (`logfile/DefaultMappedFile`).

A file is sparse, so a mapping reaches over blocks that don't exist yet. Writing to such a place on a full disk would
kill the process with SIGBUS. Therefore blocks are reserved with posix_fallocate ahead of the writer; a full disk is
an error of that call, and raises StoreFull.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path

from gantrymq.errors import StoreError, StoreFull

_NAME_LENGTH = 20
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC
# macOS has neither; there fsync does the one, and a full disk is not foreseen.
_sync = getattr(os, "fdatasync", os.fsync)
_allocate = getattr(os, "posix_fallocate", None)


class MappedFile:
    """One file of `size` bytes. `mapping` is None until `map()`; bytes up to `reserved` have blocks on the disk.

    `read_ahead` False: a first touch brings in one page, not the megabytes that a disk may be set to read ahead; for
    small files of which there are many, and for those read here and there. `name` if not `base` names the file.
    """

    __slots__ = ("base", "mapping", "path", "read_ahead", "reserved", "size", "view")

    def __init__(self, directory: Path, base: int, size: int, *, read_ahead: bool = True, name: str = "") -> None:
        self.path = directory / (name or f"{base:0{_NAME_LENGTH}d}")
        self.base = base
        self.size = size
        self.read_ahead = read_ahead
        self.mapping: mmap.mmap | None = None
        #: Read-only; slices of it go to sockets.
        self.view: memoryview | None = None
        self.reserved = 0

    def map(self) -> mmap.mmap:
        """The mapping, made when there is none; a missing or short file is made `size` bytes long."""
        if self.mapping is None:
            try:
                fd = _open_or_create(self.path)
                try:
                    if os.fstat(fd).st_size < self.size:
                        os.ftruncate(fd, self.size)
                    self.mapping = _map(fd, self.size)
                finally:
                    os.close(fd)
            except OSError as e:
                raise store_error(e, f"can't open {self.path}") from e
            if not self.read_ahead:
                self.mapping.madvise(mmap.MADV_RANDOM)
            self.view = memoryview(self.mapping).toreadonly()
        return self.mapping

    def reserve(self, start: int, end: int) -> None:
        """Gives [start, end) of the file blocks on the disk. Raises StoreFull."""
        end = min(end, self.size)
        if _allocate is not None and start < end:
            try:
                fd = os.open(self.path, _OPEN_FLAGS)
                try:
                    _allocate(fd, start, end - start)
                finally:
                    os.close(fd)
            except OSError as e:
                raise store_error(e, f"can't reserve {end - start} bytes for {self.path}") from e
        self.reserved = end

    def clear_from(self, start: int) -> None:
        """Makes all bytes from `start` on zero; they have no blocks then."""
        try:
            fd = os.open(self.path, _OPEN_FLAGS)
            try:
                os.ftruncate(fd, start)
                os.ftruncate(fd, self.size)
            finally:
                os.close(fd)
        except OSError as e:
            raise store_error(e, f"can't cut {self.path}") from e
        self.reserved = 0

    def unmap(self) -> None:
        """Lets the mapping go. Slices that a socket still holds stay good; the last one frees the memory."""
        if self.mapping is not None and self.view is not None:
            # BufferError: slices are alive, and they keep the mapping.
            with suppress(BufferError):
                self.view.release()
                self.mapping.close()
        self.mapping = self.view = None

    def delete(self) -> None:
        self.unmap()
        self.path.unlink(missing_ok=True)


def _map(fd: int, size: int) -> mmap.mmap:
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, trackfd=False)
    # Before 3.13 a mapping keeps a descriptor of its own.
    return mmap.mmap(fd, size)


def _open_or_create(path: Path) -> int:
    try:
        return os.open(path, _OPEN_FLAGS | os.O_CREAT, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, _OPEN_FLAGS | os.O_CREAT, 0o644)


def sync_file(path: Path) -> None:
    """Brings a file's content to the disk, that written through any mapping too; waits without the GIL."""
    fd = os.open(path, _OPEN_FLAGS)
    try:
        _sync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Brings new and renamed entries of a directory to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def list_files(directory: Path) -> dict[int, int]:
    """{offset in the name: length} of the directory's mapped files, in order; other entries don't count."""
    try:
        with os.scandir(directory) as entries:
            found = {
                int(entry.name): entry.stat().st_size
                for entry in entries
                if len(entry.name) == _NAME_LENGTH and entry.name.isascii() and entry.name.isdigit() and entry.is_file()
            }
    except FileNotFoundError:
        return {}
    except OSError as e:
        raise StoreError(f"can't read {directory}: {e}") from e
    return dict(sorted(found.items()))


def store_error(e: OSError, what: str) -> StoreError:
    """What to raise for a failed system call: StoreFull where the disk is full."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"{what}: the disk is full ({e.strerror})")
    return StoreError(f"{what}: {e.strerror or e}")
