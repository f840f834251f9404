"""How far each group has consumed each queue, and consumerOffset.json (`ConsumerOffsetManager`)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.topic_config import DataVersion
from gantrymq.store.json_config import JsonConfigFile

_SEPARATOR = "@"


class _OffsetFile(msgspec.Struct, rename="camel"):
    #: "topic@group" -> queue id -> next queue offset to consume.
    offset_table: dict[str, dict[int, int]] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class ConsumerOffsets:
    """Offsets in memory; `save` writes them when they changed since the last time."""

    def __init__(self, path: Path) -> None:
        self._file = JsonConfigFile(path)
        self._table = _OffsetFile()
        self._changed = False

    def load(self) -> None:
        data = self._file.load(lambda content: decode_json(content, _OffsetFile))
        if data is not None:
            self._table = decode_json(data, _OffsetFile)

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The next offset to consume, None if the group never committed one."""
        queues = self._table.offset_table.get(f"{topic}{_SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self._table.offset_table.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = offset
        self._changed = True

    def remove_topic(self, topic: str) -> None:
        """Forgets every group's offsets of a topic."""
        prefix = topic + _SEPARATOR
        for key in [key for key in self._table.offset_table if key.startswith(prefix)]:
            del self._table.offset_table[key]
            self._changed = True

    def save(self) -> None:
        if self._changed:
            self._changed = False
            self._table.data_version.advance()
            self._file.save(encode_json(self._table))
