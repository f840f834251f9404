"""The leases that a leading controller grants to brokers in its responses to heartbeats.

A master accepts messages while its lease is valid, and no other master is elected before the lease ends. After a new
master is selected, no lease is granted in that broker set until the change is stored. Otherwise a silent master could
renew its lease at this moment. When the change is stored, the set has a new epoch, and a broker with the old epoch gets
no lease either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gantrymq.controller.former_leases import MAX_LEASE_MS


class Leases:
    """The leases granted by one controller."""

    def __init__(self) -> None:
        #: Broker sets whose change of master is decided but may not be stored yet.
        self._ending: set[str] = set()

    @contextmanager
    def ending(self, broker_name: str) -> Iterator[None]:
        """Blocks leases for a broker set while its change of master is stored. Changes of one set never overlap."""
        self._ending.add(broker_name)
        try:
            yield
        finally:
            self._ending.discard(broker_name)

    def granted_ms(self, broker_name: str, asked_ms: int, *, is_leader: bool) -> int:
        """Returns the lease for a heartbeat with the timeout `asked_ms`, in milliseconds. 0 means no lease."""
        if not is_leader or broker_name in self._ending:
            return 0
        return min(asked_ms, MAX_LEASE_MS)
