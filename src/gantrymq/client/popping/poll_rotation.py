"""PollRotation: `receive` of the simple consumers, which polls topics and brokers round robin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.large_bodies import make_ready
from gantrymq.client.consuming.short_polls import ShortPolls
from gantrymq.client.failover import is_role_change
from gantrymq.errors import (
    BrokerError,
    BrokerUnavailable,
    GantryError,
    ProtocolError,
    RemotingError,
    RequestTimeout,
)
from gantrymq.protocol.message import MessageExt
from gantrymq.system import clock, randomness

#: Largest number of messages of one pop (`PopMessageProcessor`).
MAX_MESSAGES = 32
#: Default invisible duration, in seconds.
INVISIBLE_S = 60.0
#: Default timeout of `receive`, in seconds.
RECEIVE_TIMEOUT_S = 15.0
#: Longest wait for messages of one topic on one broker if there are several such targets, ms.
_TIME_SLICE_MS = 1000
#: Brokers check once a second whether a wait has timed out. The wait at a broker therefore ends this much earlier, ms.
_LATE_MS = 300
#: For the rest of the time, the client polls with this pause, s.
PAUSE_S = 0.1
#: Time that a call may take in addition to its wait for messages: for one request, ms, and for a whole `receive`, s.
RESPONSE_MS = 1150
_GRACE_S = 0.9
#: Longest wait for a new route if no broker accepts requests, s.
_ROUTE_CHANGE_S = 1.0
#: Pause after POLLING_FULL: too many requests wait at the broker, s.
BUSY_DELAY_S = 0.5

#: A topic and the name of a broker with messages of it.
Target = tuple[str, str]
#: Pops from a target, and waits for messages for at most a number of ms.
Pop = Callable[[Target, int], Awaitable[list[MessageExt]]]


class PollRotation:
    """Polls the targets of one consumer, one request at a time. Unreachable brokers are skipped.

    Args:
        client: Connections and routes.
        check_open: Raises ClientClosed if the consumer is closed.
        targets: Returns all targets that may have messages. Raises NoRouteInfo if there are none.
    """

    def __init__(
        self, client: ClientInstance, check_open: Callable[[], None], targets: Callable[[], Awaitable[list[Target]]]
    ) -> None:
        self._client = client
        self._check_open = check_open
        self._targets = targets
        self._next_target = randomness.randrange(1 << 30)

    async def receive(self, pop: Pop, timeout_s: float) -> list[MessageExt]:
        """Returns the messages of the first pop that has some, or an empty list after `timeout_s`. Raises GantryError.

        Bodies beyond the limit for large bodies are decompressed when they are read.
        """
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                messages = await self._receive(pop, clock.monotonic() + timeout_s)
        except TimeoutError:
            addresses = ";".join(self._client.routes.name_servers)
            raise RequestTimeout(f"no broker or NameServer answered in {timeout_s:g} s", addresses) from None
        await make_ready(messages)
        return messages

    async def _receive(self, pop: Pop, deadline: float) -> list[MessageExt]:
        targets = await self._targets()
        # Polls each target once without waiting, then long-polls the targets round robin.
        polled = 0
        short_polls = ShortPolls()
        while True:
            target = topic, broker_name = targets[self._next_target % len(targets)]
            self._next_target += 1
            left_ms = max(0, round(1000 * (deadline - clock.monotonic())))
            poll_ms = 0 if polled < len(targets) - 1 else left_ms if len(targets) == 1 else min(left_ms, _TIME_SLICE_MS)
            poll_ms = max(poll_ms - _LATE_MS, 0)
            began = clock.monotonic()
            try:
                messages = await pop(target, poll_ms)
            except (RemotingError, BrokerUnavailable, ProtocolError, BrokerError) as e:
                self._check_open()
                if isinstance(e, BrokerError) and not is_role_change(e):
                    raise
                targets.remove(target)
                if targets:
                    self._client.report_failure(topic, e)
                elif await self._has_moved(topic, broker_name, e, deadline):
                    targets = await self._targets()
                else:
                    raise
                self._client.failure_log.report(f"can't receive from topic {topic} on broker {broker_name}", e)
                continue
            polled += 1
            if messages or (polled >= len(targets) and clock.monotonic() >= deadline):
                return messages
            if polled >= len(targets):
                pause_s = short_polls.pause(False, clock.monotonic() - began) if poll_ms else PAUSE_S
                await asyncio.sleep(min(pause_s, left_ms / 1000))

    async def _has_moved(self, topic: str, broker_name: str, error: GantryError, deadline: float) -> bool:
        """Returns whether the topic's route has changed since the failed request, or changes within a second."""
        client = self._client
        route, left_s = client.routes.cached(topic), deadline - clock.monotonic()
        if left_s <= 0:
            client.report_failure(topic, error)
            return False
        refused_by = error.address if isinstance(error, BrokerError) else None
        if refused_by not in (None, client.routes.master_address(broker_name)):
            return True
        await client.recover(topic, broker_name, error, min(left_s, _ROUTE_CHANGE_S))
        return client.routes.cached(topic) is not route
