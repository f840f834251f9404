"""StateStore: where a controller's broker sets lie, and who of several leads; the seam to SQLite and others.

Controllers have no consensus of their own: the store decides. It has one leader's key and a key for each broker set.
Who gets the leader's key leads for a term; every change is one transaction that compares that key, so whoever was
deposed, and doesn't know it yet, changes nothing. Within a term one process alone writes: other keys need no versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec


class Leader(msgspec.Struct, frozen=True, rename="camel"):
    """A controller: its name among them, and host:port as brokers reach it."""

    controller_id: str
    address: str


@dataclass(frozen=True, slots=True)
class Term:
    """One time of leading. `number` is the store's and greater than that of every term before."""

    number: int
    #: Until then nobody else can lead, s of the monotonic clock of this machine; inf without a lease.
    until: float


class StateStore(Protocol):
    """All raise GantryError when the store can't be asked, or doesn't tell how a transaction ended."""

    #: How often a leader has to `keep` its term, and a follower may try to lead, s.
    interval_s: float

    async def open(self) -> None:
        """To be called before anything else. A store that may come back later is no error here."""

    async def close(self) -> None:
        """Ends what is under way; once more does no harm."""

    async def campaign(self, me: Leader) -> Term | None:
        """Takes the leader's key if nobody has it; None when somebody does."""

    async def keep(self, term: Term) -> Term | None:
        """The same term, for longer; None when it is over."""

    async def resign(self, term: Term) -> None:
        """Gives the leader's key back, if it still is this term's."""

    async def leader(self) -> Leader | None:
        """Who leads now."""

    async def load(self) -> dict[str, bytes]:
        """All broker sets by name; to be asked for after `campaign`."""

    async def commit(self, term: Term, name: str, value: bytes) -> bool:
        """Keeps a broker set for good; False, and nothing is changed, when the leader's key isn't this term's.

        After a GantryError it may be kept or not; then the leader has to begin a new term.
        """
