"""All consume queues of a store, by topic and queue id (`store/queue/ConsumeQueueStore`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from math import inf
from pathlib import Path

from gantrymq.errors import StoreError
from gantrymq.store.consume_queue import ConsumeQueue, LoadedQueue
from gantrymq.store.preallocation import Preallocation
from gantrymq.store.queue_mappings import QueueMappings
from gantrymq.store.trash import Trash
from gantrymq.system import clock, files

#: A topic is also a directory name, which can have this many bytes.
_MAX_TOPIC_BYTES = 255
#: Time after the start in which consumers with lost messages pull again, in seconds.
_RECOVERED_S = 120.0


class QueueTable:
    """The queues under `directory`. `dirty` has the queues that were written to since their last flush.

    `on_deleted` is called with queues before their files are deleted. If a crash follows, the queues remain, and
    consumers still see their messages.
    """

    def __init__(
        self,
        directory: Path,
        file_size: int,
        preallocation: Preallocation,
        trash: Trash,
        on_deleted: Callable[[Collection[ConsumeQueue]], None],
    ) -> None:
        self.dirty: deque[ConsumeQueue] = deque()
        #: Whether the directory existed at load time. If so, a queue without files was deleted, not lost with all
        #: others.
        self.was_there = False
        #: Until this time (monotonic, s), created queues have the `recovered_end` 0, because the crash before the start
        #: may have destroyed all their messages.
        self._recovered_until = -inf
        self._directory = directory
        self._file_size = file_size
        self._table: dict[str, dict[int, ConsumeQueue]] = {}
        self._mappings = QueueMappings()
        self._preallocation = preallocation
        self._trash = trash
        self._on_deleted = on_deleted

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in list(self._table.values()):
            yield from list(queues.values())

    def __len__(self) -> int:
        return sum(len(queues) for queues in self._table.values())

    def load(self, *, is_closed: bool) -> dict[ConsumeQueue, LoadedQueue]:
        """Finds the queues on disk, and returns what it has read of each one; see `ConsumeQueue.load`."""
        loaded: dict[ConsumeQueue, LoadedQueue] = {}
        self.was_there = files.is_directory(self._directory)
        for topic, queue_id in queues_in(self._directory):
            queue = self.get_or_create(topic, queue_id)
            loaded[queue] = queue.load(is_closed=is_closed)
        return loaded

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Returns the queue; None if it doesn't exist."""
        queues = self._table.get(topic)
        return None if queues is None else queues.get(queue_id)

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Returns or creates the queue; the first message creates its files. Raises StoreError if it is invalid."""
        queues = self._table.get(topic)
        if queues is not None and (queue := queues.get(queue_id)) is not None:
            return queue
        if "/" in topic or "\0" in topic or topic in ("", ".", "..") or len(topic.encode()) > _MAX_TOPIC_BYTES:
            raise StoreError(f"{topic[:300]!r} can't be a topic's name: it is also a directory's")
        if not 0 <= queue_id < 1 << 31:
            raise StoreError(f"{queue_id} can't be a queue's id")
        path = f"{self._directory}/{topic}/{queue_id}"
        queue = ConsumeQueue(topic, queue_id, path, self._file_size, self._mappings, self._preallocation)
        if clock.monotonic() < self._recovered_until:
            queue.recovered_end = 0
        self._table.setdefault(topic, {})[queue_id] = queue
        return queue

    def mark_recovered(self) -> None:
        """Sets the `recovered_end` of all queues to their ends. Queues that are created in the next minutes get 0."""
        self._recovered_until = clock.monotonic() + _RECOVERED_S
        for queue in self:
            queue.recovered_end = queue.max_offset

    def forget_recovery(self) -> None:
        """Removes `recovered_end` from all queues, because the lost records were received again."""
        self._recovered_until = -inf
        for queue in self:
            queue.recovered_end = None

    def topics(self) -> dict[str, list[int]]:
        """Returns {topic: queue ids} of the queues that have files."""
        found = {
            topic: sorted(id_ for id_, queue in queues.items() if queue.exists) for topic, queues in self._table.items()
        }
        return {topic: ids for topic, ids in found.items() if ids}

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Returns the queues of a topic, including queues without files."""
        return list(self._table.get(topic, {}).values())

    def message_totals(self) -> Iterator[tuple[str, int]]:
        """Yields each topic that ever had a message, and the number of its messages."""
        for topic in list(self._table):
            # The topic can be deleted between two steps.
            if total := sum(queue.max_offset for queue in self.of_topic(topic)):
                yield topic, total

    def queue_ids(self, topic: str) -> list[int]:
        """Returns the queue ids of a topic, including queues without files."""
        return list(self._table.get(topic, ()))

    def mark_dirty(self, queue: ConsumeQueue) -> None:
        """Adds a queue to `dirty`, unless it is in there already."""
        if not queue.dirty:
            queue.dirty = True
            self.dirty.append(queue)

    def delete_topic(self, topic: str) -> None:
        """Deletes all queues of a topic. Their files are deleted in the background."""
        queues = self._table.pop(topic, None)
        if queues is not None:
            self._on_deleted(queues.values())
            files = [file for queue in queues.values() for file in queue.forget_files()]
            self._trash.add_directory(self._directory / topic, files)

    def delete(self, deleted: Collection[ConsumeQueue]) -> None:
        """Deletes queues. Their files are deleted in the background."""
        by_topic: dict[str, list[ConsumeQueue]] = {}
        for queue in deleted:
            by_topic.setdefault(queue.topic, []).append(queue)
        for topic, queues in by_topic.items():
            if len(queues) == len(self._table[topic]):
                self.delete_topic(topic)
                continue
            self._on_deleted(queues)
            for queue in queues:
                del self._table[topic][queue.queue_id]
                self._trash.add_directory(self._directory / topic / str(queue.queue_id), queue.forget_files())

    def close(self) -> None:
        with ExitStack() as stack:
            for queue in self:
                stack.callback(queue.close, "the store is closed")


def queues_in(path: Path) -> Iterator[tuple[str, int]]:
    """Yields topic and queue id of each directory TOPIC/QUEUE below `path`, which may be missing. Raises StoreError."""
    for topic in _directories(str(path)):
        for queue_id in _directories(f"{path}/{topic}"):
            if queue_id.isascii() and queue_id.isdigit():
                yield topic, int(queue_id)


def _directories(path: str) -> list[str]:
    try:
        with files.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []
    except OSError as e:
        raise StoreError(f"can't read {path}: {e}") from e
