"""Stores the broker id that the controller assigned (`BrokerMetadata`, `TempBrokerMetadata`).

Before a broker applies for an id, it stores the id with a check code. If the response is lost, it applies again with
the same code and gets the same id. Both files are in the store's root directory and have Java's names. Their content is
`cluster#name#id`; the temporary file adds `#check code`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gantrymq.config import replace_file
from gantrymq.errors import ConfigError, StoreError
from gantrymq.system import files

#: Java's file names (`MessageStoreConfig.getStorePathBrokerIdentity`).
NAME = "brokerIdentity"
TEMPORARY_NAME = "brokerIdentity-temp"


class Applied(NamedTuple):
    """A requested broker id, and the check code of the request."""

    broker_id: int
    check_code: str


class Identity:
    """The identity of the broker `broker_name` in the cluster `cluster_name`. `root` is the store's directory."""

    def __init__(self, root: Path, cluster_name: str, broker_name: str) -> None:
        self._names = cluster_name, broker_name
        self._path = root / NAME
        self._temporary = root / TEMPORARY_NAME
        #: None until the controller has assigned an id.
        self.broker_id: int | None = None
        #: The pending application for an id; None if there is none.
        self.applied: Applied | None = None

    def load(self) -> None:
        """Reads the files. Raises ConfigError if they belong to another broker, StoreError if they can't be read."""
        if found := self._read(self._path, 3):
            self.broker_id = int(found[2])
        elif found := self._read(self._temporary, 4):
            self.applied = Applied(int(found[2]), found[3])

    def apply_for(self, broker_id: int, check_code: str) -> None:
        """Stores the pending application. Raises ConfigError if the file can't be written."""
        replace_file(self._temporary, "#".join((*self._names, str(broker_id), check_code)).encode())
        self.applied = Applied(broker_id, check_code)

    def refused(self) -> None:
        """Removes the pending application, because another broker has the requested id."""
        self.applied = None
        files.unlink(self._temporary, missing_ok=True)

    def given(self) -> None:
        """Stores the id of the pending application as assigned. Raises ConfigError if the file can't be written."""
        assert self.applied is not None
        broker_id = self.applied.broker_id
        replace_file(self._path, "#".join((*self._names, str(broker_id))).encode())
        self.broker_id = broker_id
        self.refused()

    def _read(self, path: Path, count: int) -> list[str]:
        """Returns the parts of a file's content; an empty list if the file doesn't exist.

        Raises ConfigError if the file belongs to another broker, StoreError if it is damaged or can't be read.
        """
        try:
            if not files.exists(path):
                return []
            parts = files.read_bytes(path).decode().strip().split("#")
        except (OSError, UnicodeDecodeError) as e:
            raise StoreError(f"can't read {path}: {e}") from e
        if len(parts) != count or not parts[2].isdecimal():
            raise StoreError(f"{path} is damaged: it says {'#'.join(parts)[:200]!r}")
        if (parts[0], parts[1]) != self._names:
            raise ConfigError(
                f"{path} is of the broker {parts[1]} of the cluster {parts[0]}, the configuration says "
                f"brokerName={self._names[1]}, brokerClusterName={self._names[0]}: change one of them"
            )
        return parts
