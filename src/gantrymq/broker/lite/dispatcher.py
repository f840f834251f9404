"""LiteDispatcher: tells clients which of their lite topics have messages (`LiteEventDispatcher`).

A light queue with messages is put into `LiteClient.ready` of one subscriber of each group. The client's next pop reads
it. If a client does not pop for some time, its ready queues go to other subscribers. A queue with messages in flight is
not ready. It becomes ready again when they are acknowledged, or when they are visible again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from math import inf

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.lite.subscriptions import LiteClient, LiteSubscriptions
from gantrymq.broker.pop import OrderlyPops, PopLongPolling, QueueKey
from gantrymq.protocol.multi_dispatch import LIGHT_QUEUE_ID
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system import clock, randomness
from gantrymq.system.clock import monotonic

#: A client with ready queues that has not popped for this time, in seconds, is considered absent.
_ABSENT_S = 10.0
#: Number of queues that one iteration of the event loop handles.
_AT_ONCE = 100
#: Interval of the check for absent clients, in seconds, and the pause between two slices of a check.
_CHECK_S = 5.0
_PAUSE_S = 0.01


class LiteDispatcher:
    """Decides which client reads a light queue. `waiting` are the pops of the clients, by `wait_key`."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        subscriptions: LiteSubscriptions,
        orderly: OrderlyPops,
        waiting: PopLongPolling,
    ) -> None:
        self._store = context.store
        self._offsets = context.offsets
        self._subscriptions = subscriptions
        self._orderly = orderly
        self._waiting = waiting
        #: Heap of (time in ms, group, light queue): queues whose messages in flight become visible again. An entry is
        #: outdated if `_times` has another time.
        self._visible: list[tuple[int, str, str]] = []
        self._times: dict[tuple[str, str], int] = {}
        self._showing = context.jobs.repeating("dispatch lite topics that are visible again", self._show)
        self._checking = context.jobs.repeating("check for absent clients of lite topics", self._check, _CHECK_S)
        self._check_steps: Iterator[None] | None = None

    def start(self) -> None:
        self._showing.start()
        self._checking.start()

    def stop(self) -> None:
        self._showing.cancel()
        self._checking.cancel()

    def forget(self) -> None:
        """Drops everything that is scheduled, because this broker is a slave now."""
        self._visible.clear()
        self._times.clear()

    def arrived(self, queue: ConsumeQueue) -> None:
        """Handles new messages of a light queue."""
        for group in self._subscriptions.groups(queue.topic):
            self.dispatch(queue.topic, group)

    def dispatch(self, name: str, group: str, absent: LiteClient | None = None) -> None:
        """Makes a light queue ready for one subscriber of a group, if possible not for `absent`."""
        subscribers = self._subscriptions.subscribers(name, group)
        if not subscribers:
            return
        present = [client for client in subscribers if client is not absent and not self._is_absent(client)]
        chosen = next((client for client in present if name in client.ready), None)
        if chosen is None:
            candidates = present or subscribers
            chosen = candidates[randomness.randrange(len(candidates))]
            chosen.ready[name] = None
        self._waiting.wake(wait_key(chosen))

    def dispatch_all(self, client: LiteClient) -> Iterable[None]:
        """Makes all lite topics of a client ready that have messages for its group. Yields after some of them."""
        for number, queue in enumerate(list(client.queues.values()), 1):
            if self.has_messages(queue, client.group):
                self.dispatch(queue.topic, client.group)
            if not number % _AT_ONCE:
                yield

    def has_messages(self, queue: ConsumeQueue, group: str) -> bool:
        """Returns whether a group has not read all messages of a light queue."""
        position = self._offsets.query(group, queue.topic, LIGHT_QUEUE_ID)
        end = self._store.confirmed_end(queue)
        return end > queue.min_offset and position != end

    def popped(self, name: str, group: str, visible_ms: int) -> None:
        """Schedules the next dispatch of a light queue with messages in flight, at a time in ms since the epoch.

        At an earlier time that is scheduled already, the queue is only scheduled again.
        """
        if self._times.get((group, name), visible_ms + 1) <= visible_ms:
            return
        self._times[group, name] = visible_ms
        if len(self._visible) > 2 * len(self._times) + _AT_ONCE:
            self._visible = [(at_ms, *key) for key, at_ms in self._times.items()]
            heapq.heapify(self._visible)
        else:
            heapq.heappush(self._visible, (visible_ms, group, name))
        self._showing.wake(max((visible_ms - clock.now_ms()) / 1000, 0.0))

    def changed(self, name: str, group: str) -> None:
        """Handles a new invisible duration, which may end before the one at the pop."""
        info = self._orderly.find(name, group, LIGHT_QUEUE_ID)
        if info is not None:
            self.popped(name, group, info.blocked_until(0))

    def _show(self) -> float:
        now_ms = clock.now_ms()
        for _ in range(_AT_ONCE):
            if not self._visible or self._visible[0][0] > now_ms:
                break
            at_ms, group, name = heapq.heappop(self._visible)
            if self._times.get((group, name)) != at_ms:
                continue
            del self._times[group, name]
            info = self._orderly.find(name, group, LIGHT_QUEUE_ID)
            if info is None:
                continue
            if (until_ms := info.blocked_until(0)) > now_ms:
                self.popped(name, group, until_ms)
            else:
                self.dispatch(name, group)
        return max((self._visible[0][0] - clock.now_ms()) / 1000, 0.0) if self._visible else inf

    def _is_absent(self, client: LiteClient) -> bool:
        return bool(client.ready) and monotonic() - client.accessed_at > _ABSENT_S

    def _check(self) -> float:
        """Runs one slice of a check. Returns the pause to the next slice or check, in seconds."""
        if self._check_steps is None:
            self._check_steps = self._give_away()
        for _ in self._check_steps:
            return _PAUSE_S
        self._check_steps = None
        return _CHECK_S

    def _give_away(self) -> Iterator[None]:
        """Makes the ready queues of absent clients ready for other subscribers, if there are any.

        Yields after some of them.
        """
        # Found first: a client that gets a queue from another one here has had no time to pop it.
        for number, client in enumerate([one for one in self._subscriptions if self._is_absent(one)], 1):
            for count, name in enumerate(list(client.ready), 1):
                if not self._is_absent(client):
                    break
                client.ready.pop(name, None)
                self.dispatch(name, client.group, client)
                if not count % _AT_ONCE:
                    yield
            if not number % _AT_ONCE:
                yield


def wait_key(client: LiteClient) -> QueueKey:
    """Returns the key of the waiting pops of a client."""
    return client.client_id, client.group, LIGHT_QUEUE_ID
