"""Simulated disks: files in memory that can lose data at a power failure.

This module has descriptors, paths and faults; inodes.py has the files and the effects of a power failure. The functions
have the names and errors of `os`. Paths are absolute. Each host has its own disk.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from random import Random

from sim.inodes import PAGE, Directory, Inode

#: Capacity of a disk that never fills, in bytes.
PLENTY = 1 << 40


@dataclass
class Faults:
    """The current faults of a disk."""

    #: Capacity in bytes.
    capacity: int = PLENTY
    #: Shares of failing calls: reads and writes with EIO, opens with EMFILE.
    io_errors: float = 0.0
    open_errors: float = 0.0
    #: Share of failing syncs, and share of the syncs below `lies_below` that return success without syncing.
    sync_errors: float = 0.0
    sync_lies: float = 0.0
    lies_below: str = "/"


@dataclass
class Open:
    """An open file or directory."""

    what: Inode | Directory
    path: str
    position: int = 0


class Disk:
    """The disk of one host."""

    def __init__(self, chance: Random) -> None:
        self.faults = Faults()
        #: True if a sync returned success without syncing. Data acknowledged later can be lost at a power failure.
        self.has_lied = False
        self._chance = chance
        self._numbers = iter(range(2, 1 << 60))
        self._root = Directory(next(self._numbers))
        self._open: dict[int, Open] = {}
        #: Closed descriptors, and the first unused descriptor.
        self._free: list[int] = []
        self._next_fd = 3
        #: Called before each sync.
        self.before_sync: Callable[[], None] | None = None

    open_count = property(lambda self: len(self._open), doc="How many descriptors there are.")

    # -- descriptors --------------------------------------------------------------------------------------------

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0o777) -> int:
        name = os.fspath(path)
        if self._chance.random() < self.faults.open_errors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)
        entry = self._find(name)
        if entry is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            entry = Inode(next(self._numbers), mode & 0o755)
            directory, last = self._parent(name)
            directory.set(last, entry)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        elif isinstance(entry, Directory) and flags & (os.O_RDWR | os.O_WRONLY):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if flags & os.O_TRUNC and isinstance(entry, Inode):
            entry.resize(0)
        # As a kernel does, use the lowest free descriptor.
        if self._free:
            fd = heappop(self._free)
        else:
            fd, self._next_fd = self._next_fd, self._next_fd + 1
        self._open[fd] = Open(entry, name)
        return fd

    def close(self, fd: int) -> None:
        opened = self._of(fd)
        if opened.what.lock == fd:
            opened.what.lock = None
        del self._open[fd]
        heappush(self._free, fd)

    def fstat(self, fd: int) -> os.stat_result:
        return _stat(self._of(fd).what)

    def ftruncate(self, fd: int, length: int) -> None:
        self._may_fail(self._of(fd).path)
        self._file(fd).resize(length)

    def posix_fallocate(self, fd: int, offset: int, len: int) -> None:
        inode, end = self._file(fd), offset + len
        if (
            end > inode.reserved
            and self.faults.capacity < PLENTY
            and self.used() + end - inode.reserved > self.faults.capacity
        ):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._of(fd).path)
        inode.reserved = max(inode.reserved, end)
        if end > inode.size:
            inode.resize(end)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._may_fail(self._of(fd).path)
        inode = self._file(fd)
        return inode.read(offset, offset + length)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._may_fail(self._of(fd).path)
        inode = self._file(fd)
        end = offset + len(data)
        if end > inode.size:
            if self.faults.capacity < PLENTY and self.used() + end - inode.size > self.faults.capacity:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._of(fd).path)
            inode.resize(end)
        inode.write(offset, bytes(data))
        return len(data)

    def read(self, fd: int, length: int) -> bytes:
        opened = self._of(fd)
        data = self.pread(fd, length, opened.position)
        opened.position += len(data)
        return data

    def write(self, fd: int, data: bytes) -> int:
        opened = self._of(fd)
        count = self.pwrite(fd, data, opened.position)
        opened.position += count
        return count

    def lseek(self, fd: int, position: int, how: int) -> int:
        """Finds data or a hole; supports only SEEK_DATA and SEEK_HOLE. A hole is a page of zeros."""
        inode = self._file(fd)
        if position >= inode.size:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        number = position // PAGE
        if how == os.SEEK_HOLE:
            while inode.has_data(number):
                number += 1
        else:
            number = next((page for page in inode.data_pages() if page >= number), -1)
            if number < 0:
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return min(max(number * PAGE, position), inode.size)

    def fsync(self, fd: int) -> None:
        opened = self._of(fd)
        if self.before_sync is not None:
            self.before_sync()
        if self._chance.random() < self.faults.sync_errors:
            raise OSError(errno.EIO, os.strerror(errno.EIO), opened.path)
        if self.faults.sync_lies and self._lies(opened.path):
            self.has_lied = True
        elif isinstance(opened.what, Directory):
            opened.what.sync()
        else:
            opened.what.sync()

    def _lies(self, path: str) -> bool:
        return path.startswith(self.faults.lies_below) and self._chance.random() < self.faults.sync_lies

    def map(self, fd: int, size: int) -> mmap.mmap:
        return self._file(fd).map(size)

    def lock(self, fd: int) -> None:
        """Locks the whole file exclusively until `fd` is closed.

        Raises BlockingIOError if another descriptor has the lock.
        """
        if self.is_locked(fd):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._of(fd).what.lock = fd

    def is_locked(self, fd: int) -> bool:
        """Returns true if another descriptor has the lock."""
        return self._of(fd).what.lock not in (None, fd)

    # -- paths --------------------------------------------------------------------------------------------------

    def stat(self, path: str | os.PathLike[str]) -> os.stat_result:
        return _stat(self._need(os.fspath(path)))

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return self._find(os.fspath(path)) is not None

    def is_directory(self, path: str | os.PathLike[str]) -> bool:
        return isinstance(self._find(os.fspath(path)), Directory)

    def names(self, path: str | os.PathLike[str]) -> list[str]:
        """Returns the entries of a directory in random order."""
        directory = self._need(os.fspath(path))
        if not isinstance(directory, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))
        names = sorted(directory.entries)
        self._chance.shuffle(names)
        return names

    def make_directory(self, path: str | os.PathLike[str], *, lasting: bool = False) -> None:
        """Creates a directory and its parents. With `lasting`, they are synced. An existing directory is no error."""
        directory = self._root
        for part in _parts(os.fspath(path)):
            entry = directory.entries.get(part)
            if entry is None:
                entry = Directory(next(self._numbers))
                directory.set(part, entry)
                if lasting:
                    directory.sync()
            if not isinstance(entry, Directory):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
            directory = entry

    def unlink(self, path: str | os.PathLike[str]) -> None:
        self._need(os.fspath(path))
        directory, last = self._parent(os.fspath(path))
        directory.set(last, None)

    def remove_directory(self, path: str | os.PathLike[str]) -> None:
        entry = self._need(os.fspath(path))
        if not isinstance(entry, Directory) or entry.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(path))
        self.unlink(path)

    def rename(self, old: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
        entry = self._need(os.fspath(old))
        source, last = self._parent(os.fspath(old))
        target, name = self._parent(os.fspath(new))
        target.set(name, entry)
        source.set(last, None)

    def used(self) -> int:
        """Returns the number of bytes in the blocks of all files."""
        return sum(max(inode.reserved, PAGE * len(inode.pages)) for inode in self._inodes(self._root))

    # -- faults -------------------------------------------------------------------------------------------------

    def process_died(self) -> None:
        """Closes all descriptors. The files stay unchanged."""
        for fd in list(self._open):
            self.close(fd)

    def power_failed(self) -> None:
        """Applies a power failure: each unsynced page becomes old, new or a mixture."""
        self.process_died()
        self._lose(self._root)

    def power_fails(self) -> Callable[[], None]:
        """Applies a power failure in the middle of a program's work.

        The program continues on its old state. When the returned function is called, its later changes are discarded.
        """
        left = deepcopy(self._root)
        self._lose(left)

        def failed() -> None:
            self.process_died()
            self._root = left

        return failed

    def flip_bit(self, path: str | os.PathLike[str], position: int, bit: int) -> None:
        """Flips a bit on the disk and in the view of programs."""
        inode = self._need(os.fspath(path))
        assert isinstance(inode, Inode)
        inode.flip(position, bit)

    def copy(self, source: Disk, below: str) -> None:
        """Copies all files of `source` below a path, as its programs see them. The copies are synced."""
        for path, inode in source.files():
            if path.startswith(f"{below}/"):
                self.make_directory(os.path.dirname(path), lasting=True)
                fd = self.open(path, os.O_RDWR | os.O_CREAT)
                self.pwrite(fd, inode.read(0, inode.size), 0)
                self.fsync(fd)
                self.close(fd)
                self._parent(path)[0].sync()

    def files(self) -> Iterator[tuple[str, Inode]]:
        """Yields every file with its path, ordered by path."""
        yield from self._files("", self._root)

    def _lose(self, root: Directory) -> None:
        self._lose_entries(root)
        for inode in self._inodes(root):
            inode.lose(self._chance)

    def _lose_entries(self, directory: Directory) -> None:
        directory.sync(self._chance.randint(0, len(directory.changes)))
        directory.changes.clear()
        directory.entries = dict(directory.durable)
        directory.lock = None
        for entry in directory.entries.values():
            if isinstance(entry, Directory):
                self._lose_entries(entry)

    def _inodes(self, directory: Directory) -> Iterator[Inode]:
        for entry in directory.entries.values():
            if isinstance(entry, Directory):
                yield from self._inodes(entry)
            else:
                yield entry

    def _files(self, path: str, directory: Directory) -> Iterator[tuple[str, Inode]]:
        for name, entry in sorted(directory.entries.items()):
            if isinstance(entry, Directory):
                yield from self._files(f"{path}/{name}", entry)
            else:
                yield f"{path}/{name}", entry

    def _may_fail(self, path: str) -> None:
        if self.faults.io_errors and self._chance.random() < self.faults.io_errors:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _of(self, fd: int) -> Open:
        if fd not in self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._open[fd]

    def _file(self, fd: int) -> Inode:
        what = self._of(fd).what
        if not isinstance(what, Inode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._of(fd).path)
        return what

    def _find(self, path: str) -> Inode | Directory | None:
        entry: Inode | Directory | None = self._root
        for part in _parts(path):
            if not isinstance(entry, Directory):
                return None
            entry = entry.entries.get(part)
        return entry

    def _need(self, path: str) -> Inode | Directory:
        entry = self._find(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return entry

    def _parent(self, path: str) -> tuple[Directory, str]:
        *parts, last = _parts(path)
        directory = self._find("/".join(parts))
        if not isinstance(directory, Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory, last


@lru_cache(10_000)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in os.path.normpath(path).split("/") if part not in ("", "."))


def _stat(entry: Inode | Directory) -> os.stat_result:
    if isinstance(entry, Directory):
        return os.stat_result(
            (stat.S_IFDIR | 0o755, entry.number, 1, 1, 0, 0, 0, entry.mtime, entry.mtime, entry.mtime)
        )
    return os.stat_result(
        (stat.S_IFREG | entry.mode, entry.number, 1, 1, 0, 0, entry.size, entry.mtime, entry.mtime, entry.mtime)
    )
