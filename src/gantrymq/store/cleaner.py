"""Deletes expired files (see `retention`) in short rounds: log files first, then their entries in queues and index."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from gantrymq.errors import StoreError, StoreFull
from gantrymq.protocol.topic_name import is_system_topic
from gantrymq.store import retention
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import StoreConfig
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_index import MessageIndex
from gantrymq.store.queue_table import QueueTable
from gantrymq.store.refusal import Refusal
from gantrymq.store.retention import Retention
from gantrymq.store.trash import Trash
from gantrymq.system.clock import monotonic

log = logging.getLogger(__name__)

#: Time per round to update queues, in seconds.
_SLICE_S = 0.02
#: Maximum number of queues that one step checks and deletes. A step takes about 1 ms if each queue has a file to open.
_LOOKED_AT = 20


class LowerTier(Protocol):
    """Copies of log files at another place (`gantrymq.tier`)."""

    def may_delete(self, begin: int, end: int, is_full: bool) -> bool:
        """Returns whether the log file from `begin` to before `end` may be deleted, because a copy of it exists.

        With `is_full`, messages are rejected until the disk has space.
        """

    def has_messages_of(self, queue: ConsumeQueue) -> bool:
        """Returns whether messages of a queue are there that are no longer in the log."""


class Cleaner:
    """Deletes expired files and queues of a store.

    `stale` are the queues that have not been updated since log files were deleted. `refresh` updates one of them.
    """

    def __init__(
        self,
        config: StoreConfig,
        commit_log: CommitLog,
        queues: QueueTable,
        index: MessageIndex,
        trash: Trash,
        needed_from: Callable[[bool], int],
        lower_tier: LowerTier | None = None,
    ) -> None:
        """Creates a cleaner. Log files from the physical offset `needed_from(is_full)` on are never deleted.

        `is_full` is whether the disk is so full that messages are rejected. Log files that are not in `lower_tier` yet
        and queues that it needs are not deleted, either.
        """
        self.retention = Retention(config)
        self.stale: deque[ConsumeQueue] = deque()
        self._config = config
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._trash = trash
        self._compaction_needs = needed_from
        self._lower_tier = lower_tier
        self._is_paused = False

    def clean(self, now_ms: int) -> bool:
        """Runs one round; see `MessageStore.clean`."""
        # A failed step must not prevent the others.
        problems: list[Exception] = []
        goes_on = False
        try:
            goes_on = self._delete_log(now_ms)
        except (OSError, StoreError) as e:
            problems.append(e)
        deadline = monotonic() + _SLICE_S
        for _ in range(len(self.stale)):
            if monotonic() >= deadline:
                break
            queue = self.stale.popleft()
            try:
                self.refresh(queue)
            except (OSError, StoreError) as e:
                self.stale.append(queue)
                problems.append(e)
        if problems:
            raise StoreError(f"can't delete all that has expired: {problems[0]}") from problems[0]
        return goes_on or bool(self.stale) or bool(self._trash)

    def _delete_log(self, now_ms: int) -> bool:
        """Deletes the oldest log file if it expired. Returns whether more may follow. Raises OSError or StoreError."""
        config = self._config
        used = max(self._log.paths.used_percent(), retention.used_percent(config.consume_queue_directory))
        cleaning = self.retention.plan(now_ms, used)
        self._pause(used if cleaning.is_full else None)
        if self._trash:
            # The disk usage decreases only when these files have been deleted.
            if self._trash.problem:
                raise StoreError(self._trash.problem)
            # This also counts files that the flusher's thread deletes before this round ends.
            return True
        path = self._log.forget_first(cleaning.before_ms, lambda: self._needed_from(cleaning.is_full))
        if path is None:
            self.retention.is_asked = False
            return False
        self._trash.add(path)
        for index_path in self._index.forget_before(self._log.min_offset):
            self._trash.add(index_path)
        self.stale = deque(self._queues)
        return True

    def _needed_from(self, is_full: bool) -> int:
        """Returns the physical offset from which the log is needed, so that its first file may stay."""
        needed, begin = self._compaction_needs(is_full), self._log.min_offset
        end = begin + self._log.file_size
        if self._lower_tier is not None and needed >= end and not self._lower_tier.may_delete(begin, end, is_full):
            return begin
        return needed

    def refresh(self, queue: ConsumeQueue) -> None:
        """Updates `min_offset` of a queue. Raises StoreError."""
        if queue.exists:
            queue.log_moved(self._log.min_offset)

    def delete_expired_queues(self) -> Iterator[int]:
        """Deletes expired queues in steps; see `MessageStore.delete_expired_queues`."""
        queues = iter(self._queues)
        while some := list(islice(queues, _LOOKED_AT)):
            expired = [queue for queue in some if self._has_expired(queue)]
            if expired:
                log.info("deleting %d queues that have expired, %r among them", len(expired), expired[0])
                self._queues.delete(expired)
            yield len(expired)

    def _has_expired(self, queue: ConsumeQueue) -> bool:
        if is_system_topic(queue.topic) or self._queues.find(queue.topic, queue.queue_id) is not queue:
            return False
        if queue.compacted is not None and not queue.compacted.is_empty:
            return False
        if self._lower_tier is not None and self._lower_tier.has_messages_of(queue):
            return False
        last = queue.peek(queue.max_offset - 1)
        return last is not None and last[0] < self._log.min_offset

    def _pause(self, used: float | None) -> None:
        if (used is not None) == self._is_paused:
            return
        self._is_paused = used is not None
        if used is None:
            log.info("the disk has free space again: messages are accepted")
            self._log.refuse("cleaner", None)
        else:
            limit = self._config.disk_space_warning_level_ratio
            text = f"the disk is {used:.1f} % full, diskSpaceWarningLevelRatio is {limit}: messages are rejected"
            log.error("%s", text)
            self._log.refuse("cleaner", Refusal(text, StoreFull))
