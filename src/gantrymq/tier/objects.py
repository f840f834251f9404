"""The objects of a tier: files of a directory, or objects in S3.

An object has its complete content or does not exist. Names contain `/`. All methods block, so they run in threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gantrymq.errors import StoreError
from gantrymq.extras import need
from gantrymq.store.mapped_file import open_directory
from gantrymq.system import files

#: Size of the parts of a large object, in bytes. The writer of an object keeps one part in memory.
PART_BYTES = 8 * 1024 * 1024
#: Timeouts of a connection and of a response of S3, in seconds, and the number of attempts.
_CONNECT_S, _RESPONSE_S, _ATTEMPTS = 5, 15, 2
_FILE, _S3 = "file://", "s3://"
#: The end of the name of an incomplete object in a directory.
TEMPORARY = ".tmp"


class ObjectWriter(ABC):
    """Writes a new object. It exists when the `with` block has ended without an exception."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Appends bytes. Raises OSError."""

    @abstractmethod
    def commit(self) -> None:
        """Makes the object visible, with its content on disk. Raises OSError."""

    @abstractmethod
    def discard(self) -> None:
        """Discards the written bytes. The object does not appear."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.commit()
        else:
            self.discard()


class Objects(ABC):
    """The objects below one address. Methods raise OSError; FileNotFoundError if an object does not exist."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __str__(self) -> str:
        return self.address

    @abstractmethod
    def create(self, name: str) -> ObjectWriter:
        """Starts a new object. It replaces an object with this name."""

    @abstractmethod
    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        """Returns `size` bytes of an object from `start` on, all by default. Returns fewer at the end of the object."""

    @abstractmethod
    def names(self, directory: str) -> dict[str, int]:
        """Returns {name without the directory: size in bytes} of the objects of a directory, which may not exist."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Deletes an object if it exists."""


def open_objects(address: str, *below: str) -> Objects:
    """Returns the objects at an address: a directory, or a URL such as `s3://bucket/path`. Does not connect.

    `below` are the directories below the address. Raises MissingExtra without the extra `s3`, and StoreError for a URL
    with another protocol or without a bucket.
    """
    if address.startswith(_S3):
        if address[len(_S3) :][:1] in ("", "/"):
            raise StoreError(f"{address} has no bucket: it must be s3://bucket/path")
        need("s3", address)
        return _FsspecObjects("/".join((address.rstrip("/"), *below)))
    if "://" in address and not address.startswith(_FILE):
        raise StoreError(f"{address} is not supported: a tier is a directory, or a URL such as s3://bucket/path")
    return _Directory(Path(address.removeprefix(_FILE)).joinpath(*below))


# -- a directory ------------------------------------------------------------------------------------------------


class _Directory(Objects):
    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self._root = root

    def create(self, name: str) -> ObjectWriter:
        return _FileWriter(self._root / name)

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        fd = files.open(self._root / name, files.O_RDONLY | files.O_CLOEXEC)
        try:
            left = files.fstat(fd).st_size - start if size is None else size
            parts = []
            # One call of pread returns at most 2 GiB.
            while left > 0 and (part := files.pread(fd, left, start)):
                parts.append(part)
                start += len(part)
                left -= len(part)
            return b"".join(parts)
        finally:
            files.close(fd)

    def names(self, directory: str) -> dict[str, int]:
        try:
            with files.scandir(self._root / directory) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except FileNotFoundError:
            return {}

    def delete(self, name: str) -> None:
        path = self._root / name
        files.unlink(path, missing_ok=True)
        with suppress(FileNotFoundError):
            _sync_directory(path.parent)


class _FileWriter(ObjectWriter):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f"{path.name}{TEMPORARY}")
        files.make_lasting_directory(path.parent)
        files.unlink(self._temporary, missing_ok=True)
        flags = files.O_WRONLY | files.O_CREAT | files.O_EXCL | files.O_CLOEXEC
        self._fd = files.open(self._temporary, flags, 0o666)
        self._size = 0

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = files.pwrite(self._fd, rest, self._size)
            self._size += written
            rest = rest[written:]

    def commit(self) -> None:
        try:
            files.fsync(self._fd)
        except OSError:
            self.discard()
            raise
        files.close(self._fd)
        files.rename(self._temporary, self._path)
        _sync_directory(self._path.parent)

    def discard(self) -> None:
        files.close(self._fd)
        with suppress(OSError):
            files.unlink(self._temporary)


def _sync_directory(path: Path) -> None:
    fd = open_directory(path)
    try:
        files.sync_entries(fd)
    finally:
        files.close(fd)


# -- S3, by fsspec -------------------------------------------------------------------------------------------


class _FsspecObjects(Objects):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._root = url.removeprefix(_S3)

    @cached_property
    def _fs(self) -> Any:
        """The file system of s3fs. The first call imports it, which takes most of a second. Raises OSError."""
        with _os_errors(self.address):
            from s3fs import S3FileSystem  # type: ignore[import-untyped, unused-ignore]

            class FileSystem(S3FileSystem):  # type: ignore[misc, unused-ignore]
                # Its attempts would multiply those of botocore.
                retries = 1

            # Credentials, region and endpoint come from the variables and files of AWS: see its documentation.
            # Another broker of this name may change the objects, so nothing is cached.
            return FileSystem(
                use_listings_cache=False,
                skip_instance_cache=True,
                config_kwargs={
                    "connect_timeout": _CONNECT_S,
                    "read_timeout": _RESPONSE_S,
                    "retries": {"total_max_attempts": _ATTEMPTS},
                },
            )

    def create(self, name: str) -> ObjectWriter:
        with _os_errors(self._path(name)):
            return _FsspecWriter(name, self._fs.open(self._path(name), "wb", block_size=PART_BYTES, autocommit=False))

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        if size == 0:
            return b""
        with _os_errors(self._path(name)):
            end = None if size is None else start + size
            data: bytes = self._fs.cat_file(self._path(name), start=start, end=end)
        return data

    def names(self, directory: str) -> dict[str, int]:
        try:
            with _os_errors(self._path(directory)):
                found = self._fs.ls(self._path(directory), detail=True)
        except FileNotFoundError:
            return {}
        return {entry["name"].rsplit("/", 1)[1]: entry["size"] for entry in found if entry["type"] == "file"}

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError), _os_errors(self._path(name)):
            self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class _FsspecWriter(ObjectWriter):
    """An upload in parts. The object exists when the last part was sent."""

    def __init__(self, name: str, file: Any) -> None:
        self._name = name
        self._file = file

    def write(self, data: bytes) -> None:
        with _os_errors(self._name):
            self._file.write(data)

    def commit(self) -> None:
        try:
            with _os_errors(self._name):
                self._file.close()
                self._file.commit()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        # This sends the last part.
        with suppress(Exception):
            self._file.close()
        # The parts would otherwise stay in the store, invisible.
        with suppress(Exception):
            self._file.discard()


@contextmanager
def _os_errors(name: str) -> Iterator[None]:
    """Raises OSError for the exceptions of all libraries that fsspec uses."""
    try:
        yield
    except OSError:
        raise
    except Exception as e:
        raise OSError(f"{name}: {type(e).__name__}: {e}") from e
