"""Tracks the brokers with recent heartbeats and the progress of their logs (DefaultBrokerHeartbeatManager).

The data is only in the memory of this controller, because brokers send heartbeats to all controllers. No I/O, no clock:
times are milliseconds of any monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: Heartbeat timeout of a broker that sends no timeout, in milliseconds (DEFAULT_BROKER_CHANNEL_EXPIRED_TIME).
DEFAULT_TIMEOUT_MS = 10_000
#: Shortest interval of the check for silent brokers, in milliseconds. With 20,000 brokers a check takes 3 ms.
SOONEST_MS = 100
#: Priority of a broker that sends no priority. Such a broker is elected last.
LAST_PRIORITY = (1 << 31) - 1
#: Maximum number of live brokers, so that forged heartbeats cannot fill the memory.
MAX_BROKERS = 20_000


class BrokerIdentity(NamedTuple):
    """Identifies a broker. The id is assigned by the controller. It is not the id (0 or 1) in NameServers."""

    cluster_name: str
    broker_name: str
    broker_id: int


@dataclass(slots=True)
class LiveBroker:
    """Data of the latest heartbeats. `connection` is the connection of the last heartbeat."""

    address: str
    connection: object
    last_update_ms: int
    timeout_ms: int
    election_priority: int
    #: Progress of the broker's log: the epoch of the last entry and the end of the log, as the highest reported values.
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    #: Sequence number of the broker's last request. The numbers count the requests of all brokers.
    word: int = 0

    def is_active(self, now_ms: int) -> bool:
        return self.last_update_ms + self.timeout_ms >= now_ms


class LiveBrokers:
    """The live brokers by identity, in the order of their arrival."""

    def __init__(self) -> None:
        self._brokers: dict[BrokerIdentity, LiveBroker] = {}
        #: Brokers by connection. Most brokers have one connection each.
        self._by_connection: dict[object, dict[BrokerIdentity, None]] = {}
        #: Number of requests so far. A sequence number orders requests within the same millisecond.
        self.words = 0

    def __len__(self) -> int:
        return len(self._brokers)

    def heartbeat(
        self,
        identity: BrokerIdentity,
        address: str,
        connection: object,
        now_ms: int,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        epoch: int = -1,
        max_offset: int = -1,
        confirm_offset: int = -1,
        election_priority: int = LAST_PRIORITY,
    ) -> bool:
        """Records a heartbeat. Returns false if there are too many brokers."""
        live = self._brokers.get(identity)
        if live is None:
            if len(self._brokers) >= MAX_BROKERS:
                return False
            live = LiveBroker(address, connection, now_ms, timeout_ms, election_priority)
            self._brokers[identity] = live
            self._by_connection.setdefault(connection, {})[identity] = None
        elif live.connection is not connection:
            # The broker reconnected before the controller detected the end of the old connection. Only the new
            # connection counts.
            self._forget_connection(identity, live)
            live.connection = connection
            self._by_connection.setdefault(connection, {})[identity] = None
        live.address = address
        live.last_update_ms = now_ms
        live.timeout_ms = timeout_ms
        live.election_priority = election_priority
        if (epoch, max_offset) > (live.epoch, live.max_offset):
            live.epoch, live.max_offset, live.confirm_offset = epoch, max_offset, confirm_offset
        return True

    def active(self, identity: BrokerIdentity, now_ms: int) -> LiveBroker | None:
        """Returns the data of a broker, or None if it is unknown or has been silent for too long."""
        live = self._brokers.get(identity)
        return live if live is not None and live.is_active(now_ms) else None

    def spoke(self, identity: BrokerIdentity) -> None:
        """Records that a broker sent a heartbeat or another request. Does not extend the heartbeat timeout."""
        if (live := self._brokers.get(identity)) is not None:
            self.words += 1
            live.word = self.words

    def of(self, connection: object) -> list[BrokerIdentity]:
        """Returns the brokers whose heartbeats use this connection."""
        return list(self._by_connection.get(connection, ()))

    def all_active(self, now_ms: int) -> list[BrokerIdentity]:
        return [identity for identity, live in self._brokers.items() if live.is_active(now_ms)]

    def expire(self, now_ms: int) -> list[BrokerIdentity]:
        """Removes and returns the silent brokers."""
        silent = [identity for identity, live in self._brokers.items() if not live.is_active(now_ms)]
        for identity in silent:
            self._forget_connection(identity, self._brokers.pop(identity))
        return silent

    def next_expiry_ms(self) -> int | None:
        """Returns the time at which the next broker expires if no heartbeat arrives. None if there are no brokers."""
        return min((live.last_update_ms + live.timeout_ms + 1 for live in self._brokers.values()), default=None)

    def connection_closed(self, connection: object) -> list[BrokerIdentity]:
        """Removes and returns the brokers whose heartbeats use this connection."""
        gone = list(self._by_connection.pop(connection, ()))
        for identity in gone:
            del self._brokers[identity]
        return gone

    def has(self, connection: object) -> bool:
        """Returns true if heartbeats use this connection."""
        return connection in self._by_connection

    def _forget_connection(self, identity: BrokerIdentity, live: LiveBroker) -> None:
        identities = self._by_connection[live.connection]
        del identities[identity]
        if not identities:
            del self._by_connection[live.connection]
