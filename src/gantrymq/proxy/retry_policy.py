"""Delays before the redelivery of a group's messages, by the number of retries (`GroupRetryPolicy`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gantrymq.protocol.bodies.subscription_group import GroupRetryPolicy

EXPONENTIAL = "EXPONENTIAL"

_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS
#: Delays of the brokers' delay levels, ms. Used if a policy has no list.
_CUSTOMIZED_MS = (
    *(seconds * _SECOND_MS for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE_MS for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    _HOUR_MS,
    2 * _HOUR_MS,
)
#: Index of the first retry's delay: level 3, as for consumers of 4.x. Levels count from 1.
_FIRST_LEVEL = 2
_MOST_DOUBLINGS = 32


class Exponential(NamedTuple):
    """An exponential policy: each delay is `multiplier` times the one before, up to `max_ms`."""

    initial_ms: int
    max_ms: int
    multiplier: int


def customized_ms(policy: GroupRetryPolicy) -> Sequence[int]:
    """Returns the delays of a policy that lists them, ms."""
    given = (policy.customized_retry_policy or {}).get("next")
    return [int(delay) for delay in given] if given else _CUSTOMIZED_MS


def exponential(policy: GroupRetryPolicy) -> Exponential:
    """Returns the parameters of an exponential policy."""
    given = policy.exponential_retry_policy or {}
    return Exponential(
        int(given.get("initial", 5 * _SECOND_MS)), int(given.get("max", 2 * _HOUR_MS)), int(given.get("multiplier", 2))
    )


def retry_delay_ms(policy: GroupRetryPolicy, reconsume_times: int) -> int:
    """Returns the delay before the next delivery of a message that had `reconsume_times` retries, ms."""
    times = max(reconsume_times, 0)
    if policy.type == EXPONENTIAL:
        figures = exponential(policy)
        delay_ms: int = figures.initial_ms * figures.multiplier ** min(times, _MOST_DOUBLINGS)
        return min(figures.max_ms, delay_ms)
    delays = customized_ms(policy)
    return delays[min(times + _FIRST_LEVEL, len(delays) - 1)]
