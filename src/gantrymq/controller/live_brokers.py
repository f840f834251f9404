"""LiveBrokers: who has sent a heartbeat of late, and how far it was (DefaultBrokerHeartbeatManager). Plain.

In memory alone, of this controller: brokers send heartbeats to all controllers. Times are milliseconds of any clock
that doesn't jump.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: DEFAULT_BROKER_CHANNEL_EXPIRED_TIME: how long a broker lives that doesn't say so itself, ms.
DEFAULT_TIMEOUT_MS = 10_000
#: Silent brokers are looked for no more often than each so many ms: with 20,000 of them a look takes 3 ms.
SOONEST_MS = 100
#: A broker that says nothing of it is elected last.
LAST_PRIORITY = (1 << 31) - 1
#: More brokers don't live for one controller; made up, they would fill its memory.
MAX_BROKERS = 20_000


class BrokerIdentity(NamedTuple):
    """One broker. The id is the controller's, not the 0 or 1 that it registers with NameServers."""

    cluster_name: str
    broker_name: str
    broker_id: int


@dataclass(slots=True)
class LiveBroker:
    """What its heartbeats said; `connection` is the one that the last of them came by."""

    address: str
    connection: object
    last_update_ms: int
    timeout_ms: int
    election_priority: int
    #: How far its log is: the epoch of its last entry, and where it ends. Only the furthest that was heard of.
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    #: The number of the last sign of life among those of all brokers, a heartbeat or another request.
    word: int = 0

    def is_active(self, now_ms: int) -> bool:
        return self.last_update_ms + self.timeout_ms >= now_ms


class LiveBrokers:
    """Brokers by identity, in the order in which they came."""

    def __init__(self) -> None:
        self._brokers: dict[BrokerIdentity, LiveBroker] = {}
        #: Most brokers have one connection each.
        self._by_connection: dict[object, dict[BrokerIdentity, None]] = {}
        #: Signs of life so far: what is to be told apart may come within one millisecond.
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
        """Whether there was room for it."""
        live = self._brokers.get(identity)
        if live is None:
            if len(self._brokers) >= MAX_BROKERS:
                return False
            live = LiveBroker(address, connection, now_ms, timeout_ms, election_priority)
            self._brokers[identity] = live
            self._by_connection.setdefault(connection, {})[identity] = None
        elif live.connection is not connection:
            # It came again before its old connection's end was noticed: that end is no longer its own.
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
        """What is known of it; None when it has been silent for too long, or never came."""
        live = self._brokers.get(identity)
        return live if live is not None and live.is_active(now_ms) else None

    def spoke(self, identity: BrokerIdentity) -> None:
        """It has asked for something. That makes it live no longer."""
        if (live := self._brokers.get(identity)) is not None:
            self.words += 1
            live.word = self.words

    def of(self, connection: object) -> list[BrokerIdentity]:
        """Those whose heartbeats come by it."""
        return list(self._by_connection.get(connection, ()))

    def all_active(self, now_ms: int) -> list[BrokerIdentity]:
        return [identity for identity, live in self._brokers.items() if live.is_active(now_ms)]

    def expire(self, now_ms: int) -> list[BrokerIdentity]:
        """Forgets who fell silent."""
        silent = [identity for identity, live in self._brokers.items() if not live.is_active(now_ms)]
        for identity in silent:
            self._forget_connection(identity, self._brokers.pop(identity))
        return silent

    def next_expiry_ms(self) -> int | None:
        """When the next of them will have fallen silent if nothing more comes; None for nobody."""
        return min((live.last_update_ms + live.timeout_ms + 1 for live in self._brokers.values()), default=None)

    def connection_closed(self, connection: object) -> list[BrokerIdentity]:
        """Forgets the brokers whose heartbeats came by it."""
        gone = list(self._by_connection.pop(connection, ()))
        for identity in gone:
            del self._brokers[identity]
        return gone

    def has(self, connection: object) -> bool:
        """Heartbeats came by it."""
        return connection in self._by_connection

    def _forget_connection(self, identity: BrokerIdentity, live: LiveBroker) -> None:
        identities = self._by_connection[live.connection]
        del identities[identity]
        if not identities:
            del self._by_connection[live.connection]
