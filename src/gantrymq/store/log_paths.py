"""The directories of the commit log, and the choice of one for each new file (`MultiPathMappedFileQueue`).

`storePathCommitLog` and `readOnlyCommitLogStorePaths` can name several directories, usually one for each disk. A
directory gets no new files while another one can take them and

- `readOnlyCommitLogStorePaths` names it,
- its disk is fuller than `diskSpaceCleanForciblyRatio`, or
- a file could not be created or written there.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import NamedTuple

from gantrymq.errors import StoreError
from gantrymq.protocol.record import BLANK_SIZE
from gantrymq.store import retention
from gantrymq.store.config import StoreConfig
from gantrymq.store.mapped_file import list_files
from gantrymq.system import clock, files

log = logging.getLogger(__name__)

#: After this time, in seconds, a directory without space gets new files again.
_RETRY_S = 60.0
#: Errors that do not concern the disk.
_NOT_THE_DISK = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class LogFile(NamedTuple):
    """A file of the log: its path, the physical offset of its first byte, and its length in bytes."""

    path: Path
    base: int
    length: int


class PathState(StrEnum):
    """Whether a directory of the log gets new files, and why not."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    #: The disk is fuller than `diskSpaceCleanForciblyRatio`.
    FULL = "full"
    #: A file could not be created or written.
    FAILED = "failed"


class _Failure(NamedTuple):
    """Why a directory gets no new files, and until when, in seconds of the monotonic clock."""

    text: str
    until: float


class LogPaths:
    """The directories of one commit log."""

    def __init__(self, config: StoreConfig) -> None:
        #: The set of read-only directories can change at any time.
        self._config = config
        #: All directories, also read-only ones.
        self.all = config.commit_log_directories
        self.has_several = len(self.all) > 1
        #: The writable directories whose disks are too full for new files.
        self._full: set[Path] = set()
        self._failures: dict[Path, _Failure] = {}

    def __str__(self) -> str:
        return ",".join(map(str, self.all))

    @property
    def writable(self) -> list[Path]:
        """The directories that are not read-only, in the order in which they get new files."""
        return sorted(self._config.writable_commit_log_directories, key=str)

    def for_new_file(self, index: int) -> list[Path]:
        """Returns the writable directories, in the order in which to try them for the file with this index."""
        self._end_failures()
        writable, working = self.writable, self._working()
        # If all disks are full, all of them are used, as in Java.
        chosen = [path for path in working if path not in self._full] or working or writable
        at = index % len(chosen)
        chosen = chosen[at:] + chosen[:at]
        return chosen + [path for path in writable if path not in chosen]

    def failed(self, directory: Path, error: StoreError, offsets: Iterable[int]) -> bool:
        """Excludes a directory if this error concerns its disk, and returns whether it does.

        `offsets` are those of the log files in the directory, which the report names. Without space, the exclusion
        ends after some time, otherwise at the next start. With only one directory, nothing is excluded.
        """
        cause = error.__cause__
        if not self.has_several or not isinstance(cause, OSError) or cause.errno in _NOT_THE_DISK:
            return False
        text = f"{error}; this directory has {_named(offsets)}"
        is_new = directory not in self._failures
        until = clock.monotonic() + _RETRY_S if cause.errno in _NO_SPACE else inf
        self._failures[directory] = _Failure(text, until)
        if is_new:
            log.error("new log files go to %s: %s", ", ".join(map(str, self._working())) or "no directory", text)
        return True

    @property
    def is_working(self) -> bool:
        """Whether a writable directory has not failed."""
        return bool(self._working())

    def _working(self) -> list[Path]:
        return [path for path in self.writable if path not in self._failures]

    def used_percent(self) -> float:
        """Measures the disks. Returns the used percentage of the one with the most space. Raises OSError.

        The used percentage decides which directories get new files until the next call.
        """
        if not self.has_several:
            return retention.used_percent(self.all[0])
        self._end_failures()
        used: dict[Path, float] = {}
        for path in self.writable:
            try:
                used[path] = retention.used_percent(path)
            except OSError as e:
                if path not in self._failures:
                    log.error("the disk of %s can't be measured: %s", path, e.strerror or e)
        if not used:
            raise OSError(errno.EIO, f"no disk of the commit log in {self} can be measured")
        full = {path for path, percent in used.items() if percent > self._config.disk_space_clean_forcibly_ratio}
        for path in full - self._full:
            log.warning(
                "the disk of %s is %.1f %% full, diskSpaceCleanForciblyRatio is %d: new log files go to others",
                path,
                used[path],
                self._config.disk_space_clean_forcibly_ratio,
            )
        for path in self._full - full:
            log.info("the disk of %s has free space again: it gets new log files", path)
        self._full = full
        return min([percent for path, percent in used.items() if path not in self._failures] or used.values())

    def states(self) -> dict[Path, tuple[PathState, str]]:
        """Returns the state of each directory, and the error of a failed one."""
        writable, failures = self.writable, dict(self._failures)
        states = {}
        for path in self.all:
            state = PathState.WRITABLE
            if path not in writable:
                state = PathState.READ_ONLY
            elif path in failures:
                state = PathState.FAILED
            elif path in self._full:
                state = PathState.FULL
            states[path] = state, failures[path].text if state is PathState.FAILED else ""
        return states

    def _end_failures(self) -> None:
        now = clock.monotonic()
        for path, failure in list(self._failures.items()):
            if now >= failure.until:
                self._failures.pop(path, None)
                log.info("%s gets new log files again", path)


def find_log_files(directories: Iterable[Path]) -> tuple[list[LogFile], list[LogFile]]:
    """Returns the log files in these directories by offset, and those that another directory has, too.

    A file whose creation failed can stay on a failing disk, without messages. Raises StoreError if a directory can't be
    read, or if two files with one name have messages.
    """
    found: dict[int, list[LogFile]] = {}
    for directory in directories:
        for base, length in list_files(directory).items():
            found.setdefault(base, []).append(LogFile(directory / f"{base:020d}", base, length))
    chosen, unused = [], []
    for base in sorted(found):
        same = found[base]
        if len(same) > 1:
            used = [file for file in same if has_messages(file)]
            if len(used) > 1:
                raise StoreError(f"{used[0].path} and {used[1].path} both have messages: move one of them away")
            same = used + [file for file in same if file not in used]
        chosen.append(same[0])
        unused += same[1:]
    return chosen, unused


def has_messages(file: LogFile) -> bool:
    """Returns whether a file begins with a record. Raises StoreError."""
    try:
        return any(files.read_bytes(file.path, BLANK_SIZE))
    except OSError as e:
        raise StoreError(f"can't read {file.path}: {e.strerror or e}") from e


def _named(bases: Iterable[int]) -> str:
    """Returns the number of log files with these offsets, and the first and last name."""
    ordered = sorted(bases)
    if not ordered:
        return "no log file"
    if len(ordered) == 1:
        return f"1 log file ({ordered[0]:020d})"
    return f"{len(ordered)} log files (from {ordered[0]:020d} to {ordered[-1]:020d})"
