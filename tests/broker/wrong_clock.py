"""Replaces the clock of the tested code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gantrymq.store import message_writer, record_batch
from gantrymq.system import clock


class WrongClock:
    """A clock that is `ahead_s` seconds ahead, for all brokers and stores of this process.

    It does not affect native code.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        time_ns, time = clock.time_ns, clock.time
        set_clock(patch, lambda: time_ns() + int(self.ahead_s * 10**9), lambda: time() + self.ahead_s)


def set_store_clock(patch: pytest.MonkeyPatch, time: Callable[[], float]) -> None:
    """Replaces the clock from which records get their store timestamp."""
    for module in (message_writer, record_batch):
        patch.setattr(module, "time", time)


def set_clock(patch: pytest.MonkeyPatch, time_ns: Callable[[], int], time: Callable[[], float]) -> None:
    """Replaces the clock functions of brokers and stores."""
    patch.setattr(clock, "time_ns", time_ns)
    set_store_clock(patch, time)
