"""ShortPolls: how soon to ask a broker again that has nothing."""

from __future__ import annotations

#: A broker that says in less time than this that there is nothing new doesn't hold requests (longPollingEnable=false).
SHORT_S = 0.02
#: It is asked at least so often.
LONGEST_PAUSE_S = 1.0


class ShortPolls:
    """Of one queue. A broker that holds requests until something comes is asked again at once, another less and less
    often."""

    def __init__(self) -> None:
        self._pause_s = 0.0

    def pause(self, brought_something: bool, took_s: float) -> float:
        """The pause after a request that took so long, s."""
        if brought_something or took_s > SHORT_S:
            self._pause_s = 0.0
        else:
            self._pause_s = min(max(2 * self._pause_s, SHORT_S), LONGEST_PAUSE_S)
        return self._pause_s
