"""SimStateStore: etcd as controllers see it (`controller/etcd_store.py`), on the loop's time, with what can go wrong.

One `SimEtcd` for all controllers of a run; each has a store of its own, whose requests take their time, are lost before
or after they were done, or are done when nobody waits for them any more. None gets through while `is_cut` says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from gantrymq.controller.state_store import Leader, Term
from gantrymq.errors import GantryError

T = TypeVar("T")

LEASE_S = 5.0
#: What a controller waits for an answer, s.
TIMEOUT_S = 1.5
#: How long a request that nobody waits for may still be under way, s.
_LATE_S = 20.0


@dataclass
class _Held:
    """The leader's key."""

    leader: Leader
    revision: int
    until: float


class SimEtcd:
    """The leader's key with its lease, and broker sets with the revisions that wrote them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._revision = 1
        self._held: _Held | None = None
        self._sets: dict[str, tuple[bytes, int]] = {}
        #: Told of each broker set that is written, at once: its name, what there was, and what there is now.
        self.watchers: list[Callable[[str, bytes, bytes], None]] = []

    @property
    def held(self) -> _Held | None:
        if self._held is not None and self._held.until < self._now():
            self._held = None
        return self._held

    def take(self, leader: Leader) -> int | None:
        """The revision that made the key; None when somebody has it."""
        if self.held is not None:
            return None
        self._revision += 1
        self._held = _Held(leader, self._revision, self._now() + LEASE_S)
        return self._revision

    def keep(self, revision: int) -> bool:
        if self.held is None or self.held.revision != revision:
            return False
        self.held.until = self._now() + LEASE_S
        return True

    def give_back(self, revision: int) -> None:
        if self.held is not None and self.held.revision == revision:
            self._held = None

    def sets(self) -> dict[str, tuple[bytes, int]]:
        return dict(self._sets)

    def restore(self, sets: dict[str, tuple[bytes, int]]) -> None:
        """Somebody puts back what there was: by new revisions, and nobody leads."""
        self._revision += 1
        self._held = None
        self._sets = {name: (value, self._revision) for name, (value, _) in sets.items()}

    def put(self, leader: int, name: str, value: bytes, known: int) -> int | None:
        """The revision that wrote it; None when the leader's key is another, -1 when the broker set is."""
        if self.held is None or self.held.revision != leader:
            return None
        before, revision = self._sets.get(name, (b"", 0))
        if revision != known:
            return revision if before == value else -1
        self._revision += 1
        self._sets[name] = value, self._revision
        for changed in self.watchers:
            changed(name, before, value)
        return self._revision


class SimStateStore:
    """A StateStore. `trouble` is the share of requests that something happens to; until `stands_until` none gets on."""

    interval_s = 1.5

    def __init__(self, etcd: SimEtcd, chance: Random, is_cut: Callable[[], bool] = lambda: False) -> None:
        self.trouble = self.stands_until = 0.0
        self._is_cut = is_cut
        self._etcd = etcd
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._term = 0
        self._revisions: dict[str, int] = {}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def campaign(self, me: Leader) -> Term | None:
        if self._term:
            mine, self._term = self._term, 0
            await self._request(lambda: self._etcd.give_back(mine))
        began = self._loop.time()
        revision = await self._request(lambda: self._etcd.take(me))
        if revision is None:
            return None
        self._term = revision
        return Term(revision, began + LEASE_S)

    async def keep(self, term: Term) -> Term | None:
        began = self._loop.time()
        is_kept = await self._request(lambda: self._etcd.keep(term.number))
        return Term(term.number, began + LEASE_S) if is_kept else None

    async def resign(self, term: Term) -> None:
        await self._request(lambda: self._etcd.give_back(term.number))

    async def leader(self) -> Leader | None:
        held = await self._request(lambda: self._etcd.held)
        return held.leader if held is not None else None

    async def load(self) -> dict[str, bytes]:
        sets = await self._request(self._etcd.sets)
        self._revisions = {name: revision for name, (_, revision) in sets.items()}
        return {name: value for name, (value, _) in sets.items()}

    async def commit(self, term: Term, name: str, value: bytes) -> bool:
        known = self._revisions.get(name, 0)
        revision = await self._request(lambda: self._etcd.put(term.number, name, value, known))
        if revision is None:
            return False
        if revision == -1:
            raise GantryError(f"broker set {name!r} was changed by somebody else")
        self._revisions[name] = revision
        return True

    async def _request(self, work: Callable[[], T]) -> T:
        chance = self._chance
        await asyncio.sleep(chance.expovariate(1000))
        if (still_s := self.stands_until - self._loop.time()) > 0:
            # In any order.
            await asyncio.sleep(still_s + chance.expovariate(5))
        is_cut = self._is_cut()
        if not is_cut and chance.random() >= self.trouble:
            result = work()
            await asyncio.sleep(chance.expovariate(1000))
            return result
        match 0 if is_cut else chance.randrange(4):
            case 0:
                what = "lost"
            case 1:
                what = "answered to nobody"
                work()
            case 2:
                what = "late"
                # Also when the controller is gone by then.
                self._loop.call_later(chance.uniform(0, _LATE_S), work, context=Context())
            case _:
                # Whoever asked stands still meanwhile, and its request arrives then.
                await asyncio.sleep(chance.uniform(0, _LATE_S))
                return work()
        await asyncio.sleep(TIMEOUT_S)
        raise GantryError(f"no answer: the request was {what}")
