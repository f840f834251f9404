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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gantrymq.errors import StoreError, StoreFull, SyncFailed

_NAME_LENGTH = 20
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC
# macOS has neither; there fsync does the one, and a full disk is not foreseen.
_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
_allocate = getattr(os, "posix_fallocate", None)
_sync_entries: Callable[[int], None] = os.fsync


class MappedFile:
    """One file of `size` bytes. `mapping` is None until `map()`; bytes up to `reserved` have blocks on the disk.

    `read_ahead` False: a first touch brings in one page, not the megabytes that a disk may be set to read ahead; for
    small files of which there are many, and for those read here and there. `name` if not `base` names the file.
    """

    __slots__ = ("base", "fd", "is_used", "mapping", "path", "read_ahead", "reserved", "size", "view")

    def __init__(self, directory: Path, base: int, size: int, *, read_ahead: bool = True, name: str = "") -> None:
        self.path = directory / (name or f"{base:0{_NAME_LENGTH}d}")
        self.base = base
        self.size = size
        self.read_ahead = read_ahead
        self.mapping: mmap.mmap | None = None
        #: Read-only; slices of it go to sockets.
        self.view: memoryview | None = None
        self.reserved = 0
        #: For who decides which files stay mapped: somebody has read it since he looked.
        self.is_used = False
        #: Kept between `open` and `close_descriptor`: what is needed to write mustn't fail for want of a descriptor.
        self.fd: int | None = None

    def open(self) -> None:
        """Keeps a descriptor; a missing or short file is made `size` bytes long. Raises StoreFull, StoreError."""
        if self.fd is None:
            try:
                self.fd = _open_sized(self.path, self.size)
            except OSError as e:
                raise store_error(e, f"can't open {self.path}") from e

    def close_descriptor(self) -> None:
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def map(self) -> mmap.mmap:
        """The mapping, made when there is none; a missing or short file is made `size` bytes long."""
        if self.mapping is None:
            try:
                fd = _open_sized(self.path, self.size) if self.fd is None else self.fd
                try:
                    mapping = _map(fd, self.size)
                finally:
                    if fd != self.fd:
                        os.close(fd)
            except OSError as e:
                raise store_error(e, f"can't open {self.path}") from e
            if not self.read_ahead:
                mapping.madvise(mmap.MADV_RANDOM)
            self.view = memoryview(mapping).toreadonly()
            self.mapping = mapping
        return self.mapping

    def make(self, start: int, end: int) -> None:
        """Makes the file if there is none, and gives [start, end) blocks. Raises StoreFull, StoreError."""
        try:
            os.close(_open_sized(self.path, self.size))
        except OSError as e:
            raise store_error(e, f"can't make {self.path}") from e
        self.reserve(start, end)

    def reserve(self, start: int, end: int) -> None:
        """Gives [start, end) of the file blocks on the disk. Raises StoreFull."""
        end = min(end, self.size)
        if _allocate is not None and start < end:
            try:
                with self._descriptor() as fd:
                    _allocate(fd, start, end - start)
            except OSError as e:
                raise store_error(e, f"can't reserve {end - start} bytes for {self.path}") from e
        self.reserved = end

    def clear_from(self, start: int) -> None:
        """Makes all bytes from `start` on zero; they have no blocks then."""
        try:
            with self._descriptor() as fd:
                os.ftruncate(fd, start)
                os.ftruncate(fd, self.size)
        except OSError as e:
            raise store_error(e, f"can't cut {self.path}") from e
        self.reserved = 0

    def sync(self) -> None:
        """Brings the content to the disk, see `sync_file`."""
        with self._descriptor() as fd:
            _sync_content(fd, self.path)

    @contextmanager
    def _descriptor(self) -> Iterator[int]:
        if self.fd is not None:
            yield self.fd
            return
        fd = os.open(self.path, _OPEN_FLAGS)
        try:
            yield fd
        finally:
            os.close(fd)

    def unmap(self) -> None:
        """Lets the mapping go. Slices that a socket still holds stay good; the last one frees the memory."""
        if self.mapping is not None and self.view is not None:
            # BufferError: slices are alive, and they keep the mapping.
            with suppress(BufferError):
                self.view.release()
                self.mapping.close()
        self.mapping = self.view = None

    def close(self) -> None:
        self.unmap()
        self.close_descriptor()

    def delete(self) -> None:
        """Raises OSError; then the file is there, but not mapped."""
        self.close()
        self.path.unlink(missing_ok=True)


def _map(fd: int, size: int) -> mmap.mmap:
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, trackfd=False)
    # Before 3.13 a mapping keeps a descriptor of its own.
    return mmap.mmap(fd, size)


def _open_sized(path: Path, size: int) -> int:
    try:
        fd = os.open(path, _OPEN_FLAGS | os.O_CREAT, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, _OPEN_FLAGS | os.O_CREAT, 0o644)
    try:
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sync_file(path: Path) -> None:
    """Brings a file's content to the disk, that written through any mapping too; waits without the GIL.

    Raises OSError when it can't be opened, which may pass, and SyncFailed, which doesn't.
    """
    fd = os.open(path, _OPEN_FLAGS)
    try:
        _sync_content(fd, path)
    finally:
        os.close(fd)


def open_directory(path: Path) -> int:
    """A descriptor for `sync_entries`. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_directory(path: Path) -> None:
    """Brings new, renamed and deleted entries of a directory to the disk. Raises as `sync_file` does."""
    fd = open_directory(path)
    try:
        sync_entries(fd, path)
    finally:
        os.close(fd)


def sync_entries(fd: int, path: Path) -> None:
    """`sync_directory` of a directory that is open. Raises SyncFailed."""
    try:
        _sync_entries(fd)
    except OSError as e:
        raise SyncFailed(f"the entries of {path} can't be brought to the disk: {e.strerror or e}") from e


def _sync_content(fd: int, path: Path) -> None:
    try:
        _sync(fd)
    except OSError as e:
        raise SyncFailed(f"{path} can't be brought to the disk: {e.strerror or e}") from e


def put_aside(path: Path) -> None:
    """Renames what can't be used, if there is something, so that it can be looked at. Raises StoreError."""
    try:
        if path.exists():
            path.replace(path.with_name(path.name + ".damaged"))
    except OSError as e:
        raise StoreError(f"can't rename the damaged {path}: {e}") from e


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
