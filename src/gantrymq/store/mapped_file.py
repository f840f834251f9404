"""Files of a fixed size, named by the offset of their first byte, mapped into memory (`logfile/DefaultMappedFile`).

A file is sparse, so a mapping reaches over blocks that don't exist yet. Writing to such a place on a full disk would
kill the process with SIGBUS. Therefore blocks are reserved with posix_fallocate ahead of the writer; a full disk is
an error of that call, and raises StoreFull.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gantrymq.errors import StoreError, StoreFull, SyncFailed
from gantrymq.system import files

_NAME_LENGTH = 20
_OPEN_FLAGS = files.O_RDWR | files.O_CLOEXEC


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
        self.mapping: files.Mapping | None = None
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
            files.close(fd)

    def map(self) -> files.Mapping:
        """The mapping, made when there is none; a missing or short file is made `size` bytes long."""
        if self.mapping is None:
            try:
                fd = _open_sized(self.path, self.size) if self.fd is None else self.fd
                try:
                    mapping = files.map_file(fd, self.size)
                finally:
                    if fd != self.fd:
                        files.close(fd)
            except OSError as e:
                raise store_error(e, f"can't open {self.path}") from e
            if not self.read_ahead:
                # Where the system takes no advice (it may be out of memory for it) it is the slower way.
                with suppress(OSError):
                    mapping.madvise(files.MADV_RANDOM)
            self.view = memoryview(mapping).toreadonly()
            self.mapping = mapping
        return self.mapping

    def make(self, start: int, end: int) -> None:
        """Makes the file if there is none, and gives [start, end) blocks. Raises StoreFull, StoreError."""
        try:
            files.close(_open_sized(self.path, self.size))
        except OSError as e:
            raise store_error(e, f"can't make {self.path}") from e
        self.reserve(start, end)

    def reserve(self, start: int, end: int) -> None:
        """Gives [start, end) of the file blocks on the disk. Raises StoreFull."""
        end = min(end, self.size)
        if start < end:
            try:
                with self._descriptor() as fd:
                    files.allocate(fd, start, end - start)
            except OSError as e:
                raise store_error(e, f"can't reserve {end - start} bytes for {self.path}") from e
        self.reserved = end

    def will_be_written(self, start: int) -> None:
        """What is in front of that place may be read, what follows will be written: nothing is read ahead there.

        As long as there are blocks without content, the kernel reads ahead, that is clears, what then is written over:
        4 KiB through the mapping take 11 to 21 us so, and 5 to 6 without it (ext4, Linux 6.18).
        """
        mapping = self.map()
        start -= start % files.PAGESIZE
        with suppress(OSError):
            if start:
                mapping.madvise(files.MADV_NORMAL, 0, start)
            if start < self.size:
                mapping.madvise(files.MADV_RANDOM, start, self.size - start)

    def write(self, start: int, data: memoryview) -> None:
        """Writes where there are blocks; zeros are there if that fails. Raises StoreFull, StoreError.

        With pwrite: in pages that nobody has touched 64 KiB take 15 us, through the mapping 83; 4 MiB 0.45 and 5.3 ms.
        7.7 KB take 8 us and 10, 1.2 KB 3.2 and 1.8 (ext4, Linux 6.18).
        """
        mapping, done = self.map(), 0
        self.open()
        assert self.fd is not None
        try:
            while done < len(data):
                done += files.pwrite(self.fd, data[done:], start + done)
        except OSError as e:
            mapping[start : start + done] = bytes(done)
            raise store_error(e, f"can't write to {self.path}") from e

    def clear_from(self, start: int) -> None:
        """Makes all bytes from `start` on zero; they have no blocks then."""
        try:
            with self._descriptor() as fd:
                files.ftruncate(fd, start)
                files.ftruncate(fd, self.size)
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
        fd = files.open(self.path, _OPEN_FLAGS)
        try:
            yield fd
        finally:
            files.close(fd)

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
        files.unlink(self.path, missing_ok=True)


def _open_sized(path: Path, size: int) -> int:
    try:
        fd = files.open(path, _OPEN_FLAGS | files.O_CREAT, 0o644)
    except FileNotFoundError:
        files.make_directory(path.parent)
        fd = files.open(path, _OPEN_FLAGS | files.O_CREAT, 0o644)
    try:
        if files.fstat(fd).st_size < size:
            files.ftruncate(fd, size)
    except BaseException:
        files.close(fd)
        raise
    return fd


def sync_file(path: Path) -> None:
    """Brings a file's content to the disk, that written through any mapping too; waits without the GIL.

    Raises OSError when it can't be opened, which may pass, and SyncFailed, which doesn't.
    """
    fd = files.open(path, _OPEN_FLAGS)
    try:
        _sync_content(fd, path)
    finally:
        files.close(fd)


def open_directory(path: Path) -> int:
    """A descriptor for `sync_entries`. Raises OSError."""
    return files.open(path, files.O_RDONLY | files.O_DIRECTORY | files.O_CLOEXEC)


def sync_directory(path: Path) -> None:
    """Brings new, renamed and deleted entries of a directory to the disk. Raises as `sync_file` does."""
    fd = open_directory(path)
    try:
        sync_entries(fd, path)
    finally:
        files.close(fd)


def sync_entries(fd: int, path: Path) -> None:
    """`sync_directory` of a directory that is open. Raises SyncFailed."""
    try:
        files.sync_entries(fd)
    except OSError as e:
        raise SyncFailed(f"the entries of {path} can't be brought to the disk: {e.strerror or e}") from e


def _sync_content(fd: int, path: Path) -> None:
    try:
        files.fdatasync(fd)
    except OSError as e:
        raise SyncFailed(f"{path} can't be brought to the disk: {e.strerror or e}") from e


def put_aside(path: Path) -> None:
    """Renames what can't be used, if there is something, so that it can be looked at. Raises StoreError."""
    try:
        if files.exists(path):
            files.rename(path, path.with_name(path.name + ".damaged"))
    except OSError as e:
        raise StoreError(f"can't rename the damaged {path}: {e}") from e


def list_files(directory: Path) -> dict[int, int]:
    """{offset in the name: length} of the directory's mapped files, in order; other entries don't count."""
    try:
        with files.scandir(directory) as entries:
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
