"""LiteExpiry: deletes lite topics that got no messages for `lite.topic.expiration` (`AbstractLiteLifecycleManager`).

It also deletes the lite topics of a parent topic that no longer exists. Only a master deletes lite topics. A sweep
looks at the last message of each lite topic, in slices of some milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.tables import is_lite, lite_expiration_minutes
from gantrymq.logs import peer_log
from gantrymq.protocol.lite_topic import LITE_QUEUE_PREFIX, lite_topic_of
from gantrymq.store.light.light_queues import LightQueues
from gantrymq.system import clock
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Pause between two slices of work, in seconds.
_PAUSE_S = 0.05
#: Number of lite topics that one slice deletes. Each takes about 0.1 ms.
_DELETED_AT_ONCE = 50
#: A physical offset before every log.
_NEVER = -2


class LiteExpiry:
    """Deletes lite topics of one broker. `deleted(names)` is called with the names of their light queues."""

    def __init__(
        self, context: BrokerContext, *, light: LightQueues, deleted: Callable[[Collection[str]], None]
    ) -> None:
        self._config = context.config
        self._store = context.store
        self._topics = context.topics
        self._light = light
        self._deleted = deleted
        #: The light queue after which the sweep continues; None between two sweeps.
        self._after: str | None = None
        #: {parent topic: physical offset before which a lite topic without later messages has expired}.
        self._before: dict[str, int] = {}
        #: The names of expired light queues, each with its physical offset of `_before`.
        self._expired: list[tuple[str, int]] = []
        self._began = monotonic()
        #: Whether a parent topic was deleted, so that a sweep does not wait.
        self._is_asked = False
        self._next_sweep = 0.0
        self._job = context.jobs.repeating("delete expired lite topics", self._run)
        context.events.topics_deleted.subscribe(lambda topics, queues: self._topics_deleted())

    def start(self) -> None:
        self._began = monotonic()
        self._next_sweep = self._began + self._config.min_lite_ttl / 1000
        self._job.start()
        self._job.wake()

    def stop(self) -> None:
        self._job.cancel()
        self._after = None
        self._expired.clear()

    def _topics_deleted(self) -> None:
        self._is_asked = True
        self._job.wake()

    def _run(self) -> float:
        """Runs for one slice. Returns the seconds to the next one. Raises StoreError."""
        if self._expired:
            expired, self._expired = self._expired[:_DELETED_AT_ONCE], self._expired[_DELETED_AT_ONCE:]
            names = []
            try:
                for name, before in expired:
                    if self._light.delete(name, before):
                        names.append(name)
            finally:
                self._deleted(names)
            return _PAUSE_S
        if self._after is None:
            left_s = self._next_sweep - monotonic()
            if left_s > 0 and not self._is_asked:
                return left_s
            self._is_asked = False
            self._next_sweep = max(self._next_sweep, monotonic() + self._config.lite_ttl_check_interval / 1000)
            self._after = ""
            self._before.clear()
        self._look(self._after)
        return _PAUSE_S

    def _look(self, after: str) -> None:
        """Finds the expired lite topics among the next ones."""
        found = self._light.last_places(LITE_QUEUE_PREFIX, after)
        for name, last in found:
            place = lite_topic_of(name)
            if place is not None and last < (before := self._expired_before(place[0])):
                self._expired.append((name, before))
        self._after = found[-1][0] if found else None
        if self._expired:
            log.info("%d lite topics have expired: %s and others", len(self._expired), self._expired[0][0])

    def _expired_before(self, topic: str) -> int:
        before = self._before.get(topic)
        if before is None:
            before = self._before[topic] = self._find_before(topic)
        return before

    def _find_before(self, topic: str) -> int:
        config = self._topics.get(topic)
        if config is None:
            # Later messages are of a topic that was created again.
            return self._store.max_physical_offset
        minutes = lite_expiration_minutes(config.attributes) if is_lite(config.attributes) else -1
        if minutes <= 0 or monotonic() < self._began + self._config.min_lite_ttl / 1000:
            # After a start, clients need time to send to their lite topics again.
            return _NEVER
        expired_ms = clock.now_ms() - max(minutes * 60_000, self._config.min_lite_ttl)
        # All messages of lite topics are also in the queues of the parent topic, in the order of their times.
        before = self._store.max_physical_offset
        # Also queues that the topic had before an administrator reduced their number.
        for queue in self._store.queues_of(topic):
            unit = queue.unit(self._store.offset_by_time(queue, expired_ms))
            before = before if unit is None else min(before, unit[0])
        return before
