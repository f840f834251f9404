"""Deletes what `retention` says, in slices: log files, then what belongs to them in queues and index."""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic

from gantrymq.errors import StoreError, StoreFull
from gantrymq.protocol.topic_name import is_system_topic
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import StoreConfig
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_index import MessageIndex
from gantrymq.store.queue_table import QueueTable
from gantrymq.store.retention import Retention, used_percent

log = logging.getLogger(__name__)

#: For so long a round looks after queues.
_SLICE_S = 0.02


class Cleaner:
    """`stale` are the queues that don't know yet that the log begins later than it did; `refresh` tells one."""

    def __init__(self, config: StoreConfig, commit_log: CommitLog, queues: QueueTable, index: MessageIndex) -> None:
        self.retention = Retention(config)
        self.stale: deque[ConsumeQueue] = deque()
        self._config = config
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._is_paused = False

    def clean(self, now_ms: int) -> bool:
        """See `MessageStore.clean`."""
        config = self._config
        try:
            used = max(used_percent(config.commit_log_directory), used_percent(config.consume_queue_directory))
        except OSError as e:
            raise StoreError(f"can't tell how full the disk is: {e}") from e
        cleaning = self.retention.plan(now_ms, used)
        self._pause(used if cleaning.is_full else None)
        deleted = self._log.delete_first(cleaning.before_ms)
        if deleted:
            self._index.delete_before(self._log.min_offset)
            self.stale = deque(self._queues)
        else:
            self.retention.is_asked = False
        deadline = monotonic() + _SLICE_S
        while self.stale and monotonic() < deadline:
            self.refresh(self.stale.popleft())
        return deleted or bool(self.stale)

    def refresh(self, queue: ConsumeQueue) -> None:
        """Brings a queue's min_offset up to date."""
        if queue.exists:
            queue.log_moved(self._log.min_offset)

    def delete_expired_queues(self) -> int:
        """See `MessageStore.delete_expired_queues`."""
        expired = []
        for queue in self._queues:
            last = queue.peek(queue.max_offset - 1)
            if last is not None and last[0] < self._log.min_offset and not is_system_topic(queue.topic):
                expired.append(queue)
        for queue in expired:
            log.info("deleting %r: it has expired", queue)
            self._queues.delete(queue)
        return len(expired)

    def _pause(self, used: float | None) -> None:
        if (used is not None) == self._is_paused:
            return
        self._is_paused = used is not None
        if used is None:
            log.info("the disk has room again: messages are taken")
            self._log.pause(None)
        else:
            limit = self._config.disk_space_warning_level_ratio
            text = f"the disk is used to {used:.1f} %, diskSpaceWarningLevelRatio is {limit}: no message is taken"
            log.error("%s", text)
            self._log.pause(StoreFull(text))
