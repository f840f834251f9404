"""Identity: the id that the controller gave to a broker, in the store's directory (BrokerMetadata, TempBrokerMetadata).

Before a broker applies for an id it writes down which one, with a check code: when the answer is lost it applies with
the same code again, and gets the same id. Files and their texts are Java's, `cluster#name#id` and, of the second one,
`#check code` behind that.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gantrymq.config import replace_file
from gantrymq.errors import ConfigError, StoreError
from gantrymq.system import files

#: Java's names (`MessageStoreConfig.getStorePathBrokerIdentity`).
NAME = "brokerIdentity"
TEMPORARY_NAME = "brokerIdentity-temp"


class Applied(NamedTuple):
    """An id, and the check code to apply for it with."""

    broker_id: int
    check_code: str


class Identity:
    """Of the broker `broker_name` of `cluster_name`, whose store is in `root`."""

    def __init__(self, root: Path, cluster_name: str, broker_name: str) -> None:
        self._names = cluster_name, broker_name
        self._path = root / NAME
        self._temporary = root / TEMPORARY_NAME
        #: None until the controller has given one.
        self.broker_id: int | None = None
        #: What it applies for, None before it does.
        self.applied: Applied | None = None

    def load(self) -> None:
        """Reads the files. Raises ConfigError for those of another broker, StoreError for what can't be read."""
        if found := self._read(self._path, 3):
            self.broker_id = int(found[2])
        elif found := self._read(self._temporary, 4):
            self.applied = Applied(int(found[2]), found[3])

    def apply_for(self, broker_id: int, check_code: str) -> None:
        """Writes down what is applied for. Raises ConfigError."""
        replace_file(self._temporary, "#".join((*self._names, str(broker_id), check_code)).encode())
        self.applied = Applied(broker_id, check_code)

    def refused(self) -> None:
        """Another broker has that id."""
        self.applied = None
        files.unlink(self._temporary, missing_ok=True)

    def given(self) -> None:
        """The id that it applied for is its own. Raises ConfigError."""
        assert self.applied is not None
        broker_id = self.applied.broker_id
        replace_file(self._path, "#".join((*self._names, str(broker_id))).encode())
        self.broker_id = broker_id
        self.refused()

    def _read(self, path: Path, count: int) -> list[str]:
        """The parts of a file's text; none when there is no such file. Raises ConfigError and StoreError."""
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
