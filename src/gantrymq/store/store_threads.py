"""The threads of an open store: two that flush, one that makes room."""

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
from gantrymq.store.room_maker import RoomMaker
from gantrymq.store.trash import Trash


class StoreThreads:
    """`jobs` gets their reports; `checkpoint` is that of the store's directory."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        dirty: deque[ConsumeQueue],
        index: MessageIndex,
        trash: Trash,
        checkpoint: Checkpoint,
        rooms: RoomMaker,
        jobs: Jobs,
    ) -> None:
        self._config = config
        self._log = log
        self._rooms = rooms
        self.log_flusher = LogFlusher(
            log, config.flush_interval_commit_log_ms / 1000, jobs.report("flush the commit log")
        )
        self.queue_flusher = QueueFlusher(
            log,
            dirty,
            index,
            trash,
            checkpoint,
            config.store_path_root_dir / "checkpoint",
            config.flush_interval_consume_queue_ms / 1000,
            config.flush_consume_queue_least_pages,
            config.flush_consume_queue_thorough_interval_ms / 1000,
            jobs.report("flush the consume queues"),
        )

    def start(self) -> None:
        """Starts them; again, when they were stopped."""
        self.log_flusher.start()
        self.queue_flusher.start()
        self._rooms.start()
        self._log.make_soon()

    def stop(self) -> None:
        """Ends them, after a last round of each that flushes. Once more does no harm."""
        with ExitStack() as stack:
            stack.callback(self.queue_flusher.stop)
            stack.callback(self.log_flusher.stop)
            stack.callback(self._rooms.stop)

    def config_changed(self) -> None:
        """Takes what they need from the configuration again."""
        config = self._config
        self.log_flusher.interval_s = config.flush_interval_commit_log_ms / 1000
        self.queue_flusher.interval_s = config.flush_interval_consume_queue_ms / 1000
        self.queue_flusher.least_pages = config.flush_consume_queue_least_pages
        self.queue_flusher.thorough_interval_s = config.flush_consume_queue_thorough_interval_ms / 1000
        self.log_flusher.wake()
        self.queue_flusher.wake()

    @contextmanager
    def alone(self, end: int) -> Iterator[None]:
        """Within it no thread touches the files, and the checkpoint says nothing of what is behind a physical offset.

        All is flushed before, which takes its time: for what is rare. Raises StoreError, OSError.
        """
        self.stop()
        try:
            timestamp = max(self._log.store_time(end - end % self._log.file_size), 0)
            self.queue_flusher.claim_no_more(end, timestamp)
            yield
            self.queue_flusher.claim_no_more(end, timestamp)
        finally:
            self.start()
