"""RouteRenewal: requests possibly stale routes again in the background and notifies callers of changes.

Producers and consumers report a topic if a broker rejects a request because of its role. They also report it if a
broker does not respond or has left the topic's route. A client has at most one request in flight for each topic. The
pause between requests grows while the route does not change.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from gantrymq.background.repeating import Repeating
from gantrymq.client.failure_log import FailureLog
from gantrymq.client.routes import Routes
from gantrymq.errors import GantryError, NoRouteInfo
from gantrymq.system.clock import monotonic

#: Shortest and longest pause between two requests for the route of one topic, s.
SHORTEST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
#: Between these limits, the pause is this share of the time since the first report. A route change resets this time.
PAUSE_SHARE = 0.1
#: If no report arrives for this time, the next report counts as the first one, s.
QUIET_S = 30.0


@dataclass(slots=True)
class _Stale:
    """A reported topic: time of its first and last report, and of the last request."""

    since: float
    reported: float
    requested: float = -inf
    is_due: bool = True

    @property
    def due(self) -> float:
        pause_s = (self.reported - self.since) * PAUSE_SHARE
        return self.requested + min(max(pause_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)


class RouteRenewal:
    """The reported topics of one client. Times are monotonic, in seconds."""

    def __init__(self, routes: Routes, failure_log: FailureLog) -> None:
        self._routes = routes
        self._failure_log = failure_log
        self._stale: dict[str, _Stale] = {}
        #: The waiting calls by topic. In order, so that calls continue in the order in which they began.
        self._waiters: dict[str, dict[asyncio.Future[None], None]] = {}
        self._job = Repeating("the renewal of stale routes", self._renew, after_error_s=SHORTEST_PAUSE_S)
        routes.watch(self._changed)

    def start(self) -> None:
        self._job.start()

    async def stop(self) -> None:
        await self._job.stop()

    def request(self, topic: str) -> None:
        """Requests the topic's route soon. Further reports until then share the request."""
        now = monotonic()
        stale = self._stale.get(topic)
        if stale is None or now - stale.reported > QUIET_S:
            stale = self._stale[topic] = _Stale(now, now)
        stale.reported, stale.is_due = now, True
        self._job.wake(max(stale.due - now, 0.0))

    async def change(self, topic: str, timeout_s: float) -> None:
        """Waits until the topic's route has changed, for at most `timeout_s` seconds."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(topic, {})
        waiters[waiter] = None
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            waiters.pop(waiter, None)
            if not waiters and self._waiters.get(topic) is waiters:
                del self._waiters[topic]

    def _changed(self, topic: str) -> None:
        if (stale := self._stale.get(topic)) is not None:
            # Restart with the shortest pause, in case the new route is also stale.
            stale.since = stale.reported = monotonic()
        for waiter in self._waiters.pop(topic, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def _renew(self) -> float:
        """Requests the routes that are due. Returns the pause until the next request is due, in seconds."""
        now = monotonic()
        for topic, stale in list(self._stale.items()):
            if not stale.is_due and now - stale.reported > QUIET_S:
                del self._stale[topic]
        due = [topic for topic, stale in self._stale.items() if stale.is_due and stale.due <= now]
        for topic in due:
            self._stale[topic].is_due = False
        await asyncio.gather(*map(self._renew_one, due))
        now = monotonic()
        return max(min((stale.due for stale in self._stale.values() if stale.is_due), default=inf) - now, 0.0)

    async def _renew_one(self, topic: str) -> None:
        try:
            await self._routes.refresh(topic)
        except NoRouteInfo:
            pass  # The topic's only broker is gone. The cached address stays in use until there is a new one.
        except GantryError as e:
            self._failure_log.report(f"can't renew the route of topic {topic}", e)
        if (stale := self._stale.get(topic)) is not None:
            stale.requested = monotonic()
