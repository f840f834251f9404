"""The consumer offsets of all groups, and consumerOffset.json (`ConsumerOffsetManager`).

Tables of Java brokers can contain negative offsets. A negative offset means that the group has never consumed the
queue. Such offsets are omitted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gantrymq.broker.feature import Feature
from gantrymq.broker.tables.discards import Discards
from gantrymq.broker.tables.persistence import TablePersistence, in_pieces
from gantrymq.errors import BodyError, RequestRefused, StoreError
from gantrymq.limits import LIGHT_OFFSETS_BYTES
from gantrymq.protocol.bodies.topic_config import DataVersion
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.lite_topic import lite_topic_of
from gantrymq.protocol.multi_dispatch import LIGHT_QUEUE_ID, is_light_queue, topic_and_group
from gantrymq.system import files

if TYPE_CHECKING:
    from gantrymq.store.light.light_queues import LightQueues

OFFSETS_FILE = "consumerOffset.json"
_SEPARATOR = "@"
#: Length of an encoded offset, with a colon and a comma.
_OFFSET_LENGTH = 21


class OffsetTable(msgspec.Struct, rename="camel"):
    """The content of consumerOffset.json and of the response to GET_ALL_CONSUMER_OFFSET."""

    #: "topic@group" -> queue id -> next queue offset to consume.
    offset_table: dict[str, dict[int, int]] = {}
    #: "topic@group" -> next queue offset, of light groups in light queues. Java has them in lmqConsumerOffset.json.
    lmq_offset_table: dict[str, int] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    discards: Discards = msgspec.field(name="gantryDiscards", default_factory=Discards)


class ConsumerOffsets(Feature):
    """Stores the offsets of all groups in memory and writes them every `flushConsumerOffsetInterval`.

    Administrative requests wait for `written` before the response.

    With `light_queues`, the offsets of light groups in light queues have a table of their own, which takes less memory.
    Without, such groups and topics are ordinary ones. `load` and `copy` move the offsets to the table that is used.
    """

    def __init__(self, path: Path, *, persistence: TablePersistence, light_queues: LightQueues | None = None) -> None:
        self._file = persistence.file(path, self._encode_file, follows_log=True)
        self._light_queues = light_queues
        #: Size of the encoded `lmq_offset_table`, in bytes.
        self._light_bytes = 0
        self._table = OffsetTable()
        #: Indexes: topic -> groups, and group -> topics.
        self._groups: dict[str, set[str]] = {}
        self._topics: dict[str, set[str]] = {}

    def load(self) -> None:
        table = self._file.load(OffsetTable) or self._table
        self._separate(table)
        table.offset_table = _without_negative(table.offset_table)
        self._table = table
        self._light_bytes = sum(map(_light_size, table.lmq_offset_table))
        for key in self._table.offset_table:
            topic, group = topic_and_group(key)
            self._added(topic, group)

    def written(self) -> Awaitable[None]:
        """Completes when all changes are on disk. Raises StoreError."""
        return self._file.written()

    @property
    def size(self) -> int:
        """The number of pairs of a topic and a group that has offsets in it."""
        return len(self._table.offset_table) + len(self._table.lmq_offset_table)

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Returns the next offset to consume; None if the group has committed no offset."""
        key = f"{topic}{_SEPARATOR}{group}"
        if self._light_queues is not None and _is_light(topic, group, queue_id):
            return self._table.lmq_offset_table.get(key)
        queues = self._table.offset_table.get(key)
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Sets the next offset to consume. It may be lower than before.

        If the group and the queue are light, and the queue has never had a message, the offset is not stored. Raises
        RequestRefused if there are too many offsets of light groups.
        """
        key = f"{topic}{_SEPARATOR}{group}"
        if self._light_queues is not None and _is_light(topic, group, queue_id):
            if key in self._table.lmq_offset_table or self._light_queues.queue(topic).max_offset:
                self._commit_light(key, offset)
            return
        queues = self._table.offset_table.get(key)
        if queues is None:
            queues = self._table.offset_table[key] = {}
            self._added(topic, group)
        queues[queue_id] = offset
        self._file.changed()

    def _commit_light(self, key: str, offset: int) -> None:
        # Many light groups would take gigabytes in `offset_table` and its indexes.
        table = self._table.lmq_offset_table
        if key not in table:
            size = _light_size(key)
            if self._light_bytes + size > LIGHT_OFFSETS_BYTES:
                raise RequestRefused(
                    ResponseCode.SYSTEM_BUSY,
                    f"the {len(table)} offsets of light groups take {self._light_bytes} of at most "
                    f"{LIGHT_OFFSETS_BYTES} bytes: delete groups",
                )
            self._light_bytes += size
        table[key] = offset
        self._file.changed()

    def _separate(self, table: OffsetTable) -> None:
        """Moves the offsets of light groups in light queues to the table that this broker uses for them."""
        light = {key: offset for key, offset in table.lmq_offset_table.items() if offset >= 0}
        if self._light_queues is None:
            for key, offset in light.items():
                table.offset_table.setdefault(key, {})[LIGHT_QUEUE_ID] = offset
            light = {}
        else:
            for key in [key for key in table.offset_table if _is_light(*topic_and_group(key), LIGHT_QUEUE_ID)]:
                queues = table.offset_table[key]
                ordinary = queues.pop(LIGHT_QUEUE_ID, -1)
                if ordinary >= 0:
                    light.setdefault(key, ordinary)
                if not queues:
                    del table.offset_table[key]
        table.lmq_offset_table = light

    def reset(self, group: str, topic: str, queue_id: int, offset: int, log_end: int) -> None:
        """Sets an offset by request of an administrator. The group's earlier pops in this queue are discarded.

        `log_end` is the physical offset of the end of the commit log.
        """
        self.commit(group, topic, queue_id, offset)
        self._table.discards.resets.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = log_end

    def is_of_deleted(self, topic: str, log_offset: int) -> bool:
        """Returns True if the topic of a record was deleted later. `log_offset` is the record's physical offset.

        The topic may have been created again.
        """
        return self._table.discards.is_of_deleted(topic, log_offset)

    def topic_begin(self, topic: str) -> int:
        """Returns a physical offset before all records of this topic. Each deletion of the topic increases it."""
        return self._table.discards.deleted_topics.get(topic, 0)

    def is_old_pop(self, group: str, topic: str, queue_id: int, log_offset: int) -> bool:
        """Returns True if the group was reset or the topic deleted after a pop. See `Discards.is_old_pop`."""
        return self._table.discards.is_old_pop(f"{topic}{_SEPARATOR}{group}", topic, queue_id, log_offset)

    def log_is_from(self, begin: int, end: int) -> dict[str, int]:
        """Adapts deletions and resets to the log, from `begin` to `end`. Returns the deleted topics.

        Called when the broker becomes master, because the log may have lost its end.
        """
        if self._table.discards.log_is_from(begin, end):
            self._file.changed()
        return self._table.discards.deleted_topics

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Returns the group's offsets in a topic, by queue id."""
        key = f"{topic}{_SEPARATOR}{group}"
        queues = dict(self._table.offset_table.get(key, {}))
        if key in self._table.lmq_offset_table:
            queues[LIGHT_QUEUE_ID] = self._table.lmq_offset_table[key]
        return queues

    def topics_of(self, group: str) -> set[str]:
        """Returns the topics in which a group has offsets."""
        topics = set(self._topics.get(group, ()))
        if is_light_queue(group):
            # Without an index, because only administrators request it.
            end = _SEPARATOR + group
            topics.update(key.removesuffix(end) for key in self._table.lmq_offset_table if key.endswith(end))
        return topics

    def groups_of(self, topic: str) -> set[str]:
        """Returns the groups that have offsets in a topic."""
        groups = set(self._groups.get(topic, ()))
        if is_light_queue(topic):
            start = topic + _SEPARATOR
            groups.update(key.removeprefix(start) for key in self._table.lmq_offset_table if key.startswith(start))
        return groups

    def clone(self, source: str, destination: str, topic: str) -> None:
        """Copies the offsets of `source` in a topic to `destination`. Changes nothing if `source` has none.

        Raises RequestRefused as `commit` does.
        """
        queues = self.queues(source, topic)
        if f"{topic}{_SEPARATOR}{source}" in self._table.offset_table:
            self._table.offset_table[f"{topic}{_SEPARATOR}{destination}"] = {}
            self._added(topic, destination)
            self._file.changed()
        for queue_id, offset in queues.items():
            self.commit(destination, topic, queue_id, offset)

    def copy(self, master: OffsetTable) -> None:
        """Copies the offsets of the master's table.

        Keeps offsets that the master lacks, because they were committed here while the master was down. Removes offsets
        in topics that the master has deleted since the last copy.
        """
        own, discards = self._table.discards, master.discards
        deleted = {topic for topic, at in discards.deleted_topics.items() if at > own.deleted_topics.get(topic, 0)}
        self._remove_all(deleted)
        self._separate(master)
        table, is_changed = self._table.offset_table, own != discards
        self._table = msgspec.structs.replace(self._table, discards=discards)
        for key, queues in _without_negative(master.offset_table).items():
            if table.get(key) != queues:
                table[key] = queues
                topic, group = topic_and_group(key)
                self._added(topic, group)
                is_changed = True
        light = self._table.lmq_offset_table
        for key, offset in master.lmq_offset_table.items():
            if light.get(key) != offset:
                if key not in light:
                    self._light_bytes += _light_size(key)
                light[key] = offset
                is_changed = True
        if is_changed:
            self._file.changed()

    def advance(self, other: OffsetTable) -> None:
        """Copies the larger offsets of a former acting master's table.

        If `other` lacks the deletion of a topic, its offsets refer to the old topic, and are skipped. Offsets in lite
        topics are skipped, too: an acting master does not serve lite topics, but can have offsets in expired ones.
        """

        def is_old(topic: str) -> bool:
            known = other.discards.deleted_topics.get(topic, 0)
            return known < self.topic_begin(topic) or lite_topic_of(topic) is not None

        self._separate(other)
        for key, queues in _without_negative(other.offset_table).items():
            topic, group = topic_and_group(key)
            if is_old(topic):
                continue
            for queue_id, offset in queues.items():
                own = self.query(group, topic, queue_id)
                if own is None or offset > own:
                    self.commit(group, topic, queue_id, offset)
        for key, offset in other.lmq_offset_table.items():
            topic, _ = topic_and_group(key)
            if is_old(topic):
                continue
            if offset > self._table.lmq_offset_table.get(key, -1):
                self._commit_light(key, offset)

    def remove_group(self, group: str) -> None:
        """Removes a group's offsets in all topics."""
        for topic in self.topics_of(group):
            self._remove(topic, group)

    def topics_deleted(self, topics: Set[str], log_begin: int, log_end: int) -> None:
        """Removes every group's offsets in these topics. All their records in the log are discarded.

        The log reaches from `log_begin` to `log_end`.
        """
        self._remove_all(topics)
        self._table.discards.delete(topics, log_begin, log_end)
        self._file.changed()

    def discard_before(self, topics: Set[str], log_begin: int, log_end: int) -> None:
        """Discards the records of topics before `log_end`, because the topics were deleted there or later.

        The log begins at `log_begin`. The offsets stay.
        """
        self._table.discards.delete(
            {topic for topic in topics if self.topic_begin(topic) < log_end}, log_begin, log_end
        )
        self._file.changed()

    def remove_topics(self, topics: Set[str]) -> None:
        """Removes every group's offsets in topics that do not exist."""
        self._remove_all(topics)

    def remove_queue(self, topic: str, queue_id: int) -> None:
        """Removes every group's offset in a queue, because the queue begins again at offset 0."""
        for group in self.groups_of(topic):
            if self._table.offset_table.get(f"{topic}{_SEPARATOR}{group}", {}).pop(queue_id, None) is not None:
                self._file.changed()

    def _remove_all(self, topics: Set[str]) -> None:
        for topic in topics:
            for group in list(self._groups.get(topic, ())):
                self._remove(topic, group)
        if any(map(is_light_queue, topics)):
            # One search for all topics: it takes milliseconds.
            light = map(topic_and_group, self._table.lmq_offset_table)
            for topic, group in [names for names in light if names[0] in topics]:
                self._remove(topic, group)

    def _added(self, topic: str, group: str) -> None:
        self._groups.setdefault(topic, set()).add(group)
        self._topics.setdefault(group, set()).add(topic)

    def _remove(self, topic: str, group: str) -> None:
        key = f"{topic}{_SEPARATOR}{group}"
        if self._table.lmq_offset_table.pop(key, None) is not None:
            self._light_bytes -= _light_size(key)
            self._table.discards.resets.pop(key, None)
            self._file.changed()
        if key not in self._table.offset_table:
            return
        del self._table.offset_table[key]
        self._table.discards.resets.pop(f"{topic}{_SEPARATOR}{group}", None)
        for names, key, name in ((self._groups, topic, group), (self._topics, group, topic)):
            names[key].discard(name)
            if not names[key]:
                del names[key]
        self._file.changed()

    def in_pieces(self) -> Iterator[bytes]:
        """Encodes the whole table in pieces, in the format of consumerOffset.json."""
        return in_pieces(self._table)

    def _encode_file(self) -> Iterator[bytes]:
        self._table.data_version.advance()
        return in_pieces(self._table)


def read_deleted_topics(directory: Path) -> dict[str, int]:
    """Reads the deleted topics from a broker's configuration directory. The broker may run at the same time.

    Returns the end of the log at the last deletion of each topic. Without a valid file, the result is empty. Raises
    StoreError if the file can't be read.
    """
    # A running broker renames the file to its backup, then the new file to this name. In between, only the backup
    # exists.
    for path in (directory / OFFSETS_FILE, directory / f"{OFFSETS_FILE}.bak"):
        try:
            return decode_json(files.read_bytes(path), OffsetTable).discards.deleted_topics
        except (FileNotFoundError, BodyError):
            continue
        except OSError as e:
            raise StoreError(f"can't read {path}: {e}") from e
    return {}


def _is_light(topic: str, group: str, queue_id: int) -> bool:
    return queue_id == LIGHT_QUEUE_ID and is_light_queue(group) and is_light_queue(topic)


def _light_size(key: str) -> int:
    return len(encode_json(key)) + _OFFSET_LENGTH


def _without_negative(table: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    return {key: {id_: offset for id_, offset in queues.items() if offset >= 0} for key, queues in table.items()}
