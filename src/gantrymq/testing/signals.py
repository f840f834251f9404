"""Stopping once: SIGINT and SIGTERM become one exception, and what cleans up after it is not interrupted again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The process was told to stop, by `signal_number`."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises Interrupted in the main thread at the first signal; further ones are ignored. For the main thread only.

    It may come between any two steps, and what is called inside must bear that. `Popen.poll` and `wait` don't: they may
    leave their lock held, and nobody can wait for the process then.
    """
    is_told = False

    def interrupt(number: int, _: object) -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            raise Interrupted(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in _SIGNALS:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
