"""FormerLeases: what a controller that begins to lead doesn't know: to which masters the one before it granted leases.

A broker says to each controller that it lives, but one that is cut off from the new leader may have been heard by the
former one until its last moment, and takes messages until that lease is over. So for as long as a lease can be the new
leader replaces nobody whom it hasn't heard since it leads. Whose connection it sees closed has ended, as at any other
time.
"""

from __future__ import annotations

from gantrymq.controller.broker_set import BrokerSet
from gantrymq.controller.live_brokers import DEFAULT_TIMEOUT_MS, BrokerIdentity
from gantrymq.controller.replicas import Live

#: No lease is longer, whatever a broker's heartbeat asks for, ms.
MAX_LEASE_MS = DEFAULT_TIMEOUT_MS


class FormerLeases:
    """Times are milliseconds of the clock that LiveBrokers has."""

    def __init__(self) -> None:
        self._until_ms: int | None = None
        #: Those who have sent a heartbeat since: their leases are known, and none was granted before for longer.
        self._heard: set[BrokerIdentity] = set()

    def begin(self, now_ms: int) -> None:
        """This controller leads since now."""
        self._until_ms = now_ms + MAX_LEASE_MS
        self._heard.clear()

    def heard(self, broker: BrokerIdentity, now_ms: int) -> None:
        """It has sent a heartbeat."""
        if self._until_ms is not None and now_ms < self._until_ms:
            self._heard.add(broker)

    def left_ms(self, known: BrokerSet, live: Live, now_ms: int) -> int:
        """How long a lease of the set's master may hold of which nothing is known here; 0: another may be elected."""
        if self._until_ms is None or known.master is None:
            return 0
        master = BrokerIdentity(known.cluster_name, known.broker_name, known.master)
        if master in self._heard or live(master) is not None:
            return 0
        return max(self._until_ms - now_ms, 0)
