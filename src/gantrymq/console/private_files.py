"""Creates files that only their owner can read: history, audit log and their directory."""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_OF_OTHERS = 0o077
#: Prefixes of the names of the console's files. The permissions of an existing directory change only if it has no other
#: files.
_OWN_FILES = ("history.db", "audit.log")


def make_private_directory(path: Path) -> None:
    """Creates the directory. If it exists with only the console's files, restricts its permissions. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(_DIRECTORY_MODE)
    except FileExistsError:
        if not path.stat().st_mode & _OF_OTHERS:
            return
        if all(child.name.startswith(_OWN_FILES) for child in path.iterdir()):
            path.chmod(_DIRECTORY_MODE)
        else:
            log.warning("other users can list the directory %s, which has other files: give the console its own", path)


def make_private_file(path: Path) -> None:
    """Creates a missing file. If other users can read an existing file, restricts its permissions. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, _FILE_MODE)
    try:
        if os.fstat(descriptor).st_mode & _OF_OTHERS:
            os.fchmod(descriptor, _FILE_MODE)
    finally:
        os.close(descriptor)
