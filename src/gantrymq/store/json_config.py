"""A configuration file that survives a crash. The previous version is kept as `.bak` (`common/ConfigManager`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from stat import S_IMODE

from gantrymq.errors import GantryError, StoreError
from gantrymq.store.mapped_file import put_aside, sync_directory
from gantrymq.system import files, threads

log = logging.getLogger(__name__)

_SECRET = 0o600


def _looks_whole(data: bytes) -> None:
    if not (data.lstrip().startswith(b"{") and data.rstrip().endswith(b"}")):
        raise ValueError("it doesn't begin with { and end with }")


class JsonConfigFile:
    """A file in the store's config directory, as bytes. The previous version has the suffix `.bak`.

    The permissions of the file are kept. A secret file always gets 0600.
    """

    def __init__(self, path: Path, *, is_secret: bool = False) -> None:
        self.path = path
        self.backup = path.with_name(path.name + ".bak")
        self._mode = _SECRET if is_secret else None
        self._newest: bytes | None = None
        self._writing = threads.Lock()

    def load(self, check: Callable[[bytes], object] = _looks_whole, *, can_be_rebuilt: bool = False) -> bytes | None:
        """Returns the content of the file, or of the backup if the file is damaged or missing; None if neither exists.

        A damaged file is renamed with the suffix `.damaged`.

        Args:
            check: Raises ValueError or a GantryError if the content is damaged, for example a decoder.
            can_be_rebuilt: If true, damaged files count as missing.

        Raises:
            StoreError: No existing version is usable, and `can_be_rebuilt` is false.
        """
        problems: list[str] = []
        self._hide(self.path)
        self._hide(self.backup)
        for path in (self.path, self.backup):
            try:
                data = files.read_bytes(path)
                check(data)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, GantryError) as e:
                problems.append(f"{path} can't be used: {e}")
                log.warning("%s", problems[-1])
                continue
            if path == self.backup:
                log.warning("using %s, the version before, in place of %s", path, self.path)
                # The next save must not overwrite the good backup with the damaged file.
                put_aside(self.path)
            return data
        text = "; ".join(problems)
        if problems and can_be_rebuilt:
            log.error("%s; there is no good version: it is made anew", text)
            put_aside(self.path)
            put_aside(self.backup)
        elif problems:
            which = "one of them or move both" if len(problems) > 1 else "it or move it"
            raise StoreError(f"{text}. There is no good version; repair {which} away to start without")
        return None

    def put(self, data: bytes) -> None:
        """Sets the content for the next `write`. Earlier content that has not been written is discarded."""
        self._newest = data

    def write(self) -> None:
        """Writes the content of the last `put`, unless it has been written, and flushes it to disk.

        Threads may call this concurrently; the file always gets the content of the last `put`. After StoreError, the
        content is not written.
        """
        with self._writing:
            data = self._newest
            if data is not None:
                self._replace(data)
                if self._newest is data:
                    self._newest = None

    def save(self, data: bytes) -> None:
        """Replaces the content and flushes it to disk. Raises StoreError."""
        self.put(data)
        self.write()

    def _replace(self, data: bytes) -> None:
        try:
            temporary = files.write_beside(self.path, data, self._mode)
            if files.exists(self.path):
                files.rename(self.path, self.backup)
                self._hide(self.backup)
            files.rename(temporary, self.path)
            sync_directory(self.path.parent)
        except OSError as e:
            raise StoreError(f"can't write {self.path}: {e}") from e

    def _hide(self, path: Path) -> None:
        """Removes other users' permissions from a secret file."""
        if self._mode is None:
            return
        try:
            if S_IMODE(files.stat(path).st_mode) != self._mode:
                files.chmod(path, self._mode)
                log.warning("%s had other permissions than %#o: it has these now", path, self._mode)
        except FileNotFoundError:
            return
        except OSError as e:
            log.warning("%s can't be given the permissions %#o, others may read it: %s", path, self._mode, e)
