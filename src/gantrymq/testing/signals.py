"""Interruption by a signal: the first SIGINT or SIGTERM raises an exception, further ones are ignored."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The process received the signal `signal_number`."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class Interruption:
    """Raises Interrupted at the first signal and ignores further ones."""

    def __init__(self) -> None:
        self._is_ignoring = False
        self._is_deferring = False
        #: A signal that a `deferred` block has deferred.
        self._pending: int | None = None

    def handle(self, number: int, _: object) -> None:
        """The signal handler."""
        if self._is_ignoring:
            return
        if self._is_deferring:
            self._pending = self._pending or number
            return
        self._is_ignoring = True
        raise Interrupted(number)

    def ignore(self) -> None:
        """Ignores all further signals."""
        self._is_ignoring = True

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defers a signal to the end of the block."""
        self._is_deferring = True
        try:
            yield
        finally:
            self._is_deferring = False
            if self._pending is not None:
                self.handle(self._pending, None)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Raises Interrupted in the main thread at the first signal and ignores further ones. For the main thread only.

    The exception can occur between any two steps, so the code inside must tolerate that. `Popen.poll` and `wait` do
    not: they can leave their lock acquired, and then no one can wait for the process. Call them in a block of
    `Interruption.deferred`.
    """
    interruption = Interruption()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in _SIGNALS:
            signal.signal(number, interruption.handle)
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
