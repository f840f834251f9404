"""SupervisedThread: a thread whose death is told to what it serves."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.logs import peer_log
from gantrymq.system import threads

log = peer_log(__name__)

#: How long a thread whose start was interrupted may take to begin.
BEGIN_S = 1.0


class SupervisedThread:
    """Runs `target` in a daemon thread from `start` on.

    When `target` raises, `died(error)` is called in the same thread, which makes whatever counts on the thread fail, so
    that nobody waits for it; then it is logged.
    """

    def __init__(self, name: str, target: Callable[[], None], died: Callable[[BaseException], None]) -> None:
        self._target = target
        self._died = died
        self._thread = threads.Thread(target=self._run, name=name, daemon=True)
        self._is_started = False
        # Not the thread's own word: one whose start or join was interrupted by Ctrl-C says that it doesn't live.
        self._begun = threads.Event()
        self._ended = threads.Event()

    def start(self) -> None:
        self._is_started = True
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits until it has ended; whether it has. A thread that was never started has."""
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
        """The caller runs in it."""
        return threads.current_thread() is self._thread

    def _run(self) -> None:
        self._begun.set()
        try:
            self._target()
        except BaseException as e:
            try:
                # First of all: until then somebody counts on it.
                self._died(e)
            finally:
                log.critical("the thread %s died", self._thread.name, exc_info=e)
        finally:
            self._ended.set()
