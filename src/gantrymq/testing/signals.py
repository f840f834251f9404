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
    """Raises Interrupted in the main thread at the first signal; further ones are ignored. For the main thread only."""

    def interrupt(number: int, _: object) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
