"""The table of deduplication ids: where the log has the first message with each id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from gantrymq.protocol.fastjson import encode_json

#: Bits of a time in ms. One integer with offset and time takes a third of the memory of a tuple.
_TIME_BITS = 44
_TIME_MASK = (1 << _TIME_BITS) - 1
#: Number of ids that are encoded at once.
_ENTRIES = 1000


class FirstMessage(NamedTuple):
    """Physical offset and store time, in ms, of the first message with an id."""

    physical_offset: int
    at_ms: int


class SavedIds(msgspec.Struct):
    """The content of the file. An id is decoded as Latin-1, because clients can send any bytes."""

    position: int = 0
    ids: dict[str, dict[str, FirstMessage]] = {}


class DeduplicationIds:
    """The ids of all topics, for the log up to the physical offset `position`. The oldest ids of a topic are first."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._topics: dict[str, dict[bytes, int]] = {}
        self._count = 0

    @classmethod
    def of(cls, saved: SavedIds) -> DeduplicationIds:
        """Returns the table with the content of the file."""
        table = cls(saved.position)
        for topic, ids in saved.ids.items():
            for message_id, first in ids.items():
                table.put(topic, message_id.encode("latin-1", "replace"), first)
        return table

    def __len__(self) -> int:
        return self._count

    def read_to(self, position: int) -> None:
        """Sets the physical offset up to which the log has been read."""
        self.position = position

    def topics(self) -> list[tuple[str, int]]:
        """Returns the topics with their numbers of ids."""
        return [(topic, len(ids)) for topic, ids in self._topics.items()]

    def get(self, topic: str, message_id: bytes) -> FirstMessage | None:
        """Returns the first message with an id, even if the window has ended."""
        ids = self._topics.get(topic)
        packed = ids.get(message_id) if ids is not None else None
        return None if packed is None else FirstMessage(packed >> _TIME_BITS, packed & _TIME_MASK)

    def put(self, topic: str, message_id: bytes, first: FirstMessage) -> None:
        """Adds an id, or replaces its message."""
        ids = self._topics.setdefault(topic, {})
        self._count -= ids.pop(message_id, None) is not None
        ids[message_id] = first.physical_offset << _TIME_BITS | min(first.at_ms, _TIME_MASK)
        self._count += 1

    def forget(self, topic: str, before_ms: int) -> None:
        """Removes the oldest ids of a topic while they were stored before `before_ms`."""
        ids = self._topics.get(topic, {})
        while ids and ids[oldest := next(iter(ids))] & _TIME_MASK < before_ms:
            del ids[oldest]
            self._count -= 1
        if not ids:
            self._topics.pop(topic, None)

    def drop_oldest(self, topic: str) -> None:
        """Removes the oldest id of a topic. The topic must have ids."""
        ids = self._topics[topic]
        del ids[next(iter(ids))]
        self._count -= 1

    def drop(self, topic: str) -> None:
        """Removes all ids of a topic."""
        self._count -= len(self._topics.pop(topic, ()))

    def encode(self) -> Iterator[bytes]:
        """Encodes the content of the file in pieces. Ids that are added after the call are not included."""
        return _encoded(self.position, [(topic, ids, list(ids)) for topic, ids in self._topics.items()])


def _encoded(position: int, topics: list[tuple[str, dict[bytes, int], list[bytes]]]) -> Iterator[bytes]:
    yield b'{"position":%d,"ids":{' % position
    for number, (topic, ids, keys) in enumerate(topics):
        yield (b"," if number else b"") + encode_json(topic) + b":"
        between = b"{"
        for start in range(0, len(keys), _ENTRIES):
            some = {
                key.decode("latin-1"): (packed >> _TIME_BITS, packed & _TIME_MASK)
                for key in keys[start : start + _ENTRIES]
                if (packed := ids.get(key)) is not None
            }
            if some:
                yield between + encode_json(some)[1:-1]
                between = b","
        yield b"}" if between == b"," else b"{}"
    yield b"}}"
