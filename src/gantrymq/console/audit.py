"""The audit log, which records every login, and every change before it starts and after it ends."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from gantrymq.console.private_files import make_private_file
from gantrymq.errors import GantryError

log = logging.getLogger(__name__)


class Audit:
    """Writes lines of JSON to a file that only its owner can read. Without `path`, writes to the log of the process."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def write(self, user: str, address: str, change: str, arguments: Mapping[str, object], outcome: str) -> None:
        """Writes a line and returns when the line is on disk. Raises GantryError if the write fails."""
        # The line is ASCII only, so that a name cannot change how a terminal shows it.
        line = json.dumps(
            {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "user": user or "-",
                "address": address,
                "change": change,
                "arguments": dict(arguments),
                "outcome": outcome,
            }
        )
        if self._path is None:
            log.info("%s", line)
            return
        try:
            make_private_file(self._path)
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND)
            try:
                # The lock is necessary, because other consoles can write to the file.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                _append(descriptor, line.encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError as e:
            raise GantryError(
                f"can't write the audit log {self._path}: {e.strerror or e}. Free space, or correct its permissions"
            ) from e


def _append(descriptor: int, line: bytes) -> None:
    """Appends the whole line, or nothing. Raises OSError."""
    end = os.fstat(descriptor).st_size
    if end and os.pread(descriptor, 1, end - 1) != b"\n":
        # A console that was killed has left an incomplete line, so a new line is started.
        line = b"\n" + line
    written = 0
    try:
        while written < len(line):
            written += os.write(descriptor, line[written:])
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, end)
        raise
