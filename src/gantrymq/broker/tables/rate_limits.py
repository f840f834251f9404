"""Rate limits of topics, consumer groups and client hosts, in messages and in bytes a second.

Sends count for their topic and for the client's host. Deliveries (pulls and pops) count for their group and for the
client's host. A host has separate buckets for sends and for deliveries. Above a limit, the broker refuses the request
with a time after which the client repeats it.

A request is admitted if its buckets are not empty, and may overdraw them. The next requests then wait until the debt
is paid, so a batch may be larger than the burst, and the size of a delivery need not be known before it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.tables.attributes import RATE_LIMIT_BYTES, RATE_LIMIT_MESSAGES, limit_of
from gantrymq.errors import RefusalReason, RequestRefused
from gantrymq.limits import RATE_LIMITED_HOSTS
from gantrymq.protocol.batch import count_messages
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.remoting.connection import Connection
from gantrymq.system.clock import monotonic

#: A bucket contains as much as its rate allows in this time, in seconds.
BURST_S = 0.1
#: A full table of hosts is searched for idle hosts at most once in this time, in seconds.
_SEARCH_S = 1.0


class TokenBucket:
    """Allows `rate` units a second, and a burst of BURST_S or of one unit. Times are in seconds."""

    __slots__ = ("_capacity", "_level", "_rate", "_updated")

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._capacity = max(rate * BURST_S, 1.0)
        self._level = self._capacity
        self._updated = now

    def level(self, now: float) -> float:
        """Returns the units that are left. A negative level is a debt."""
        if now > self._updated:
            self._level = min(self._capacity, self._level + (now - self._updated) * self._rate)
            self._updated = now
        return self._level

    def is_full(self, now: float) -> bool:
        """Returns whether the bucket is as a new one."""
        return self.level(now) >= self._capacity

    def wait_s(self, now: float) -> float:
        """Returns 0 if the bucket is not empty, otherwise the time until it is half full.

        If clients repeated their requests as soon as there is one unit, most of these requests would be refused again.
        """
        level = self.level(now)
        return 0.0 if level > 0 else (self._capacity / 2 - level) / self._rate

    def take(self, units: int) -> None:
        """Takes units, even if the bucket has fewer. Call `wait_s` or `level` first."""
        self._level -= units


class Rates(NamedTuple):
    """The largest numbers of messages and of bytes a second. None means no limit."""

    messages: int | None
    size: int | None

    @property
    def is_limit(self) -> bool:
        return self.messages is not None or self.size is not None

    def __str__(self) -> str:
        limits = [f"{self.messages} messages"] if self.messages is not None else []
        limits += [f"{self.size} bytes"] if self.size is not None else []
        return " and ".join(limits)


class RateLimit:
    """The buckets of one topic, group or host. `refused` is the number of requests that it has refused."""

    __slots__ = ("_bytes", "_messages", "rates", "refused")

    def __init__(self, rates: Rates, now: float, refused: int = 0) -> None:
        self.rates = rates
        self.refused = refused
        self._messages = TokenBucket(rates.messages, now) if rates.messages is not None else None
        self._bytes = TokenBucket(rates.size, now) if rates.size is not None else None

    def wait_s(self, now: float) -> float:
        """Returns the time until a request is admitted, in seconds. 0 means now."""
        wait = self._messages.wait_s(now) if self._messages is not None else 0.0
        return max(wait, self._bytes.wait_s(now)) if self._bytes is not None else wait

    def check(self, code: int, what: str, now: float) -> None:
        """Raises RequestRefused with this code, and counts the refusal, if the limit of `what` is exceeded."""
        wait_s = self.wait_s(now)
        if wait_s > 0:
            self.refused += 1
            raise _refusal(code, what, self.rates, wait_s)

    def take(self, messages: int, size: int) -> None:
        """Counts an admitted request."""
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(size)

    def most(self, messages: int, size: int, now: float) -> tuple[int, int]:
        """Returns how many of these messages and bytes are left, at least one of each."""
        if self._messages is not None:
            messages = max(1, min(messages, int(self._messages.level(now))))
        if self._bytes is not None:
            size = max(1, min(size, int(self._bytes.level(now))))
        return messages, size

    def is_idle(self, now: float) -> bool:
        """Returns whether both buckets are full."""
        return all(bucket is None or bucket.is_full(now) for bucket in (self._messages, self._bytes))


class HostLimits:
    """The limits of the hosts of clients, `max_hosts` at most.

    If the table is full, idle hosts are removed. If there are none, all further hosts share one limit.
    """

    def __init__(self, rates: Rates, now: float, max_hosts: int = RATE_LIMITED_HOSTS) -> None:
        self._rates = rates
        self._max_hosts = max_hosts
        self._hosts: dict[str, RateLimit] = {}
        self._others = RateLimit(rates, now)
        self._searched = -math.inf

    def __len__(self) -> int:
        return len(self._hosts)

    def of(self, connection: Connection, now: float) -> RateLimit:
        """Returns the limit of a connection's host."""
        host = connection.address.rpartition(":")[0]
        limit = self._hosts.get(host)
        if limit is not None:
            return limit
        if len(self._hosts) >= self._max_hosts:
            if now - self._searched >= _SEARCH_S:
                self._searched = now
                self._hosts = {name: one for name, one in self._hosts.items() if not one.is_idle(now)}
            if len(self._hosts) >= self._max_hosts:
                return self._others
        limit = self._hosts[host] = RateLimit(self._rates, now)
        return limit


class DeliveryLimits(NamedTuple):
    """The limits of one admitted pull or pop."""

    limits: tuple[RateLimit, ...]
    now: float

    def most(self, messages: int, size: int) -> tuple[int, int]:
        """Returns how many of these messages and bytes may be delivered."""
        for limit in self.limits:
            messages, size = limit.most(messages, size, self.now)
        return messages, size

    def take(self, messages: int, size: int) -> None:
        """Counts the delivered messages and bytes."""
        for limit in self.limits:
            limit.take(messages, size)


class RateLimits:
    """All rate limits of one broker.

    Changed attributes and keys take effect with the next request. A limit whose rates are unchanged keeps its buckets.

    Attributes:
        limits_clients: Whether the configuration limits the hosts of clients.
    """

    def __init__(self, config: BrokerConfig, clock: Callable[[], float] = monotonic) -> None:
        self._config = config
        self._clock = clock
        #: Name -> limit. Only administrators set attributes, so clients can't add entries.
        self._topics: dict[str, RateLimit] = {}
        self._groups: dict[str, RateLimit] = {}
        self._client_rates = Rates(None, None)
        self._refused_clients = 0
        self.config_changed()

    def config_changed(self) -> None:
        """Applies the configuration keys for clients."""
        config = self._config
        rates = Rates(config.client_rate_limit_messages or None, config.client_rate_limit_bytes or None)
        self.limits_clients = rates.is_limit
        if rates != self._client_rates or not rates.is_limit:
            self._client_rates, now = rates, self._clock()
            self._senders, self._receivers = HostLimits(rates, now), HostLimits(rates, now)

    def topics_deleted(self, names: Collection[str]) -> None:
        for name in names:
            self._topics.pop(name, None)

    def group_deleted(self, name: str) -> None:
        self._groups.pop(name, None)

    def limits_sends(self, topic: TopicConfig) -> bool:
        """Returns whether sends to a topic must pass `admit_send`."""
        return self.limits_clients or (bool(topic.attributes) and _rates(topic.attributes).is_limit)

    def admit_send(self, topic: TopicConfig, connection: Connection, body: bytes, *, is_batch: bool) -> None:
        """Counts a send. Raises RequestRefused above a limit."""
        now = self._clock()
        limit = self._of(self._topics, topic.topic_name, topic.attributes, now)
        host = self._senders.of(connection, now) if self.limits_clients else None
        code = ResponseCode.SYSTEM_BUSY
        if limit is not None:
            limit.check(code, f"the topic[{topic.topic_name}]", now)
        self._check_host(code, connection, host, now)
        messages = count_messages(body) if is_batch else 1
        for one in (limit, host):
            if one is not None:
                one.take(messages, len(body))

    def admit_delivery(self, group: SubscriptionGroupConfig | None, connection: Connection) -> DeliveryLimits | None:
        """Returns the limits of a pull or pop, or None if there are none. Raises RequestRefused above a limit.

        The code is FLOW_CONTROL: Java's consumers repeat the request after 20 ms, and after 3 s for any other code.
        """
        if not self.limits_clients and (group is None or not group.attributes):
            return None
        now = self._clock()
        limit = self._of(self._groups, group.group_name, group.attributes, now) if group is not None else None
        host = self._receivers.of(connection, now) if self.limits_clients else None
        code = ResponseCode.FLOW_CONTROL
        if group is not None and limit is not None:
            limit.check(code, f"the consumer group[{group.group_name}]", now)
        self._check_host(code, connection, host, now)
        limits = tuple(one for one in (limit, host) if one is not None)
        return DeliveryLimits(limits, now) if limits else None

    def refused(self) -> Iterator[tuple[str, str, int]]:
        """Yields (kind, name, number of refused requests) of each limit. The hosts of clients are one entry.

        A topic or group keeps its entry until it is deleted.
        """
        for kind, limits in (("topic", self._topics), ("group", self._groups)):
            for name, limit in limits.items():
                yield kind, name, limit.refused
        if self.limits_clients or self._refused_clients:
            yield "client", "", self._refused_clients

    def _of(
        self, limits: dict[str, RateLimit], name: str, attributes: Mapping[str, str], now: float
    ) -> RateLimit | None:
        rates = _rates(attributes)
        if not rates.is_limit:
            return None
        limit = limits.get(name)
        if limit is None or limit.rates != rates:
            limit = limits[name] = RateLimit(rates, now, limit.refused if limit is not None else 0)
        return limit

    def _check_host(self, code: int, connection: Connection, limit: RateLimit | None, now: float) -> None:
        if limit is None:
            return
        try:
            limit.check(code, f"the client[{connection.address.rpartition(':')[0]}]", now)
        except RequestRefused:
            # A change of the configuration replaces the limits, so they do not keep this number.
            self._refused_clients += 1
            raise


def _rates(attributes: Mapping[str, str]) -> Rates:
    return Rates(limit_of(attributes, RATE_LIMIT_MESSAGES), limit_of(attributes, RATE_LIMIT_BYTES))


def _refusal(code: int, what: str, rates: Rates, wait_s: float) -> RequestRefused:
    wait_ms = math.ceil(wait_s * 1000)
    return RequestRefused(
        code,
        f"[RATELIMIT]{what} is limited to {rates} a second: try again in {wait_ms} ms",
        RefusalReason.RATE_LIMITED,
        retry_after_ms=wait_ms,
    )
