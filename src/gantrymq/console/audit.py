"""The audit log: every change that somebody asked for, before it is made and after."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gantrymq.errors import GantryError

log = logging.getLogger(__name__)


class Audit:
    """Lines of JSON in `path`, else in the log."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def write(self, user: str, address: str, change: str, arguments: dict[str, Any], outcome: str) -> None:
        """Raises GantryError when it can't be written: then the change isn't made."""
        line = msgspec.json.encode(
            {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "user": user or "-",
                "address": address,
                "change": change,
                "arguments": arguments,
                "outcome": outcome,
            }
        )
        if self._path is None:
            log.info("%s", line.decode())
            return
        try:
            # One write of a file opened to append: lines of several consoles don't mix.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, line + b"\n")
            finally:
                os.close(descriptor)
        except OSError as e:
            raise GantryError(f"the audit log {self._path} can't be written: {e.strerror or e}") from e
