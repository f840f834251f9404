"""How far each group has consumed each queue, and consumerOffset.json (`ConsumerOffsetManager`)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Set
from pathlib import Path

import msgspec

from gantrymq.broker.part import Part
from gantrymq.broker.saving import Saving, in_pieces
from gantrymq.protocol.bodies.topic_config import DataVersion
from gantrymq.protocol.fastjson import encode_json

_SEPARATOR = "@"


class _OffsetFile(msgspec.Struct, rename="camel"):
    #: "topic@group" -> queue id -> next queue offset to consume.
    offset_table: dict[str, dict[int, int]] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class ConsumerOffsets(Part):
    """Offsets in memory, written every flushConsumerOffsetInterval; who sets them from outside waits for `written`."""

    def __init__(self, path: Path, *, saving: Saving) -> None:
        self._file = saving.file(path, self._encode_file)
        self._table = _OffsetFile()

    def load(self) -> None:
        self._table = self._file.load(_OffsetFile) or self._table

    def written(self) -> Awaitable[None]:
        """Done when all changes are on the disk. Raises StoreError."""
        return self._file.written()

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The next offset to consume, None if the group never committed one."""
        queues = self._table.offset_table.get(f"{topic}{_SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self._table.offset_table.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = offset
        self._file.changed()

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """The group's offsets in a topic by queue id."""
        return dict(self._table.offset_table.get(f"{topic}{_SEPARATOR}{group}", {}))

    def topics_of(self, group: str) -> set[str]:
        """The topics in which a group has offsets."""
        return {topic for topic, name in self._keys() if name == group}

    def topics_by_group(self) -> dict[str, list[str]]:
        """Of every group the topics in which it has offsets."""
        topics: dict[str, list[str]] = {}
        for topic, group in self._keys():
            topics.setdefault(group, []).append(topic)
        return topics

    def groups_of(self, topic: str) -> set[str]:
        """The groups that have offsets in a topic."""
        return {group for name, group in self._keys() if name == topic}

    def _keys(self) -> Iterator[tuple[str, str]]:
        """(topic, group) of all that is known; no name has the separator in it."""
        for key in self._table.offset_table:
            topic, _, group = key.partition(_SEPARATOR)
            yield topic, group

    def clone(self, source: str, destination: str, topic: str) -> None:
        """Makes a group's offsets in a topic those of another group, if that one has some."""
        queues = self._table.offset_table.get(f"{topic}{_SEPARATOR}{source}")
        if queues is not None:
            self._table.offset_table[f"{topic}{_SEPARATOR}{destination}"] = dict(queues)
            self._file.changed()

    def remove_group(self, group: str) -> None:
        """Forgets how far a group has got in all topics."""
        for topic in self.topics_of(group):
            del self._table.offset_table[f"{topic}{_SEPARATOR}{group}"]
            self._file.changed()

    def remove_topics(self, topics: Set[str]) -> None:
        """Forgets every group's offsets of these topics."""
        table = self._table.offset_table
        for key in [key for key in table if key.partition(_SEPARATOR)[0] in topics]:
            del table[key]
            self._file.changed()

    def encode(self) -> bytes:
        """The whole table, as in consumerOffset.json."""
        return encode_json(self._table)

    def _encode_file(self) -> Iterator[bytes]:
        self._table.data_version.advance()
        return in_pieces(self._table)
