"""The interface to the store of broker sets (SQLite, etcd), which also decides which controller leads.

Controllers have no consensus algorithm of their own. The store has a leader's key and a key for each broker set. The
controller that gets the leader's key leads for a term. Each change is a transaction that compares this key. A former
leader therefore cannot change anything, even if it has not detected the end of its term. Within a term only one process
writes, so the other keys need no versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec


class Leader(msgspec.Struct, frozen=True, rename="camel"):
    """A controller: its id within the group, and its HOST:PORT for brokers."""

    controller_id: str
    address: str


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a leader. The store assigns `number`, which is higher than those of all earlier terms."""

    number: int
    #: End of the lease, in seconds of this machine's monotonic clock. No other controller leads before this time. inf:
    #: no lease.
    until: float


class StateStore(Protocol):
    """Methods raise GantryError if the store is unreachable or the outcome of a transaction is unknown."""

    #: Interval at which a leader calls `keep` and a follower may call `campaign`, in seconds.
    interval_s: float

    async def open(self) -> None:
        """Opens the store. Must be called first. A store that is temporarily unreachable is not an error here."""

    async def close(self) -> None:
        """Completes running operations and closes the store. Further calls have no effect."""

    async def campaign(self, me: Leader) -> Term | None:
        """Takes the leader's key and returns the new term. Returns None if another controller has the key."""

    async def keep(self, term: Term) -> Term | None:
        """Extends the term. Returns None if it has ended."""

    async def resign(self, term: Term) -> None:
        """Releases the leader's key, if it still belongs to this term."""

    async def leader(self) -> Leader | None:
        """Returns the current leader, or None."""

    async def load(self) -> dict[str, bytes]:
        """Returns all broker sets by name. Call it after `campaign`."""

    async def commit(self, term: Term, name: str, value: bytes) -> bool:
        """Stores a broker set durably. Returns false, without a change, if another term has the leader's key.

        After a GantryError the outcome is unknown. The leader must then begin a new term.
        """
