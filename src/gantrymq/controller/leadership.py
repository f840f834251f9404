"""Decides whether this controller leads, by means of the state store.

If the outcome of a change is unknown, the term ends. The next term starts by reading the whole state. The memory of
this controller therefore always matches the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from gantrymq.background.jobs import Jobs
from gantrymq.controller.broker_set import BrokerSet
from gantrymq.controller.state_store import Leader, StateStore, Term
from gantrymq.errors import GantryError, RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.system.clock import monotonic

log = logging.getLogger(__name__)

#: Pause after a failed request to the store, in s. A leader then has several attempts before its lease in etcd ends.
AFTER_ERROR_S = 0.3


class Leadership:
    """The leadership state of one controller. `elected` is called with all broker sets when a term begins."""

    def __init__(
        self, store: StateStore, me: Leader, jobs: Jobs, elected: Callable[[Mapping[str, bytes]], None]
    ) -> None:
        self.me = me
        #: The last known leader, if it is another controller.
        self._other: Leader | None = None
        self._store = store
        self._elected = elected
        self._term: Term | None = None
        self._job = jobs.repeating("lead or follow", self._round, store.interval_s, after_error_s=AFTER_ERROR_S)

    async def start(self) -> None:
        """Opens the store and tries to become leader. Raises GantryError if the store is not usable."""
        await self._store.open()
        try:
            await self._round()
        except GantryError as e:
            log.warning("controller %s can't say yet who leads: %s", self.me.controller_id, e)
        self._job.start(0.0 if self._term is None else None)

    async def stop(self) -> None:
        await self._job.stop()
        term, self._term = self._term, None
        try:
            if term is not None:
                await self._store.resign(term)
        except GantryError as e:
            log.warning("the leader's key isn't given back: %s", e)
        finally:
            await self._store.close()

    @property
    def is_leader(self) -> bool:
        return self._term is not None and monotonic() < self._term.until

    @property
    def leader(self) -> Leader | None:
        """The last known leader, or None."""
        return self.me if self.is_leader else self._other

    def check(self) -> None:
        """Raises RequestRefused if this controller does not lead."""
        if not self.is_leader:
            raise _not_leader()

    async def commit(self, changed: BrokerSet) -> bool:
        """Stores a broker set. Returns false if the term ended meanwhile, so that the change does not count here.

        Raises RequestRefused if the set is not stored, or if the outcome is unknown.
        """
        self.check()
        term = self._term
        assert term is not None
        try:
            is_kept = await self._store.commit(term, changed.broker_name, changed.encode())
        except GantryError as e:
            self._end(term, f"it isn't known whether a change was kept: {e}")
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the controller's state can't be written: {e}") from e
        if not is_kept:
            self._end(term, "another controller leads")
            # This also applies if this controller is leader again, in another term.
            raise _not_leader()
        return self._term is not None and self._term.number == term.number

    def _end(self, term: Term, why: str) -> None:
        if self._term is not None and self._term.number == term.number:
            log.warning("controller %s leads no more: %s", self.me.controller_id, why)
            self._term = None
            self._job.wake()

    async def _round(self) -> None:
        term = self._term
        if term is not None:
            kept = await self._store.keep(term)
            if self._term is None or self._term.number != term.number:
                # The term ended during the request. Another round is already scheduled.
                return
            if kept is not None:
                self._term = kept
                return
            self._end(term, "its lease has ended")
        new = await self._store.campaign(self.me)
        if new is None:
            self._other = await self._store.leader()
            return
        self._elected(await self._store.load())
        self._term, self._other = new, None
        log.info("controller %s leads, term %d", self.me.controller_id, new.number)


def _not_leader() -> RequestRefused:
    return RequestRefused(ResponseCode.CONTROLLER_NOT_LEADER, "The controller is not in leader state")
