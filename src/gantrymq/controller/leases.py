"""Leases: what a controller that leads grants to brokers by its answers to their heartbeats.

A master takes messages while its lease holds, and no other is elected before that is over. So from the moment at which
another master is decided none is granted in that broker set, however long the state store takes to keep the decision:
a master that has been silent may send its next heartbeat just then. When the other is kept the set has another epoch,
and who wasn't told of that is granted none, either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gantrymq.controller.former_leases import MAX_LEASE_MS


class Leases:
    """Of one controller."""

    def __init__(self) -> None:
        #: Broker sets whose next master is decided, and not known to be kept yet.
        self._ending: set[str] = set()

    @contextmanager
    def ending(self, broker_name: str) -> Iterator[None]:
        """None is granted meanwhile; one change of a broker set is made after the other."""
        self._ending.add(broker_name)
        try:
            yield
        finally:
            self._ending.discard(broker_name)

    def granted_ms(self, broker_name: str, asked_ms: int, *, is_leader: bool) -> int:
        """What a heartbeat is granted that names `asked_ms` as the time after which its broker is dead; 0: none."""
        if not is_leader or broker_name in self._ending:
            return 0
        return min(asked_ms, MAX_LEASE_MS)
