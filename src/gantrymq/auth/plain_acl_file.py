"""plain_acl.yml on the disk, read again when it changes (`PlainPermissionManager`, `srvutil/AclFileWatchService`)."""

from __future__ import annotations

import logging
from pathlib import Path

from gantrymq.auth.plain_acl import PlainAcl, parse_plain_acl
from gantrymq.config import MAX_FILE_BYTES
from gantrymq.errors import ConfigError
from gantrymq.system import files

log = logging.getLogger(__name__)


class PlainAclFiles:
    """plain_acl.yml, and the .yml and .yaml files of the directory `acl` beside it, as in Java."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: dict[Path, tuple[int, int, int]] = {}

    def load(self) -> PlainAcl:
        """The content. Raises ConfigError when a file can't be used, or there is none."""
        self._seen = self._look()
        if not self._seen:
            raise ConfigError(f"aclEnable=true needs {self._path}, which is not there")
        return PlainAcl.merge(parse_plain_acl(_read(path), str(path)) for path in self._seen)

    def changed(self) -> PlainAcl | None:
        """The content if a file is not what it was at the last look. A broken one is logged, and None returned."""
        if self._look() == self._seen:
            return None
        try:
            acl = self.load()
        except ConfigError as e:
            log.error("the accounts stay as they were: %s", e)
            return None
        log.info("%s: %d accounts", ", ".join(map(str, self._seen)), len(acl.accounts))
        return acl

    def _look(self) -> dict[Path, tuple[int, int, int]]:
        """What tells one state of each file from another."""
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
