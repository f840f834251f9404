"""The table of deduplication ids: where the log has the first message with each id."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

import msgspec

from gantrymq.protocol.fastjson import encode_json

#: Bits of a time in ms. One integer with offset and time takes a third of the memory of a tuple.
_TIME_BITS = 44
_TIME_MASK = (1 << _TIME_BITS) - 1
#: Ids from more than this time in the future were stored while the clock was ahead, in ms.
_CLOCK_TOLERANCE_MS = 10_000
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


class _TopicIds:
    """The ids of one topic, in the order in which they were added.

    Attributes:
        packed: Id -> offset and time of its first message, in one integer.
    """

    __slots__ = ("_order", "_values", "packed")

    def __init__(self) -> None:
        self.packed: dict[bytes, int] = {}
        #: The ids and their values in `packed`, the oldest first. A replaced value stays here until it is the oldest.
        #: To find the first key of a dictionary takes longer with each key removed before it. Two deques of references
        #: need 16 bytes for an id, an OrderedDict 80.
        self._order = deque[bytes]()
        self._values = deque[int]()

    def put(self, message_id: bytes, packed: int) -> None:
        self.packed.pop(message_id, None)
        self.packed[message_id] = packed
        self._order.append(message_id)
        self._values.append(packed)

    def oldest(self) -> int | None:
        """Returns the value of the oldest id; None if there are no ids."""
        order, values, packed = self._order, self._values, self.packed
        while order:
            if packed.get(order[0]) == values[0]:
                return values[0]
            order.popleft()
            values.popleft()
        return None

    def drop_oldest(self) -> bytes:
        """Removes the id whose value `oldest` has just returned, and returns it."""
        message_id = self._order.popleft()
        self._values.popleft()
        del self.packed[message_id]
        return message_id


class DeduplicationIds:
    """The ids of all topics, for the log up to the physical offset `position`."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._topics: dict[str, _TopicIds] = {}
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
        return [(topic, len(ids.packed)) for topic, ids in self._topics.items()]

    def get(self, topic: str, message_id: bytes) -> FirstMessage | None:
        """Returns the first message with an id, even if the window has ended."""
        ids = self._topics.get(topic)
        packed = ids.packed.get(message_id) if ids is not None else None
        return None if packed is None else FirstMessage(packed >> _TIME_BITS, packed & _TIME_MASK)

    def put(self, topic: str, message_id: bytes, first: FirstMessage) -> None:
        """Adds an id, or replaces its message."""
        ids = self._topics.get(topic)
        if ids is None:
            ids = self._topics[topic] = _TopicIds()
        self._count -= len(ids.packed)
        ids.put(message_id, first.physical_offset << _TIME_BITS | min(first.at_ms, _TIME_MASK))
        self._count += len(ids.packed)

    def forget(self, topic: str, now: int, window_ms: int, most: int) -> int:
        """Removes the oldest ids of a topic while their windows have ended at the time `now`.

        Handles at most `most` ids, and returns their number. An id from more than _CLOCK_TOLERANCE_MS after `now` was
        stored while the clock was ahead. It would keep its place before ids with earlier times, so its window begins
        again at `now`, and it becomes the newest one.
        """
        ids = self._topics.get(topic)
        if ids is None:
            return 0
        handled, count, now = 0, len(ids.packed), max(now, 0)
        while handled < most and (oldest := ids.oldest()) is not None:
            at_ms = oldest & _TIME_MASK
            if at_ms > now + _CLOCK_TOLERANCE_MS:
                ids.put(ids.drop_oldest(), oldest - at_ms + now)
            elif at_ms < now - window_ms:
                ids.drop_oldest()
            else:
                break
            handled += 1
        self._count -= count - len(ids.packed)
        if not ids.packed:
            del self._topics[topic]
        return handled

    def limit(self, most: int) -> None:
        """Removes the oldest ids of the topics with the most ids until at most `most` ids are left."""
        largest = [(-len(ids.packed), topic) for topic, ids in self._topics.items()] if self._count > most else []
        heapify(largest)
        while self._count > most:
            count, topic = largest[0]
            ids = self._topics[topic]
            ids.oldest()
            ids.drop_oldest()
            self._count -= 1
            if ids.packed:
                heapreplace(largest, (count + 1, topic))
            else:
                heappop(largest)
                del self._topics[topic]

    def drop(self, topic: str) -> None:
        """Removes all ids of a topic."""
        ids = self._topics.pop(topic, None)
        if ids is not None:
            self._count -= len(ids.packed)

    def encode(self) -> Iterator[bytes]:
        """Encodes the content of the file in pieces. Ids that are added after the call are not included."""
        return _encoded(self.position, [(topic, ids.packed, list(ids.packed)) for topic, ids in self._topics.items()])


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
