"""The threads that bring files to the disk (`CommitLog.GroupCommitService`, `FlushConsumeQueueService`).

They only make system calls, which run without the GIL; two, so that a log flush that producers wait for needn't wait
for the queues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gantrymq.errors import StoreError
from gantrymq.store.checkpoint import Checkpoint, save_checkpoint
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_index import MessageIndex

log = logging.getLogger(__name__)

FlushCallback = Callable[[Exception | None], None]
_PAGE = 4096
#: After a thorough round of so many seconds the next one waits that many times as long, unless the configured interval
#: is shorter: few queues are flushed every second, so that a crash leaves little to read again.
_THOROUGH_PAUSE = 20


class LogFlusher(threading.Thread):
    """Flushes the commit log every `interval_s`, and at once when somebody waits for it."""

    def __init__(self, commit_log: CommitLog, interval_s: float) -> None:
        super().__init__(name="gantry-log-flusher", daemon=True)
        self._log = commit_log
        self._interval_s = interval_s
        self._waiting: deque[FlushCallback] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._failed = False

    def when_flushed(self, callback: FlushCallback) -> None:
        """Calls back, in this thread, when all that the log has now is on the disk, or can't be brought there."""
        self._waiting.append(callback)
        if not self._wake.is_set():
            self._wake.set()

    def run(self) -> None:
        while not self._stopping:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            self._flush()
            self._prepare()
        self._flush()

    def stop(self) -> None:
        """Flushes a last time, calls back who waits, and ends the thread."""
        self._stopping = True
        self._wake.set()
        self.join()

    def _flush(self) -> None:
        # Whoever comes from now on waits for the next round: this one may have passed its record.
        callbacks = [self._waiting.popleft() for _ in range(len(self._waiting))]
        error: StoreError | None = None
        try:
            self._log.flush()
        except StoreError as e:
            error = e
            if not self._failed:
                self._failed = True
                log.error("%s", e)
        for callback in callbacks:
            try:
                callback(error)
            except Exception:
                log.exception("a flush callback failed")

    def _prepare(self) -> None:
        try:
            self._log.prepare()
        except StoreError as e:
            # The writer will raise it when it gets there.
            log.warning("%s", e)


class QueueFlusher(threading.Thread):
    """Flushes the consume queues that were written to and full index files, and keeps the checkpoint.

    `dirty` gets a queue when it is written to for the first time since the last flush.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        dirty: deque[ConsumeQueue],
        index: MessageIndex,
        checkpoint: Checkpoint,
        checkpoint_path: Path,
        interval_s: float,
        least_pages: int,
        thorough_interval_s: float,
    ) -> None:
        super().__init__(name="gantry-queue-flusher", daemon=True)
        self._log = commit_log
        self._dirty = dirty
        self._index = index
        self._checkpoint = checkpoint
        self._checkpoint_path = checkpoint_path
        self._interval_s = interval_s
        self._least_bytes = least_pages * _PAGE
        self._thorough_interval_s = thorough_interval_s
        self._wake = threading.Event()
        self._stopping = False
        self._thorough = False

    def flush_soon(self) -> None:
        """Asks for a thorough round."""
        self._thorough = True
        self._wake.set()

    def run(self) -> None:
        next_thorough = 0.0
        while not self._stopping:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            begin = time.monotonic()
            thorough = self._thorough or begin >= next_thorough
            self._thorough = False
            try:
                self.flush(thorough=thorough)
            except OSError as e:
                log.error("can't flush the consume queues, trying again in %g s: %s", self._interval_s, e)
            if thorough:
                end = time.monotonic()
                next_thorough = end + min(self._thorough_interval_s, (end - begin) * _THOROUGH_PAUSE)

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        self.join()

    def flush(self, *, thorough: bool) -> None:
        """One round. A thorough one flushes every queue, then writes the checkpoint. Raises OSError."""
        # Whatever record is on the disk by now has its unit in a queue, flushed or dirty.
        timestamp = self._log.flushed_timestamp
        flushed = self._log.flushed
        for _ in range(len(self._dirty)):
            queue = self._dirty.popleft()
            if thorough or queue.unflushed >= self._least_bytes:
                queue.dirty = False
                try:
                    queue.flush()
                except OSError:
                    queue.dirty = True
                    self._dirty.append(queue)
                    raise
            else:
                self._dirty.append(queue)
        self._index.flush()
        indexed = self._index.flushed_timestamp
        if thorough and (
            flushed > self._checkpoint.confirm_phy_offset or indexed != self._checkpoint.index_msg_timestamp
        ):
            self._checkpoint.physic_msg_timestamp = timestamp
            self._checkpoint.logics_msg_timestamp = timestamp
            self._checkpoint.index_msg_timestamp = indexed
            self._checkpoint.confirm_phy_offset = flushed
            save_checkpoint(self._checkpoint_path, self._checkpoint)
