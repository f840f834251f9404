"""The threads that bring files to the disk (`CommitLog.GroupCommitService`, `FlushConsumeQueueService`).

They only make system calls, which run without the GIL; two, so that a log flush that producers wait for needn't wait
for the queues. Whatever a round raises, there is a next one; `JobReport` counts them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gantrymq.background.report import JobReport
from gantrymq.errors import SyncFailed
from gantrymq.store.checkpoint import Checkpoint, save_checkpoint
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_index import MessageIndex
from gantrymq.store.refusal import Refusal
from gantrymq.store.trash import Trash
from gantrymq.system import clock, threads

log = logging.getLogger(__name__)

FlushCallback = Callable[[Exception | None], None]
_PAGE = 4096
#: After a thorough round of so many seconds the next one waits that many times as long, unless the configured interval
#: is shorter: few queues are flushed every second, so that a crash leaves little to read again.
_THOROUGH_PAUSE = 20
#: So many queues at a time when the store is closed: a disk takes that many in the time of one (2,000 queues: 0.4 s
#: instead of 4 to 11). While there are senders they would wait for more of it than their own.
_AT_ONCE_AT_LAST = 16


class Flusher:
    """A thread with a round every `interval_s`, one when it is woken, and a last one when it is stopped."""

    def __init__(self, name: str, commit_log: CommitLog, interval_s: float, report: JobReport) -> None:
        self._name = name
        self._log = commit_log
        #: May be changed meanwhile; `wake` has it take effect at once.
        self.interval_s = interval_s
        self._report = report
        self._stopping = False
        self._thread = self._worker()

    def _worker(self) -> threads.Worker:
        return threads.Worker(f"gantry-{self._name.replace(' ', '-')}", self._step, self.interval_s, self._died)

    def start(self) -> None:
        """Starts the thread; again, when it was stopped."""
        if self._stopping:
            self._stopping = False
            self._thread = self._worker()
        self._thread.start()

    def wake(self) -> None:
        """Has a round begin at once, or once more after the one that is under way."""
        self._thread.wake()

    def stop(self) -> None:
        """Has a last round made, and waits until the thread has ended. Once more does no harm."""
        self._stopping = True
        self._thread.wake()
        self._thread.join()

    def _round(self) -> None:
        """What is to be done. May raise anything; it is tried again."""
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
        text = f"the thread {self._name} died of {error!r}, so no message is taken until the broker is started again"
        self._log.refuse(self._name, Refusal(text))


class LogFlusher(Flusher):
    """Flushes the commit log, at once when somebody waits for it. While it can't, the log takes no records."""

    def __init__(self, commit_log: CommitLog, interval_s: float, report: JobReport) -> None:
        super().__init__("log flusher", commit_log, interval_s, report)
        self._waiting: deque[FlushCallback] = deque()
        #: Why there will be no more rounds.
        self._end: Refusal | None = None

    def when_flushed(self, callback: FlushCallback) -> None:
        """Calls back, in this thread, when all that the log has now is on the disk, or can't be brought there."""
        self._waiting.append(callback)
        self.wake()
        if self._end is not None:
            self._answer(len(self._waiting), self._end)

    def start(self) -> None:
        self._end = None
        super().start()

    def stop(self) -> None:
        """Flushes a last time, calls back who waits, and ends the thread."""
        super().stop()
        self._end = self._end or Refusal("the store is closed")
        self._answer(len(self._waiting), self._end)

    def _round(self) -> None:
        # Whoever comes from now on waits for the next round: this one may have passed its record.
        count = len(self._waiting)
        try:
            self._log.flush()
        except Exception as e:
            refusal = Refusal(f"the commit log can't be brought to the disk, so no message is taken until it can: {e}")
            if isinstance(e, SyncFailed):
                # The log refuses all by itself, for good.
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
                return  # Another thread answers, too, when this one has died.
            try:
                # An exception each: one that several threads raise would get the tracebacks of all.
                callback(None if refusal is None else refusal.exception())
            except Exception:
                log.exception("a flush callback failed")

    def _died(self, error: BaseException) -> None:
        super()._died(error)
        self._end = Refusal(f"the thread {self._name} died of {error!r}: nobody brings the commit log to the disk")
        self._answer(len(self._waiting), self._end)


class QueueFlusher(Flusher):
    """Flushes the consume queues that were written to and full index files, keeps the checkpoint, empties the trash.

    `dirty` gets a queue when it is written to for the first time since the last flush. What can't be flushed is tried
    again: meanwhile messages are taken, as recovery makes queues and index from the log.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        dirty: deque[ConsumeQueue],
        index: MessageIndex,
        trash: Trash,
        checkpoint: Checkpoint,
        checkpoint_path: Path,
        interval_s: float,
        least_pages: int,
        thorough_interval_s: float,
        report: JobReport,
    ) -> None:
        super().__init__("queue flusher", commit_log, interval_s, report)
        self._dirty = dirty
        self._index = index
        self._trash = trash
        self._checkpoint = checkpoint
        self._checkpoint_path = checkpoint_path
        #: May be changed meanwhile.
        self.least_pages = least_pages
        self.thorough_interval_s = thorough_interval_s
        self._is_asked = False
        self._next_thorough = 0.0
        #: Why nothing of it counts as flushed any more.
        self._failure: Refusal | None = None

    def flush_soon(self) -> None:
        """Asks for a thorough round."""
        self._is_asked = True
        self.wake()

    def claim_no_more(self, physical_offset: int, timestamp: int) -> None:
        """The checkpoint says nothing of what is behind that physical offset, or was stored after the timestamp, nor
        of index files that are gone. For who drops it while the thread is stopped. Raises OSError.
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
                self._next_thorough = ended + min(self.thorough_interval_s, (ended - began) * _THOROUGH_PAUSE)
            self._trash.empty()
            if not self._trash.is_empty and not self._stopping:
                self.wake()

    def flush(self, *, thorough: bool) -> None:
        """One round. A thorough one flushes every queue, then writes the checkpoint.

        Raises StoreError or OSError when something couldn't be flushed, once all the rest is.
        """
        if self._failure is not None:
            raise self._failure.exception()
        # Whatever record is on the disk by now has its unit in a queue, flushed or dirty.
        timestamp = self._log.flushed_timestamp
        flushed = self._log.flushed
        if (until := self._log.units_until) is not None:
            # The units of some are held back.
            timestamp, flushed = self._checkpoint.physic_msg_timestamp, min(flushed, until)
        problem: Exception | None = None
        due: list[ConsumeQueue] = []
        for _ in range(len(self._dirty)):
            queue = self._dirty.popleft()
            is_due = thorough or queue.unflushed >= self.least_pages * _PAGE
            (due if is_due else self._dirty).append(queue)
        try:
            errors = threads.in_parallel(_flush, due, _AT_ONCE_AT_LAST if self._stopping else 1)
        except BaseException:
            # The thread dies of it: whoever closes the store is to flush these, not to take them for flushed.
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
            # Without another checkpoint the next recovery makes anew what the disk may lack.
            text = f"{error}; no message is taken until the broker is started again"
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
