"""Which brokers a producer stays away from for a while, because they were slow or failed (sendLatencyFaultEnable).

So it does, which Java's clients don't, from those that owe it answers: one that hangs is known before the first send
to it has failed. Source: client/latency/MQFaultStrategy, LatencyFaultToleranceImpl. Times are ms, passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

from gantrymq.client.producing.publish_info import TopicPublishInfo
from gantrymq.protocol.message import MessageQueue

#: A send that took at least so long (latencyMax) ...
LATENCY_MAX_MS = (50, 100, 550, 1800, 3000, 5000, 15000)
#: ... keeps its broker out of use for so long (notAvailableDuration).
NOT_AVAILABLE_DURATION_MS = (0, 0, 2000, 5000, 6000, 10000, 30000)
#: A send that took less keeps its broker out of use for no time.
_QUICK_MS = next(ms for ms, duration in zip(LATENCY_MAX_MS, NOT_AVAILABLE_DURATION_MS, strict=True) if duration)
#: What a failed send counts as having taken.
FAILED_LATENCY_MS = 10_000
#: How long after a detection the same broker is asked again (detectInterval).
DETECT_INTERVAL_MS = 2000
#: How long a detected broker may take to answer (detectTimeout).
DETECT_TIMEOUT_MS = 200
#: A broker that has answered nothing for so long, while sends to it are under way, is asked after the others.
STALLED_MS = 100


def not_available_duration(latency_ms: int) -> int:
    """How long a broker is kept out of use after a send that took `latency_ms`."""
    for least, duration in zip(reversed(LATENCY_MAX_MS), reversed(NOT_AVAILABLE_DURATION_MS), strict=True):
        if latency_ms >= least:
            return duration
    return 0


@dataclass(slots=True)
class FaultItem:
    """What is known of one broker: available from `start_ms` on; `check_ms` is when it may be detected again.

    `under_way` sends to it have no answer yet; since `silent_ms` none of them had one.
    """

    latency_ms: int = 0
    start_ms: int = 0
    check_ms: int = 0
    reachable: bool = True
    under_way: int = 0
    silent_ms: int = 0

    def is_stalled(self, now_ms: int) -> bool:
        return self.under_way > 0 and now_ms - self.silent_ms > STALLED_MS


class LatencyFaults:
    """The brokers' penalties. `items` is by broker name; brokers without an item have never been sent to."""

    def __init__(self) -> None:
        self.items: dict[str, FaultItem] = {}

    def begin(self, broker: str, now_ms: int) -> FaultItem:
        """A send to the broker begins; `end` is told of its item."""
        item = self._item(broker)
        if not item.under_way:
            item.silent_ms = now_ms
        item.under_way += 1
        return item

    def end(self, item: FaultItem, now_ms: int, *, answered: bool) -> None:
        """That send has ended, by an answer of any kind or without."""
        item.under_way -= 1
        if answered:
            item.silent_ms = now_ms

    def stored(self, item: FaultItem, began_ms: int, now_ms: int) -> None:
        """As `end` and `update`, of a send that has ended well."""
        item.under_way -= 1
        item.silent_ms = now_ms
        item.latency_ms = latency_ms = now_ms - began_ms
        item.reachable = True
        if latency_ms >= _QUICK_MS:
            item.start_ms = max(item.start_ms, now_ms + not_available_duration(latency_ms))

    def update(
        self, broker: str, latency_ms: int, now_ms: int, *, isolate: bool = False, reachable: bool = True
    ) -> None:
        """Counts a send: after a failed one the broker is isolated as if it had taken FAILED_LATENCY_MS."""
        item = self._item(broker)
        item.latency_ms = latency_ms
        item.reachable = reachable
        duration = not_available_duration(FAILED_LATENCY_MS if isolate else latency_ms)
        if duration > 0:
            item.start_ms = max(item.start_ms, now_ms + duration)

    def _item(self, broker: str) -> FaultItem:
        item = self.items.get(broker)
        if item is None:
            item = self.items[broker] = FaultItem()
        return item

    def is_available(self, broker: str, now_ms: int) -> bool:
        item = self.items.get(broker)
        return item is None or now_ms >= item.start_ms

    def is_stalled(self, broker: str, now_ms: int) -> bool:
        """It has answered nothing for a while, though it was asked."""
        item = self.items.get(broker)
        return item is not None and item.is_stalled(now_ms)

    def is_reachable(self, broker: str) -> bool:
        item = self.items.get(broker)
        return item is None or item.reachable

    def select(self, info: TopicPublishInfo, last_broker: str | None, now_ms: int) -> MessageQueue:
        """The next queue of an available broker other than `last_broker`, else of a reachable one, else any.

        One that is stalled comes after those that aren't. There must be queues; where one broker has all of them there
        is nothing to choose.
        """
        if not info.has_several_brokers:
            return info.select()
        if last_broker is not None:
            info.reset()

        def is_quick(broker: str) -> bool:
            return broker != last_broker and not self.is_stalled(broker, now_ms)

        return (
            info.next_where(lambda broker: is_quick(broker) and self.is_available(broker, now_ms))
            or info.next_where(lambda broker: is_quick(broker) and self.is_reachable(broker))
            or info.next_where(lambda broker: broker != last_broker and self.is_reachable(broker))
            or info.select()
        )

    def due(self, now_ms: int) -> list[str]:
        """The brokers that a detector should try now; each comes again after DETECT_INTERVAL_MS."""
        names = [broker for broker, item in self.items.items() if now_ms >= item.check_ms]
        for broker in names:
            self.items[broker].check_ms = now_ms + DETECT_INTERVAL_MS
        return names

    def detected(self, broker: str) -> None:
        """A detector's finding: the broker answers, so it is reachable again."""
        if broker in self.items:
            self.items[broker].reachable = True

    def forget(self, broker: str) -> None:
        """Drops a broker that no route names any more."""
        self.items.pop(broker, None)
