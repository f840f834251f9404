"""Delays elections until the leases of the previous leader have ended. The new leader has no record of these leases.

A broker sends heartbeats to every controller. A master that is cut off from the new leader may have a recent lease from
the previous leader. It accepts messages until this lease ends. If the new leader has received no heartbeat from a
master, it therefore waits until MAX_LEASE_MS after the start of its own term before it replaces the master. If the
master's connection to the new leader closes, the master has ended, and no wait is needed.
"""

from __future__ import annotations

from gantrymq.controller.broker_set import BrokerSet
from gantrymq.controller.live_brokers import BrokerIdentity
from gantrymq.controller.replicas import Live

#: The longest lease, in ms, regardless of the timeout in a heartbeat. A restarted controller waits this long before it
#: replaces a master that died together with it. Decision record: docs/decisions/controller-leases.md.
MAX_LEASE_MS = 4_000


class FormerLeases:
    """The delay of elections in one term. Times are in milliseconds of the clock of LiveBrokers."""

    def __init__(self) -> None:
        self._until_ms: int | None = None
        #: Brokers that sent a heartbeat in this term. Their leases come from this leader.
        self._heard: set[BrokerIdentity] = set()

    def begin(self, now_ms: int) -> None:
        """Starts the delay, at the start of this controller's term."""
        self._until_ms = now_ms + MAX_LEASE_MS
        self._heard.clear()

    def heard(self, broker: BrokerIdentity, now_ms: int) -> None:
        """Records a heartbeat of `broker`."""
        if self._until_ms is not None and now_ms < self._until_ms:
            self._heard.add(broker)

    def left_ms(self, known: BrokerSet, live: Live, now_ms: int) -> int:
        """Returns for how many ms the set's master may have a lease of the previous leader. 0 allows an election."""
        if self._until_ms is None or known.master is None:
            return 0
        master = BrokerIdentity(known.cluster_name, known.broker_name, known.master)
        if master in self._heard or live(master) is not None:
            return 0
        return max(self._until_ms - now_ms, 0)
