"""File functions: those of `os` for descriptors, and others for paths. They raise OSError, as in `os` and `pathlib`."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from mmap import ACCESS_READ, MADV_NORMAL, MADV_RANDOM, PAGESIZE
from mmap import mmap as Mapping
from os import (
    O_CLOEXEC,
    O_CREAT,
    O_DIRECTORY,
    O_EXCL,
    O_NONBLOCK,
    O_RDONLY,
    O_RDWR,
    O_WRONLY,
    SEEK_DATA,
    SEEK_HOLE,
    close,
    fstat,
    fsync,
    ftruncate,
    lseek,
    open,
    pread,
    pwrite,
    scandir,
    stat,
)
from os import replace as rename
from pathlib import Path
from stat import S_IMODE
from typing import NamedTuple

from gantrymq.system.fixed_mapping import map_over

__all__ = [
    "MADV_NORMAL",
    "MADV_RANDOM",
    "O_CLOEXEC",
    "O_CREAT",
    "O_DIRECTORY",
    "O_EXCL",
    "O_NONBLOCK",
    "O_RDONLY",
    "O_RDWR",
    "O_WRONLY",
    "PAGESIZE",
    "SEEK_DATA",
    "SEEK_HOLE",
    "DiskUse",
    "Mapping",
    "allocate",
    "below",
    "children",
    "chmod",
    "close",
    "copy",
    "copy_tree",
    "descriptor_limits",
    "disk_bytes",
    "disk_use",
    "exists",
    "fdatasync",
    "fstat",
    "fsync",
    "ftruncate",
    "is_directory",
    "is_file",
    "is_locked_by_java",
    "lock_as_java",
    "lock_whole",
    "lseek",
    "make_directory",
    "make_lasting_directory",
    "map_file",
    "map_to_read",
    "memory",
    "open",
    "open_nothing",
    "pread",
    "pwrite",
    "read_bytes",
    "remove_directory",
    "remove_tree",
    "rename",
    "scandir",
    "set_descriptor_limit",
    "stat",
    "sync_entries",
    "target",
    "unlink",
    "write",
    "write_beside",
]

# macOS has neither function. On macOS, fsync replaces fdatasync, and blocks are not allocated in advance.
fdatasync: Callable[[int], None] = getattr(os, "fdatasync", fsync)
#: fsync of an open directory.
sync_entries = fsync
_fallocate: Callable[[int, int, int], None] | None = getattr(os, "posix_fallocate", None)

_UNLIMITED = 1 << 30

#: `struct flock` of Linux: type, whence, start, length, pid. Java locks the first byte (DefaultMessageStore.start).
_FLOCK = struct.Struct("hhqqi")
_FIRST_BYTE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
_OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_OFD_GETLK: int = getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK)


class DiskUse(NamedTuple):
    """Space of the file system that contains a path, in bytes. `free` and `used` have the same meaning as in df."""

    total: int
    used: int
    free: int


def allocate(fd: int, start: int, count: int) -> None:
    """Allocates `count` bytes of disk blocks from `start` on, if the system can do so."""
    if _fallocate is not None:
        _fallocate(fd, start, count)


def open_nothing() -> int:
    """Returns a reserve descriptor. If no descriptors are left, close it to open another file instead."""
    return open(os.devnull, O_RDONLY)


def map_file(fd: int, size: int) -> Mapping:
    """Maps a file as shared memory, to read and write. The mapping needs no descriptor, so `fd` can be closed."""
    if sys.version_info >= (3, 13):
        return Mapping(fd, size, trackfd=False)
    try:
        mapping = Mapping(-1, size)
    except OSError:
        # With vm.overcommit_memory 2, the system can refuse anonymous memory. This mapping has a descriptor instead.
        return Mapping(fd, size)
    map_over(mapping, fd)
    return mapping


def map_to_read(fd: int, size: int) -> Mapping:
    return Mapping(fd, size, access=ACCESS_READ)


def lock_whole(fd: int) -> None:
    """Locks a file exclusively with flock, until the descriptor is closed. Raises BlockingIOError if it is locked."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_as_java(fd: int) -> None:
    """Acquires the lock that Java's broker uses, until the descriptor is closed. Raises OSError if it is locked."""
    if _OFD_SETLK is not None:
        # flock would not conflict with Java's lock. lockf would not conflict with a second store in this process.
        fcntl.fcntl(fd, _OFD_SETLK, _FIRST_BYTE)
    else:
        lock_whole(fd)


def is_locked_by_java(fd: int) -> bool:
    """Returns true if the file is locked. If the system has open-file locks, a lock of this process counts, too."""
    (kind, *_) = _FLOCK.unpack(fcntl.fcntl(fd, _OFD_GETLK, _FIRST_BYTE))
    return bool(kind != fcntl.F_UNLCK)


def exists(path: Path) -> bool:
    return path.exists()


def children(path: Path) -> Iterator[Path]:
    """Yields the entries of a directory, in no particular order."""
    return path.iterdir()


def below(path: Path) -> Iterator[Path]:
    """Yields everything below a directory, recursively. Yields nothing if it does not exist."""
    return path.rglob("*")


def is_directory(path: Path) -> bool:
    return path.is_dir()


def is_file(path: Path) -> bool:
    return path.is_file()


def read_bytes(path: Path, most: int = -1) -> bytes:
    """Returns the content, or its first `most` bytes."""
    with path.open("rb") as file:
        return file.read(most)


def write(path: Path, data: bytes) -> None:
    """Creates a file or replaces its content. After a crash the content may be incomplete."""
    path.write_bytes(data)


def write_beside(path: Path, data: bytes, mode: int | None = None) -> Path:
    """Writes and flushes a temporary file that can replace `path`, in the same directory. Returns its path.

    The file gets `mode`, or else the permissions of the old file. It gets the owner and group of the old file if this
    process may set them.
    """
    temporary = path.with_name(path.name + ".tmp")
    make_lasting_directory(path.parent)
    try:
        old = path.stat()
    except FileNotFoundError:
        old = None
    if mode is None and old is not None:
        mode = S_IMODE(old.st_mode)
    # A file left by a crash may have any permissions. A new one is private until it has the right permissions.
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(open(temporary, flags, 0o666 if mode is None else 0o600), "wb") as file:
        if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            with suppress(PermissionError):
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        fsync(file.fileno())
    return temporary


def target(path: Path) -> Path:
    """Follows symbolic links from `path` to the file, which need not exist. Returns `path` if it is not a link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def copy(source: Path, target: Path) -> None:
    """Copies the content of a file."""
    shutil.copyfile(source, target)


def chmod(path: Path, mode: int) -> None:
    path.chmod(mode)


def make_directory(path: Path) -> None:
    """Creates a directory and its parents, if they do not exist. A power failure may undo this."""
    path.mkdir(parents=True, exist_ok=True)


def make_lasting_directory(path: Path, mode: int = 0o777) -> None:
    """Like `make_directory`, but flushes the parents' entries to disk."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_lasting_directory(path.parent)
    path.mkdir(mode, exist_ok=True)
    above = open(path.parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    try:
        sync_entries(above)
    finally:
        close(above)


def unlink(path: Path, *, missing_ok: bool = False) -> None:
    path.unlink(missing_ok)


def remove_directory(path: Path) -> None:
    """Removes an empty directory."""
    path.rmdir()


def remove_tree(path: Path) -> None:
    """Removes a directory and its content. Ignores errors."""
    shutil.rmtree(path, ignore_errors=True)


def copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target)


def disk_use(path: Path) -> DiskUse:
    return DiskUse(*shutil.disk_usage(path))


def disk_bytes(path: Path) -> int:
    """Returns the disk usage of all files below a directory, in bytes. Counts blocks, not file lengths."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def descriptor_limits() -> tuple[int, int]:
    """Returns the process's limit on descriptors and the maximum to which the process may raise the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # "Unlimited" is a negative number on some systems, and the largest number on others.
    return soft if 0 <= soft < _UNLIMITED else _UNLIMITED, hard if 0 <= hard < _UNLIMITED else _UNLIMITED


def set_descriptor_limit(limit: int) -> None:
    """Sets the process's limit on descriptors. Raises OSError or ValueError if the system rejects the value."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def memory() -> int:
    """Returns the memory of the machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
