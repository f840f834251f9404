"""Delays: selects the queue in which a delayed message waits until its delivery time."""

from __future__ import annotations

from gantrymq.broker.delay.levels import DelayLevels
from gantrymq.broker.delay.timer import Timer
from gantrymq.protocol.properties import find_property
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.delay_level import delay_level
from gantrymq.system.clock import now_ms

_TIMER_PROPERTIES = (b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS")


class Delays:
    """Selects the delay level or the timer (`HookUtils.handleScheduleMessage`)."""

    def __init__(self, schedule: DelayLevels, timer: Timer) -> None:
        self.schedule = schedule
        self.timer = timer

    def redirect(self, queue: ConsumeQueue, properties: bytes, code: int) -> tuple[ConsumeQueue, bytes, int]:
        """Returns the queue, the properties and the tags code with which a message for `queue` is stored.

        They are unchanged for a message without a delay. Raises RequestRefused for an illegal delivery time.
        """
        level = delay_level(properties)
        if level:
            return self.schedule.redirect(queue, properties, level, now_ms())
        if any(find_property(properties, name) for name in _TIMER_PROPERTIES):
            return self.timer.redirect(queue, properties, code)
        return queue, properties, code
