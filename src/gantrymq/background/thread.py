"""A thread that notifies its owner if it dies."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.logs import peer_log
from gantrymq.system import threads

log = peer_log(__name__)

#: Time for a thread to begin after its `start` was interrupted, in seconds.
BEGIN_S = 1.0


class SupervisedThread:
    """Runs `target` in a daemon thread after `start`.

    If `target` raises, `died(error)` is called in the same thread. `died` must fail all operations that wait for the
    thread, so that no caller waits forever. After that the error is logged.
    """

    def __init__(self, name: str, target: Callable[[], None], died: Callable[[BaseException], None]) -> None:
        self._target = target
        self._died = died
        self._thread = threads.Thread(target=self._run, name=name, daemon=True)
        self._is_started = False
        # Thread.is_alive is not reliable: it returns false if Ctrl-C interrupted `start` or `join`.
        self._begun = threads.Event()
        self._ended = threads.Event()

    def start(self) -> None:
        self._is_started = True
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits until the thread has ended. Returns true if it has, or if it was never started."""
        if not self._is_started or not self._begun.wait(BEGIN_S):
            return True
        if not self._ended.wait(timeout_s):
            return False
        self._thread.join()
        return True

    @property
    def is_alive(self) -> bool:
        return self._is_started and not self._ended.is_set()

    @property
    def is_current(self) -> bool:
        """True if the caller runs in this thread."""
        return threads.current_thread() is self._thread

    def _run(self) -> None:
        self._begun.set()
        try:
            self._target()
        except BaseException as e:
            try:
                # This call comes before the log line, because callers may already be waiting.
                self._died(e)
            finally:
                log.critical("the thread %s died", self._thread.name, exc_info=e)
        finally:
            self._ended.set()
