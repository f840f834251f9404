"""ShortPolls: the pause before the next request to a broker that has no messages."""

from __future__ import annotations

#: If a broker responds faster than this without messages, its long polling is off (longPollingEnable=false), s.
SHORT_S = 0.02
#: Longest pause between requests, s.
LONGEST_PAUSE_S = 1.0


class ShortPolls:
    """Computes the pauses of one queue: 0 after a long poll. After each short poll, the pause doubles, up to 1 s."""

    def __init__(self) -> None:
        self._pause_s = 0.0

    def pause(self, brought_something: bool, took_s: float) -> float:
        """Returns the pause after a request that took `took_s`, in seconds."""
        if brought_something or took_s > SHORT_S:
            self._pause_s = 0.0
        else:
            self._pause_s = min(max(2 * self._pause_s, SHORT_S), LONGEST_PAUSE_S)
        return self._pause_s
