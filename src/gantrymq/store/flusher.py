"""The threads that flush files to disk (`CommitLog.GroupCommitService`, `FlushConsumeQueueService`).

They only make system calls, which run without the GIL. There are two threads, so that a log flush for waiting producers
is not delayed by a flush of the queues. If a round fails, the next one still runs; `JobReport` counts the failures.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from gantrymq.background.report import JobReport
from gantrymq.errors import SyncFailed
from gantrymq.store.checkpoint import Checkpoint, save_checkpoint
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import StoreConfig
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_index import MessageIndex
from gantrymq.store.refusal import Refusal
from gantrymq.store.trash import Trash
from gantrymq.system import clock, threads

log = logging.getLogger(__name__)

FlushCallback = Callable[[Exception | None], None]
_PAGE = 4096
#: After a thorough round, the next one waits for this multiple of its duration, but at most for the configured
#: interval. If there are few queues, they are thus flushed every second, and recovery after a crash is short.
_THOROUGH_PAUSE = 20
#: Number of queues that are flushed in parallel when the store is closed. The disk flushes them in the time of one
#: (2,000 queues: 0.4 s instead of 4 to 11 s). At other times, this would delay flushes for producers.
_AT_ONCE_AT_LAST = 16


class Flusher:
    """A thread that runs a round every `interval_s`, after each `wake`, and once more when it is stopped."""

    def __init__(self, name: str, commit_log: CommitLog, interval_s: float, report: JobReport) -> None:
        self._name = name
        self._log = commit_log
        #: Can be changed at any time. `wake` makes the change effective at once.
        self.interval_s = interval_s
        self._report = report
        self._stopping = False
        self._thread = self._worker()

    def _worker(self) -> threads.Worker:
        return threads.Worker(f"gantry-{self._name.replace(' ', '-')}", self._step, self.interval_s, self._died)

    def start(self) -> None:
        """Starts the thread; also after `stop`."""
        if self._stopping:
            self._stopping = False
            self._thread = self._worker()
        self._thread.start()

    def wake(self) -> None:
        """Starts a round at once, or another one after the current round."""
        self._thread.wake()

    def stop(self) -> None:
        """Runs a last round and waits until the thread has ended. Further calls have no effect."""
        self._stopping = True
        self._thread.wake()
        self._thread.join()

    def _round(self) -> None:
        """Runs one round. If it raises an exception, the next round still runs."""
        raise NotImplementedError

    def _step(self) -> float | None:
        is_last = self._stopping
        began = clock.monotonic()
        try:
            self._round()
        except Exception as e:
            now = clock.monotonic()
            self._report.failed(e, now, log, now - began)
        else:
            self._report.succeeded(clock.monotonic() - began, log)
        return None if is_last else self.interval_s

    def _died(self, error: BaseException) -> None:
        log.critical("the thread %s died", self._name, exc_info=error)
        self._report.failed(error, clock.monotonic(), log)
        text = f"the thread {self._name} died of {error!r}: messages are rejected until the broker is restarted"
        self._log.refuse(self._name, Refusal(text))


class LogFlusher(Flusher):
    """Flushes the log, at once if a caller waits. After a failed flush, the log rejects records until one succeeds."""

    def __init__(self, commit_log: CommitLog, interval_s: float, report: JobReport) -> None:
        super().__init__("log flusher", commit_log, interval_s, report)
        self._waiting: deque[FlushCallback] = deque()
        #: The reason why no further round will run.
        self._end: Refusal | None = None

    def when_flushed(self, callback: FlushCallback) -> None:
        """Calls `callback` in the flusher's thread when the log's current content is on disk, or with the error."""
        self._waiting.append(callback)
        self.wake()
        if self._end is not None:
            self._answer(len(self._waiting), self._end)

    def start(self) -> None:
        self._end = None
        super().start()

    def stop(self) -> None:
        """Flushes a last time, calls pending callbacks and ends the thread."""
        super().stop()
        self._end = self._end or Refusal("the store is closed")
        self._answer(len(self._waiting), self._end)

    def _round(self) -> None:
        # Later callbacks wait for the next round. This one may have passed their record.
        count = len(self._waiting)
        try:
            self._log.flush()
        except Exception as e:
            refusal = Refusal(f"the commit log cannot be flushed: messages are rejected until a flush succeeds: {e}")
            if isinstance(e, SyncFailed):
                # After SyncFailed the log itself rejects all records permanently.
                refusal = Refusal(str(e), SyncFailed)
            else:
                self._log.refuse(self._name, refusal)
            self._answer(count, refusal)
            raise
        self._log.refuse(self._name, None)
        self._answer(count, None)
        self._log.sync_new()

    def _answer(self, count: int, refusal: Refusal | None) -> None:
        for _ in range(count):
            try:
                callback = self._waiting.popleft()
            except IndexError:
                return  # If this thread has died, another thread also calls callbacks.
            try:
                # A new exception for each callback. A shared one would collect the tracebacks of all threads.
                callback(None if refusal is None else refusal.exception())
            except Exception:
                log.exception("a flush callback failed")

    def _died(self, error: BaseException) -> None:
        super()._died(error)
        self._end = Refusal(f"the thread {self._name} died of {error!r}: nobody brings the commit log to the disk")
        self._answer(len(self._waiting), self._end)


class QueueFlusher(Flusher):
    """Flushes modified consume queues and full index files, writes the checkpoint and empties the trash.

    A queue enters `dirty` at its first write after a flush. A failed flush is repeated. Messages are still accepted in
    the meantime, because recovery can rebuild queues and index from the log.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        dirty: deque[ConsumeQueue],
        index: MessageIndex,
        trash: Trash,
        checkpoint: Checkpoint,
        config: StoreConfig,
        report: JobReport,
    ) -> None:
        super().__init__("queue flusher", commit_log, config.flush_interval_consume_queue_ms / 1000, report)
        self._dirty = dirty
        self._index = index
        self._trash = trash
        self._checkpoint = checkpoint
        self._checkpoint_path = config.store_path_root_dir / "checkpoint"
        #: Its settings can change at any time.
        self._config = config
        self._is_asked = False
        self._next_thorough = 0.0
        #: The reason why no further queue counts as flushed.
        self._failure: Refusal | None = None

    def flush_soon(self) -> None:
        """Requests a thorough round."""
        self._is_asked = True
        self.wake()

    def claim_no_more(self, physical_offset: int, timestamp: int) -> None:
        """Lowers the checkpoint to this physical offset and timestamp at most, and to the index files that exist.

        Called before data is deleted, while the thread is stopped. Raises OSError.
        """
        checkpoint = self._checkpoint
        checkpoint.physic_msg_timestamp = min(checkpoint.physic_msg_timestamp, timestamp)
        checkpoint.logics_msg_timestamp = min(checkpoint.logics_msg_timestamp, timestamp)
        checkpoint.index_msg_timestamp = min(checkpoint.index_msg_timestamp, self._index.flushed_timestamp)
        checkpoint.confirm_phy_offset = min(checkpoint.confirm_phy_offset, physical_offset)
        save_checkpoint(self._checkpoint_path, checkpoint)

    def _round(self) -> None:
        began = clock.monotonic()
        thorough = self._is_asked or began >= self._next_thorough
        self._is_asked = False
        try:
            self.flush(thorough=thorough)
        finally:
            if thorough:
                ended = clock.monotonic()
                interval_s = self._config.flush_consume_queue_thorough_interval_ms / 1000
                self._next_thorough = ended + min(interval_s, (ended - began) * _THOROUGH_PAUSE)
            self._trash.empty()
            if not self._trash.is_empty and not self._stopping:
                self.wake()

    def flush(self, *, thorough: bool) -> None:
        """Runs one round. A thorough round flushes every queue and then writes the checkpoint.

        If something can't be flushed, flushes the rest and then raises StoreError or OSError.
        """
        if self._failure is not None:
            raise self._failure.exception()
        # Every record on disk has a unit in a queue that is either flushed or in `dirty`.
        timestamp = self._log.flushed_timestamp
        flushed = self._log.flushed
        if (until := self._log.units_until) is not None:
            # Some records have pending units.
            timestamp, flushed = self._checkpoint.physic_msg_timestamp, min(flushed, until)
        problem: Exception | None = None
        due: list[ConsumeQueue] = []
        least_bytes = self._config.flush_consume_queue_least_pages * _PAGE
        for _ in range(len(self._dirty)):
            queue = self._dirty.popleft()
            is_due = thorough or queue.unflushed >= least_bytes
            (due if is_due else self._dirty).append(queue)
        try:
            errors = threads.in_parallel(_flush, due, _AT_ONCE_AT_LAST if self._stopping else 1)
        except BaseException:
            # The thread ends with this exception. The queues must stay in `dirty`, so that closing the store flushes
            # them.
            self._dirty.extend(due)
            raise
        for queue, error in zip(due, errors, strict=True):
            if error is not None:
                self._dirty.append(queue)
                problem = self._worse(problem, error)
        try:
            self._index.flush()
        except Exception as e:
            problem = self._worse(problem, e)
        if problem is not None:
            raise problem
        indexed = self._index.flushed_timestamp
        if thorough and (
            flushed > self._checkpoint.confirm_phy_offset or indexed != self._checkpoint.index_msg_timestamp
        ):
            self._checkpoint.physic_msg_timestamp = timestamp
            self._checkpoint.logics_msg_timestamp = timestamp
            self._checkpoint.index_msg_timestamp = indexed
            self._checkpoint.confirm_phy_offset = flushed
            save_checkpoint(self._checkpoint_path, self._checkpoint)

    def _worse(self, problem: Exception | None, error: Exception) -> Exception:
        if isinstance(error, SyncFailed) and self._failure is None:
            # The checkpoint is not advanced, so the next recovery rebuilds the data that may be missing on disk.
            text = f"{error}; messages are rejected until the broker is restarted"
            self._failure = Refusal(text, SyncFailed)
            self._log.refuse(self._name, self._failure)
            return error
        return problem or error


def _flush(queue: ConsumeQueue) -> None:
    queue.dirty = False
    try:
        queue.flush()
    except Exception:
        queue.dirty = True
        raise
