"""Avoids slow and failed brokers for some time (`sendLatencyFaultEnable`).

Unlike Java's clients, it also avoids brokers with overdue responses. A broker that hangs is therefore detected before
the first send to it has failed. Source: client/latency/MQFaultStrategy, LatencyFaultToleranceImpl. Times are in ms;
callers pass the current time.
"""

from __future__ import annotations

from dataclasses import dataclass

from gantrymq.client.producing.publish_info import TopicPublishInfo
from gantrymq.protocol.message import MessageQueue

#: Latencies of a send (latencyMax), ms. A broker with at least this latency is avoided for the time at the same
#: position in the next list.
LATENCY_MAX_MS = (50, 100, 550, 1800, 3000, 5000, 15000)
#: Times for which a broker is avoided (notAvailableDuration), ms.
NOT_AVAILABLE_DURATION_MS = (0, 0, 2000, 5000, 6000, 10000, 30000)
#: The client does not avoid a broker after a send that takes less than this, ms.
_QUICK_MS = next(ms for ms, duration in zip(LATENCY_MAX_MS, NOT_AVAILABLE_DURATION_MS, strict=True) if duration)
#: A failed send counts as one with this latency, ms.
FAILED_LATENCY_MS = 10_000
#: Shortest time between two probes of a broker (detectInterval), ms.
DETECT_INTERVAL_MS = 2000
#: Timeout of a probe (detectTimeout), ms.
DETECT_TIMEOUT_MS = 200
#: A broker is stalled, and selected last, if sends are in flight and no response arrives for this time, ms.
STALLED_MS = 100


def not_available_duration(latency_ms: int) -> int:
    """Returns how long to avoid a broker after a send that took `latency_ms`, in ms."""
    for least, duration in zip(reversed(LATENCY_MAX_MS), reversed(NOT_AVAILABLE_DURATION_MS), strict=True):
        if latency_ms >= least:
            return duration
    return 0


@dataclass(slots=True)
class FaultItem:
    """State of one broker.

    The broker counts as available from `start_ms` on. It can be probed again from `check_ms` on. `under_way` sends are
    in flight. `silent_ms` is the time of the last response, or of the first of these sends if it is newer.
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
    """The brokers to avoid. `items` is keyed by broker name; a broker without an item has had no send.

    Two threads may use it at the same time (`BlockingSends`). No method iterates over `items` itself. Each change of a
    counter is one statement without a call, which the GIL does not interrupt.
    """

    def __init__(self) -> None:
        self.items: dict[str, FaultItem] = {}

    def begin(self, broker: str, now_ms: int) -> FaultItem:
        """Records the start of a send. Pass the returned item to `end` or `stored`."""
        item = self.items.get(broker) or self._item(broker)
        if not item.under_way:
            item.silent_ms = now_ms
        item.under_way += 1
        return item

    def end(self, item: FaultItem, now_ms: int, *, answered: bool) -> None:
        """Records the end of a send. `answered` is true if any response came, also an error."""
        item.under_way -= 1
        if answered:
            item.silent_ms = now_ms

    def stored(self, item: FaultItem, began_ms: int, now_ms: int) -> None:
        """Records the end of a successful send; it replaces `end` and `update`."""
        item.under_way -= 1
        item.silent_ms = now_ms
        item.latency_ms = latency_ms = now_ms - began_ms
        item.reachable = True
        if latency_ms >= _QUICK_MS:
            item.start_ms = max(item.start_ms, now_ms + not_available_duration(latency_ms))

    def update(
        self, broker: str, latency_ms: int, now_ms: int, *, isolate: bool = False, reachable: bool = True
    ) -> None:
        """Records the latency of a send. A failed send (`isolate`) counts as one that took FAILED_LATENCY_MS."""
        item = self._item(broker)
        item.latency_ms = latency_ms
        item.reachable = reachable
        duration = not_available_duration(FAILED_LATENCY_MS if isolate else latency_ms)
        if duration > 0:
            item.start_ms = max(item.start_ms, now_ms + duration)

    def _item(self, broker: str) -> FaultItem:
        return self.items.setdefault(broker, FaultItem())

    def is_available(self, broker: str, now_ms: int) -> bool:
        item = self.items.get(broker)
        return item is None or now_ms >= item.start_ms

    def is_stalled(self, broker: str, now_ms: int) -> bool:
        """Returns true if the broker has sends in flight, and has sent no response for more than STALLED_MS."""
        item = self.items.get(broker)
        return item is not None and item.is_stalled(now_ms)

    def is_reachable(self, broker: str) -> bool:
        item = self.items.get(broker)
        return item is None or item.reachable

    def select(self, info: TopicPublishInfo, last_broker: str | None, now_ms: int) -> MessageQueue:
        """Returns the next queue, preferably of an available broker that is neither `last_broker` nor stalled.

        Otherwise it prefers a reachable broker that is not stalled, then a reachable broker, then any. If the topic has
        one broker, it returns the next queue. `info` must have queues.
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
        """Returns the brokers to probe now. Each of them is due again after DETECT_INTERVAL_MS."""
        names = [broker for broker, item in list(self.items.items()) if now_ms >= item.check_ms]
        for broker in names:
            self.items[broker].check_ms = now_ms + DETECT_INTERVAL_MS
        return names

    def detected(self, broker: str) -> None:
        """Records a successful probe: the broker is reachable again."""
        if broker in self.items:
            self.items[broker].reachable = True

    def forget(self, broker: str) -> None:
        """Removes a broker that is in no route."""
        self.items.pop(broker, None)
