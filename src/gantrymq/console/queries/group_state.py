"""The lag and the state of a consumer group, from its progress in all topics."""

from __future__ import annotations

import msgspec

from gantrymq.console.cluster_view import TopicProgress
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX

#: Lowest lag at which a group counts as lagging, s.
LAGGING_S = 60.0
#: States of a group, from good to bad.
STATES = ("idle", "up to date", "consuming", "catching up", "lagging", "stalled", "no members")


class Group(msgspec.Struct):
    """A group. `seconds` is an upper bound for the age of its oldest unconsumed message; None without lag."""

    name: str
    topics: list[str]
    lag: int
    seconds: float | None
    tps: float
    #: The state that follows without data about the members and the trend. See `state_of`.
    state: str = ""


def group_of(name: str, of_topics: dict[str, TopicProgress], now: int) -> Group:
    lag = sum(progress.lag for progress in of_topics.values())
    oldest = min(
        (progress.oldest_ms for progress in of_topics.values() if progress.lag and progress.oldest_ms), default=0
    )
    seconds = max(now - oldest, 0) / 1000 if oldest else None
    tps = sum(progress.tps for progress in of_topics.values())
    return Group(
        name,
        sorted(topic for topic in of_topics if not topic.startswith(RETRY_TOPIC_PREFIX)),
        lag,
        seconds,
        tps,
        state_of(lag, seconds, tps, None, None),
    )


def state_of(lag: int, seconds: float | None, tps: float, members: int | None, growth: float | None) -> str:
    """Returns the state of a group, one of STATES. `members` and `growth` (of the lag) are None if unknown."""
    if not lag:
        return "idle" if members == 0 else "up to date"
    if members == 0:
        return "no members"
    if seconds is None:
        # The age is unknown, for example if the group has not consumed its first message yet.
        return "consuming" if tps else "stalled"
    if seconds < LAGGING_S:
        return "consuming"
    if not tps:
        return "stalled"
    return "catching up" if growth is not None and growth < 0 else "lagging"
