"""The KV configuration: string tables by namespace, in a JSON file that is rewritten at each change.

A change takes effect after it is on disk (`remoting/file_changes.py`). The file has Java's format (namesrv/kvconfig/*):
`{"configTable":{"NAMESPACE":{"key":"value"}}}`
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from gantrymq.errors import BodyError, ConfigError
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.remoting.file_changes import FileChanges, NewContent
from gantrymq.system import files

#: Largest size of the file, in bytes. Encoding it must not block the event loop for long.
MAX_FILE_BYTES = 4 * 1024 * 1024


class _File(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KVConfigManager:
    """The tables of the KV configuration. `load` reads the file at `path`, which need not exist."""

    def __init__(self, path: Path, changes: FileChanges) -> None:
        self._path = path
        self._changes = changes
        self._tables: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Reads the file. Raises ConfigError if it exists but is not readable, because a change would overwrite it."""
        try:
            data = files.read_bytes(self._path)
        except FileNotFoundError:
            return
        except OSError as e:
            raise ConfigError(f"can't read the KV configuration {self._path}: {e.strerror or e}") from e
        try:
            self._tables = decode_json(data, _File).config_table
        except BodyError as e:
            raise ConfigError(f"the KV configuration {self._path} is damaged, repair or remove it: {e}") from e

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Sets one value. Raises ConfigError and changes nothing if the file is not writable or would be too large."""
        await self._changes.make(
            lambda: self._content({**self._tables, namespace: {**self._tables.get(namespace, {}), key: value}})
        )

    async def delete(self, namespace: str, key: str) -> None:
        """Removes one value, if it exists. The namespace remains. Raises ConfigError as `put` does."""

        def without() -> NewContent:
            table = dict(self._tables.get(namespace, {}))
            table.pop(key, None)
            return self._content({**self._tables, namespace: table})

        if self.get(namespace, key) is not None:
            await self._changes.make(without)

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Returns all values of a namespace, or None if it was never used."""
        return self._tables.get(namespace)

    def entries(self) -> Iterator[tuple[str, str, str]]:
        """Yields (namespace, key, value) for each value."""
        for namespace, table in self._tables.items():
            for key, value in table.items():
                yield namespace, key, value

    def _content(self, tables: dict[str, dict[str, str]]) -> NewContent:
        data = encode_json(_File(tables))
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"the KV configuration {self._path} would grow over {MAX_FILE_BYTES} bytes")

        def apply() -> None:
            self._tables = tables

        return NewContent(self._path, data, apply)
