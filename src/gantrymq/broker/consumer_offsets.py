"""How far each group has consumed each queue, and consumerOffset.json (`ConsumerOffsetManager`).

Tables of Java brokers contain negative offsets. Such an offset means that the group has never consumed the queue, so it
is left out of this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Set
from pathlib import Path

import msgspec

from gantrymq.broker.part import Part
from gantrymq.broker.saving import Saving, in_pieces
from gantrymq.protocol.bodies.topic_config import DataVersion

_SEPARATOR = "@"


class OffsetTable(msgspec.Struct, rename="camel"):
    """The content of consumerOffset.json, and the answer to GET_ALL_CONSUMER_OFFSET."""

    #: "topic@group" -> queue id -> next queue offset to consume.
    offset_table: dict[str, dict[int, int]] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class ConsumerOffsets(Part):
    """Offsets in memory, written every flushConsumerOffsetInterval; who sets them from outside waits for `written`."""

    def __init__(self, path: Path, *, saving: Saving) -> None:
        self._file = saving.file(path, self._encode_file, follows_log=True)
        self._table = OffsetTable()
        #: The same names by topic and by group: nobody is looked for among all.
        self._groups: dict[str, set[str]] = {}
        self._topics: dict[str, set[str]] = {}

    def load(self) -> None:
        self._table = self._file.load(OffsetTable) or self._table
        self._table.offset_table = _without_negative(self._table.offset_table)
        for key in self._table.offset_table:
            topic, _, group = key.partition(_SEPARATOR)
            self._added(topic, group)

    def written(self) -> Awaitable[None]:
        """Done when all changes are on the disk. Raises StoreError."""
        return self._file.written()

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The next offset to consume, None if the group never committed one."""
        queues = self._table.offset_table.get(f"{topic}{_SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = f"{topic}{_SEPARATOR}{group}"
        queues = self._table.offset_table.get(key)
        if queues is None:
            queues = self._table.offset_table[key] = {}
            self._added(topic, group)
        queues[queue_id] = offset
        self._file.changed()

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """The group's offsets in a topic by queue id."""
        return dict(self._table.offset_table.get(f"{topic}{_SEPARATOR}{group}", {}))

    def topics_of(self, group: str) -> set[str]:
        """The topics in which a group has offsets."""
        return set(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        """The groups that have offsets in a topic."""
        return set(self._groups.get(topic, ()))

    def clone(self, source: str, destination: str, topic: str) -> None:
        """Makes a group's offsets in a topic those of another group, if that one has some."""
        queues = self._table.offset_table.get(f"{topic}{_SEPARATOR}{source}")
        if queues is not None:
            self._table.offset_table[f"{topic}{_SEPARATOR}{destination}"] = dict(queues)
            self._added(topic, destination)
            self._file.changed()

    def copy(self, master: OffsetTable) -> None:
        """Takes the offsets of the master's table. What it doesn't know stays: it was away when that was committed."""
        table, is_changed = self._table.offset_table, False
        for key, queues in _without_negative(master.offset_table).items():
            if table.get(key) != queues:
                table[key] = queues
                topic, _, group = key.partition(_SEPARATOR)
                self._added(topic, group)
                is_changed = True
        if is_changed:
            self._file.changed()

    def advance(self, other: OffsetTable) -> None:
        """Takes the offsets of another's table that are further: it stood in for this broker."""
        for key, queues in _without_negative(other.offset_table).items():
            topic, _, group = key.partition(_SEPARATOR)
            for queue_id, offset in queues.items():
                own = self.query(group, topic, queue_id)
                if own is None or offset > own:
                    self.commit(group, topic, queue_id, offset)

    def remove_group(self, group: str) -> None:
        """Forgets how far a group has got in all topics."""
        for topic in self.topics_of(group):
            self._remove(topic, group)

    def remove_topics(self, topics: Set[str]) -> None:
        """Forgets every group's offsets of these topics."""
        for topic in topics:
            for group in self.groups_of(topic):
                self._remove(topic, group)

    def _added(self, topic: str, group: str) -> None:
        self._groups.setdefault(topic, set()).add(group)
        self._topics.setdefault(group, set()).add(topic)

    def _remove(self, topic: str, group: str) -> None:
        del self._table.offset_table[f"{topic}{_SEPARATOR}{group}"]
        for names, key, name in ((self._groups, topic, group), (self._topics, group, topic)):
            names[key].discard(name)
            if not names[key]:
                del names[key]
        self._file.changed()

    def in_pieces(self) -> Iterator[bytes]:
        """The whole table, as in consumerOffset.json."""
        return in_pieces(self._table)

    def _encode_file(self) -> Iterator[bytes]:
        self._table.data_version.advance()
        return in_pieces(self._table)


def _without_negative(table: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    return {key: {id_: offset for id_, offset in queues.items() if offset >= 0} for key, queues in table.items()}
