"""Reloads plain_acl.yml when it changes (`PlainPermissionManager`, `srvutil/AclFileWatchService`)."""

from __future__ import annotations

import logging
from pathlib import Path

from gantrymq.auth.plain_acl import PlainAcl, parse_plain_acl
from gantrymq.config import MAX_FILE_BYTES
from gantrymq.errors import ConfigError
from gantrymq.system import files

log = logging.getLogger(__name__)


class PlainAclFiles:
    """plain_acl.yml and, as in Java, the .yml and .yaml files in the directory `acl` beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: dict[Path, tuple[int, int, int]] = {}

    def load(self) -> PlainAcl:
        """Reads the files. Raises ConfigError if one is invalid, or if there is none."""
        self._seen = self._states()
        if not self._seen:
            raise ConfigError(f"aclEnable=true needs {self._path}, which does not exist")
        return PlainAcl.merge(parse_plain_acl(_read(path), str(path)) for path in self._seen)

    def changed(self) -> PlainAcl | None:
        """Returns the new content if a file has changed, otherwise None. An invalid file is logged and ignored."""
        if self._states() == self._seen:
            return None
        try:
            acl = self.load()
        except ConfigError as e:
            log.error("the accounts are not reloaded: %s", e)
            return None
        log.info("%s: %d accounts", ", ".join(map(str, self._seen)), len(acl.accounts))
        return acl

    def _states(self) -> dict[Path, tuple[int, int, int]]:
        """Returns the modification time, size and inode of each file."""
        found = {}
        directory = self._path.parent / "acl"
        more = sorted(path for path in files.below(directory) if path.suffix in (".yml", ".yaml"))
        for path in (*more, self._path):
            try:
                stat = files.stat(path)
            except OSError:
                continue
            found[path] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return found


def _read(path: Path) -> bytes:
    try:
        data = files.read_bytes(path, MAX_FILE_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"can't read {path}: {e.strerror or e}") from e
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return data
