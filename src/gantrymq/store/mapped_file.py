"""Memory-mapped files of a fixed size, named after the offset of their first byte (`logfile/DefaultMappedFile`).

A file is sparse, so a mapping can contain pages without blocks on disk. If the disk is full, a write to such a page
kills the process with SIGBUS. Therefore blocks are reserved with posix_fallocate before they are written. If the disk
is full, this call fails and raises StoreFull.
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
    """One file of `size` bytes. `mapping` is None before `map()`. Bytes up to `reserved` have blocks on disk.

    With `read_ahead` False, the first access to a page reads only this page, not the megabytes that the disk's
    read-ahead may add. Use it for many small files and for random access. `name` is the file name if it isn't derived
    from `base`. A str as `directory` costs a tenth of a Path, which matters for thousands of files.
    """

    __slots__ = ("_directory", "_name", "base", "fd", "is_used", "mapping", "read_ahead", "reserved", "size", "view")

    def __init__(self, directory: Path | str, base: int, size: int, *, read_ahead: bool = True, name: str = "") -> None:
        self._directory = directory
        self._name = name or f"{base:0{_NAME_LENGTH}d}"
        self.base = base
        self.size = size
        self.read_ahead = read_ahead
        self.mapping: files.Mapping | None = None
        #: A read-only view of the mapping. Slices of it are sent to sockets.
        self.view: memoryview | None = None
        self.reserved = 0
        #: Whether the file has been read since the last check. Used to decide which files stay mapped.
        self.is_used = False
        #: The descriptor stays open between `open` and `close_descriptor`, so that a write can't fail for lack of a
        #: descriptor.
        self.fd: int | None = None

    @property
    def path(self) -> Path:
        """The path of the file."""
        return Path(self._directory, self._name)

    @property
    def path_text(self) -> str:
        """The same path as a str, which costs a tenth of `path`."""
        return f"{self._directory}/{self._name}"

    def open(self) -> None:
        """Opens the file; extends a missing or short one to `size` bytes. Raises StoreFull or StoreError."""
        if self.fd is None:
            try:
                self.fd = _open_sized(self._directory, self.path_text, self.size)
            except OSError as e:
                raise store_error(e, f"can't open {self.path}") from e

    def close_descriptor(self) -> None:
        fd, self.fd = self.fd, None
        if fd is not None:
            files.close(fd)

    def map(self) -> files.Mapping:
        """Returns the mapping. Maps the file first if needed, and extends a missing or short file to `size` bytes."""
        if self.mapping is None:
            try:
                fd = _open_sized(self._directory, self.path_text, self.size) if self.fd is None else self.fd
                try:
                    mapping = files.map_file(fd, self.size)
                finally:
                    if fd != self.fd:
                        files.close(fd)
            except OSError as e:
                raise store_error(e, f"can't open {self.path}") from e
            if not self.read_ahead:
                # If this call fails, for example because the system is out of memory, access is only slower.
                with suppress(OSError):
                    mapping.madvise(files.MADV_RANDOM)
            self.view = memoryview(mapping).toreadonly()
            self.mapping = mapping
        return self.mapping

    def make(self, start: int, end: int) -> None:
        """Creates the file if it is missing, and reserves blocks for [start, end). Raises StoreFull or StoreError."""
        try:
            files.close(_open_sized(self._directory, self.path_text, self.size))
        except OSError as e:
            raise store_error(e, f"can't make {self.path}") from e
        self.reserve(start, end)

    def reserve(self, start: int, end: int) -> None:
        """Reserves blocks on disk for [start, end) of the file. Raises StoreFull."""
        end = min(end, self.size)
        if start < end:
            try:
                with self._descriptor() as fd:
                    files.allocate(fd, start, end - start)
            except OSError as e:
                raise store_error(e, f"can't reserve {end - start} bytes for {self.path}") from e
        self.reserved = end

    def will_be_written(self, start: int) -> None:
        """Turns off read-ahead from `start` on, where the file will be written, but not before `start`.

        With read-ahead, the kernel fills blocks without content with zeros, which are then overwritten. Writing 4 KiB
        through the mapping takes 11 to 21 us with read-ahead, 5 to 6 us without it (ext4, Linux 6.18).
        """
        mapping = self.map()
        start -= start % files.PAGESIZE
        with suppress(OSError):
            if start:
                mapping.madvise(files.MADV_NORMAL, 0, start)
            if start < self.size:
                mapping.madvise(files.MADV_RANDOM, start, self.size - start)

    def write(self, start: int, data: memoryview) -> None:
        """Writes data where blocks are reserved. Raises StoreFull or StoreError; the range then contains zeros.

        Uses pwrite, because it is faster than the mapping for large data in pages that were not touched yet. Measured
        with ext4, Linux 6.18:
        - 1.2 KB: pwrite 3.2 us, mapping 1.8 us
        - 7.7 KB: pwrite 8 us, mapping 10 us
        - 64 KiB: pwrite 15 us, mapping 83 us
        - 4 MiB: pwrite 0.45 ms, mapping 5.3 ms

        Decision record: docs/decisions/log-writes.md.
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
        """Sets all bytes from `start` on to zero and releases their blocks."""
        try:
            with self._descriptor() as fd:
                files.ftruncate(fd, start)
                files.ftruncate(fd, self.size)
        except OSError as e:
            raise store_error(e, f"can't cut {self.path}") from e
        self.reserved = 0

    def sync(self) -> None:
        """Flushes the content to disk; see `sync_file`."""
        fd = self.fd
        if fd is not None:
            _sync_content(fd, self.path_text)
        else:
            sync_file(self.path)

    @contextmanager
    def _descriptor(self) -> Iterator[int]:
        if self.fd is not None:
            yield self.fd
            return
        fd = files.open(self.path_text, _OPEN_FLAGS)
        try:
            yield fd
        finally:
            files.close(fd)

    def unmap(self) -> None:
        """Releases the mapping. Slices that a socket still uses stay valid; the last one frees the memory."""
        if self.mapping is not None and self.view is not None:
            # BufferError means that slices still use the mapping.
            with suppress(BufferError):
                self.view.release()
                self.mapping.close()
        self.mapping = self.view = None

    def close(self) -> None:
        self.unmap()
        self.close_descriptor()

    def delete(self) -> None:
        """Deletes the file. Raises OSError; the file then still exists, but is not mapped."""
        self.close()
        files.unlink(self.path, missing_ok=True)


def _open_sized(directory: Path | str, path: str, size: int) -> int:
    try:
        fd = files.open(path, _OPEN_FLAGS | files.O_CREAT, 0o644)
    except FileNotFoundError:
        files.make_directory(Path(directory))
        fd = files.open(path, _OPEN_FLAGS | files.O_CREAT, 0o644)
    try:
        if files.fstat(fd).st_size < size:
            files.ftruncate(fd, size)
    except BaseException:
        files.close(fd)
        raise
    return fd


def sync_file(path: Path) -> None:
    """Flushes a file's content to disk, including data written through any mapping. Runs without the GIL.

    Raises OSError if the file can't be opened, which may be temporary, and SyncFailed, which is permanent.
    """
    fd = files.open(path, _OPEN_FLAGS)
    try:
        _sync_content(fd, str(path))
    finally:
        files.close(fd)


def open_directory(path: Path) -> int:
    """Opens a directory for `sync_entries` and returns the descriptor. Raises OSError."""
    return files.open(path, files.O_RDONLY | files.O_DIRECTORY | files.O_CLOEXEC)


def sync_directory(path: Path) -> None:
    """Flushes new, renamed and deleted entries of a directory to disk. Raises as `sync_file` does."""
    fd = open_directory(path)
    try:
        sync_entries(fd, path)
    finally:
        files.close(fd)


def sync_entries(fd: int, path: Path) -> None:
    """Flushes the entries of an open directory, as `sync_directory` does. Raises SyncFailed."""
    try:
        files.sync_entries(fd)
    except OSError as e:
        raise SyncFailed(f"cannot flush the entries of {path} to disk: {e.strerror or e}") from e


def _sync_content(fd: int, path: str) -> None:
    try:
        files.fdatasync(fd)
    except OSError as e:
        raise SyncFailed(f"cannot flush {path} to disk: {e.strerror or e}") from e


def put_aside(path: Path) -> None:
    """Renames an unusable file or directory with the suffix `.damaged`, for inspection. Raises StoreError."""
    try:
        if files.exists(path):
            files.rename(path, path.with_name(path.name + ".damaged"))
    except OSError as e:
        raise StoreError(f"can't rename the damaged {path}: {e}") from e


def list_files(directory: Path | str) -> dict[int, int]:
    """Returns {offset in the name: length} of the mapped files in a directory, in order. Ignores other entries."""
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
    """Returns the exception for a failed system call: StoreFull if the disk is full, else StoreError."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"{what}: the disk is full ({e.strerror})")
    return StoreError(f"{what}: {e.strerror or e}")
