"""Simulated etcd for controllers (`controller/etcd_store.py`), on the loop's time and with faults.

All controllers of a run share one `SimEtcd`; each has its own `SimStateStore`. Requests of a store take time. A
fault can lose a request, lose its response, or execute it after the timeout. While `is_cut` returns true, all
requests are lost.
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
#: Timeout of a controller's request, in seconds.
TIMEOUT_S = 1.5
#: Longest delay of a request after its timeout, in seconds.
_LATE_S = 20.0


@dataclass
class _Held:
    """Leadership: the leader's key, its revision and the end of its lease."""

    leader: Leader
    revision: int
    until: float


class SimEtcd:
    """The leader's key with its lease, and the broker sets with the revisions that wrote them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._revision = 1
        self._held: _Held | None = None
        self._sets: dict[str, tuple[bytes, int]] = {}
        #: Called for each written broker set with its name, the old value and the new value.
        self.watchers: list[Callable[[str, bytes, bytes], None]] = []

    @property
    def held(self) -> _Held | None:
        if self._held is not None and self._held.until < self._now():
            self._held = None
        return self._held

    def take(self, leader: Leader) -> int | None:
        """Makes `leader` the leader. Returns the revision of the key, or None if there is a leader."""
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
        """Restores an old copy of all broker sets, with new revisions and without a leader."""
        self._revision += 1
        self._held = None
        self._sets = {name: (value, self._revision) for name, (value, _) in sets.items()}

    def put(self, leader: int, name: str, value: bytes, known: int) -> int | None:
        """Writes a broker set. Returns its revision, None if the leader changed, or -1 if the broker set changed."""
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
    """StateStore of one controller.

    `trouble` is the share of failing requests. Before `stands_until`, no request completes.
    """

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
            # The delayed requests complete in random order.
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
                # The request is executed even if the controller is dead by then.
                self._loop.call_later(chance.uniform(0, _LATE_S), work, context=Context())
            case _:
                # The caller hangs, and the request arrives after that.
                await asyncio.sleep(chance.uniform(0, _LATE_S))
                return work()
        await asyncio.sleep(TIMEOUT_S)
        raise GantryError(f"no answer: the request was {what}")
