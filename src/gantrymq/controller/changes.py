"""Applies changes to broker sets in order, after the state store has stored them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from weakref import WeakValueDictionary

from gantrymq.background.tasks import Tasks
from gantrymq.controller.leadership import Leadership
from gantrymq.controller.leases import Leases
from gantrymq.controller.replicas import Decision, Replicas
from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode

log = peer_log(__name__)


class Changes:
    """Applies the changes of one broker set one after the other, and the changes of different sets concurrently."""

    def __init__(self, replicas: Replicas, leadership: Leadership, leases: Leases) -> None:
        self._replicas = replicas
        self._leadership = leadership
        self._leases = leases
        self._tasks = Tasks("changing a broker set")
        self._stopped = False
        #: Locks by broker name. A lock exists as long as it is used.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def make(self, broker_name: str, decide: Callable[[], Decision]) -> Decision:
        """Waits for earlier changes of the set, calls `decide`, stores the change and returns the decision.

        If the caller is cancelled, the change is still completed. Raises RequestRefused if this controller does not
        lead, or if the state store fails.
        """
        if self._stopped:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the controller stops: nothing is changed any more")
        done = asyncio.get_running_loop().create_future()
        self._tasks.start(self._make(broker_name, decide, done))
        decision: Decision = await done
        return decision

    async def stop(self) -> None:
        """Waits for running changes and rejects new ones."""
        self._stopped = True
        await self._tasks.wait()

    async def _make(self, broker_name: str, decide: Callable[[], Decision], done: asyncio.Future[Decision]) -> None:
        lock = self._locks.setdefault(broker_name, asyncio.Lock())
        async with lock:
            try:
                decision = await self._decided(broker_name, decide)
            except Exception as e:
                if not done.done():
                    done.set_exception(e)
                return
        if not done.done():
            done.set_result(decision)

    async def _decided(self, broker_name: str, decide: Callable[[], Decision]) -> Decision:
        self._leadership.check()
        decision = decide()
        changed = decision.changed
        if changed is not None:
            before = self._replicas.any(broker_name)
            changed.check_follows(before)
            is_next_epoch = before is None or changed.master_epoch != before.master_epoch
            with self._leases.ending(broker_name) if is_next_epoch else nullcontext():
                if await self._leadership.commit(changed):
                    self._replicas.apply(changed)
            if is_next_epoch:
                log.info(
                    "broker set %s: master %s, epoch %d, sync-state set %s, epoch %d",
                    broker_name,
                    changed.master,
                    changed.master_epoch,
                    sorted(changed.sync_state_set),
                    changed.sync_state_set_epoch,
                )
        return decision
