"""A configuration file that survives a crash: the old one is kept as `.bak` (`common/ConfigManager`)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from gantrymq.errors import GantryError, StoreError
from gantrymq.store.mapped_file import sync_directory

log = logging.getLogger(__name__)


def _looks_whole(data: bytes) -> None:
    if not (data.lstrip().startswith(b"{") and data.rstrip().endswith(b"}")):
        raise ValueError("it doesn't begin with { and end with }")


class JsonConfigFile:
    """One file of the store's config directory, as bytes; `.bak` beside it is the version before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backup = path.with_name(path.name + ".bak")

    def load(self, check: Callable[[bytes], object] = _looks_whole) -> bytes | None:
        """The content, the backup's where the file is damaged or missing, None where there is neither.

        `check` raises ValueError or a GantryError for damaged content; a decoder will do. A damaged file is kept with
        the ending `.damaged`. Raises StoreError when there is no good one among those that exist.
        """
        problem = ""
        for path in (self.path, self.backup):
            try:
                data = path.read_bytes()
                check(data)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, GantryError) as e:
                problem = f"{path} can't be used: {e}"
                log.warning("%s", problem)
                continue
            if path == self.backup:
                log.warning("using %s, the version before, in place of %s", path, self.path)
                if self.path.exists():
                    # Otherwise the next save would make it the backup.
                    self.path.replace(self.path.with_name(self.path.name + ".damaged"))
            return data
        if problem:
            raise StoreError(f"{problem}, and there is no good backup; repair it or move it away to start without")
        return None

    def save(self, data: bytes) -> None:
        """Replaces the content; on return it is on the disk. Raises StoreError."""
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists():
                self.path.replace(self.backup)
            temporary.replace(self.path)
            sync_directory(self.path.parent)
        except OSError as e:
            raise StoreError(f"can't write {self.path}: {e}") from e
