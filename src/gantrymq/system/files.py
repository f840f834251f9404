"""Files: the functions of `os` for descriptors, and what there is to do with paths.

All raise OSError as those of `os` and `pathlib` do.
"""

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

from gantrymq.system.mapping_over import map_over

__all__ = [
    "MADV_NORMAL",
    "MADV_RANDOM",
    "O_CLOEXEC",
    "O_CREAT",
    "O_DIRECTORY",
    "O_EXCL",
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

# macOS has neither; there fsync does the one, and a full disk is not foreseen.
fdatasync: Callable[[int], None] = getattr(os, "fdatasync", fsync)
#: Of a directory that is open.
sync_entries = fsync
_fallocate: Callable[[int, int, int], None] | None = getattr(os, "posix_fallocate", None)

_UNLIMITED = 1 << 30

#: struct flock of Linux: type, whence, start, length, pid. Java locks the first byte (DefaultMessageStore.start).
_FLOCK = struct.Struct("hhqqi")
_FIRST_BYTE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
_OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_OFD_GETLK: int = getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK)


class DiskUse(NamedTuple):
    """Of the file system that has a path, in bytes: `free` for everybody, `used` as df says."""

    total: int
    used: int
    free: int


def allocate(fd: int, start: int, count: int) -> None:
    """Gives so many bytes from `start` on blocks on the disk, where the system can."""
    if _fallocate is not None:
        _fallocate(fd, start, count)


def open_nothing() -> int:
    """A descriptor that is good for nothing but to be closed, when another is needed."""
    return open(os.devnull, O_RDONLY)


def map_file(fd: int, size: int) -> Mapping:
    """Shared, to read and write; it needs the descriptor no longer, and has none of its own."""
    if sys.version_info >= (3, 13):
        return Mapping(fd, size, trackfd=False)
    try:
        mapping = Mapping(-1, size)
    except OSError:
        # No more memory may be asked for than there is (vm.overcommit_memory 2): this one keeps a descriptor.
        return Mapping(fd, size)
    map_over(mapping, fd)
    return mapping


def map_to_read(fd: int, size: int) -> Mapping:
    return Mapping(fd, size, access=ACCESS_READ)


def lock_whole(fd: int) -> None:
    """flock, exclusive, until the descriptor is closed. Raises BlockingIOError when somebody else has it."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_as_java(fd: int) -> None:
    """The lock that Java's broker takes of its file, until the descriptor is closed. Raises OSError if it is taken."""
    if _OFD_SETLK is not None:
        # Unlike flock it meets Java's lock, unlike lockf it keeps out a second store of this process.
        fcntl.fcntl(fd, _OFD_SETLK, _FIRST_BYTE)
    else:
        lock_whole(fd)


def is_locked_by_java(fd: int) -> bool:
    """Asks only; a lock of this process counts too where there are locks of open files."""
    (kind, *_) = _FLOCK.unpack(fcntl.fcntl(fd, _OFD_GETLK, _FIRST_BYTE))
    return bool(kind != fcntl.F_UNLCK)


def exists(path: Path) -> bool:
    return path.exists()


def children(path: Path) -> Iterator[Path]:
    """What a directory has, in no order."""
    return path.iterdir()


def below(path: Path) -> Iterator[Path]:
    """All that is in a directory and in those in it; nothing when it isn't there."""
    return path.rglob("*")


def is_directory(path: Path) -> bool:
    return path.is_dir()


def is_file(path: Path) -> bool:
    return path.is_file()


def read_bytes(path: Path, most: int = -1) -> bytes:
    """The content, or the first `most` bytes of it."""
    with path.open("rb") as file:
        return file.read(most)


def write(path: Path, data: bytes) -> None:
    """Makes or replaces the content; a crash may leave a part of it."""
    path.write_bytes(data)


def write_beside(path: Path, data: bytes, mode: int | None = None) -> Path:
    """Writes what is to take the place of a file, in the same directory, and brings it to the disk; its path.

    It gets `mode`, or else the permissions of the old file; and its owner and group, where this process may give them.
    """
    temporary = path.with_name(path.name + ".tmp")
    make_lasting_directory(path.parent)
    try:
        old = path.stat()
    except FileNotFoundError:
        old = None
    if mode is None and old is not None:
        mode = S_IMODE(old.st_mode)
    # One that a crash has left may have any permissions; nobody else gets to see the new one before it has its own.
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
    """The file that `path` is a symbolic link to, over any number of links; else `path` itself. It may not exist."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def copy(source: Path, target: Path) -> None:
    """The content of a file."""
    shutil.copyfile(source, target)


def chmod(path: Path, mode: int) -> None:
    path.chmod(mode)


def make_directory(path: Path) -> None:
    """With those above it; no error when it is there. A power failure may take them again."""
    path.mkdir(parents=True, exist_ok=True)


def make_lasting_directory(path: Path, mode: int = 0o777) -> None:
    """As `make_directory`; what was made is on the disk, as an entry of the directory above it."""
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
    """An empty one."""
    path.rmdir()


def remove_tree(path: Path) -> None:
    """A directory with all that is in it, as far as it can be removed."""
    shutil.rmtree(path, ignore_errors=True)


def copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target)


def disk_use(path: Path) -> DiskUse:
    return DiskUse(*shutil.disk_usage(path))


def disk_bytes(path: Path) -> int:
    """What the files below a directory take of the disk: blocks, not lengths."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def descriptor_limits() -> tuple[int, int]:
    """How many descriptors the process may have, and to how many it may raise that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Infinite is a negative number here, and the largest there.
    return soft if 0 <= soft < _UNLIMITED else _UNLIMITED, hard if 0 <= hard < _UNLIMITED else _UNLIMITED


def set_descriptor_limit(limit: int) -> None:
    """Raises OSError or ValueError where the system doesn't allow it."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def memory() -> int:
    """The machine's, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
