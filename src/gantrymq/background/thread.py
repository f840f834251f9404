"""SupervisedThread: a thread whose death is told to what it serves."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gantrymq.logs import peer_log

log = peer_log(__name__)


class SupervisedThread:
    """Runs `target` in a daemon thread from `start` on.

    When `target` raises, that is logged and `died(error)` is called in the same thread: it makes whatever counts on the
    thread fail, so that nobody waits for it.
    """

    def __init__(self, name: str, target: Callable[[], None], died: Callable[[BaseException], None]) -> None:
        self._target = target
        self._died = died
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits until it has ended; whether it has. A thread that was never started has."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """The caller runs in it."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            self._target()
        except BaseException as e:
            log.critical("the thread %s died", self._thread.name, exc_info=True)
            self._died(e)
