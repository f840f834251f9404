"""Delayed messages: with a delay level, or with a delivery time of their own (timer messages)."""

from __future__ import annotations

from gantrymq.broker.delay.delays import Delays
from gantrymq.broker.delay.levels import DelayLevels
from gantrymq.broker.delay.recall import Recall
from gantrymq.broker.delay.timer import Timer
from gantrymq.broker.delay.timer_message import recall_handle

__all__ = ["DelayLevels", "Delays", "Recall", "Timer", "recall_handle"]
