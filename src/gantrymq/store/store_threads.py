"""The threads of an open store: two flush files, one preallocates files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gantrymq.background.jobs import Jobs
from gantrymq.store.checkpoint import Checkpoint
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import StoreConfig
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.flusher import LogFlusher, QueueFlusher
from gantrymq.store.message_index import MessageIndex
from gantrymq.store.preallocation import Preallocation
from gantrymq.store.trash import Trash


class StoreThreads:
    """Runs the threads of one store. `jobs` gets their reports; `checkpoint` is that of the store's directory."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        dirty: deque[ConsumeQueue],
        index: MessageIndex,
        trash: Trash,
        checkpoint: Checkpoint,
        preallocation: Preallocation,
        jobs: Jobs,
    ) -> None:
        self._config = config
        self._log = log
        self._preallocation = preallocation
        self.log_flusher = LogFlusher(
            log, config.flush_interval_commit_log_ms / 1000, jobs.report("flush the commit log")
        )
        self.queue_flusher = QueueFlusher(
            log, dirty, index, trash, checkpoint, config, jobs.report("flush the consume queues")
        )

    def start(self) -> None:
        """Starts the threads; also after `stop`."""
        self.log_flusher.start()
        self.queue_flusher.start()
        self._preallocation.start()
        self._log.make_soon()

    def stop(self) -> None:
        """Stops the threads after a last flush. Further calls have no effect."""
        with ExitStack() as stack:
            stack.callback(self.queue_flusher.stop)
            stack.callback(self.log_flusher.stop)
            stack.callback(self._preallocation.stop)

    def config_changed(self) -> None:
        """Applies changed settings to the threads."""
        config = self._config
        self.log_flusher.interval_s = config.flush_interval_commit_log_ms / 1000
        self.queue_flusher.interval_s = config.flush_interval_consume_queue_ms / 1000
        self.log_flusher.wake()
        self.queue_flusher.wake()

    @contextmanager
    def alone(self, end: int) -> Iterator[None]:
        """Stops the threads within the context, and limits the checkpoint to data before the physical offset `end`.

        All data is flushed first, which is slow, so use this for rare operations only. Raises StoreError or OSError.
        """
        self.stop()
        try:
            timestamp = max(self._log.store_time(end - end % self._log.file_size), 0)
            self.queue_flusher.claim_no_more(end, timestamp)
            yield
            self.queue_flusher.claim_no_more(end, timestamp)
        finally:
            self.start()
