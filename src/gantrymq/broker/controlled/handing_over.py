"""HandingOver: a master that can store nothing, on a full disk or one that fails, leaves that to another in sync.

Java's master goes on refusing until somebody elects another. The controller would not do so: the broker lives.
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.background.jobs import Jobs
from gantrymq.broker.controlled.controllers import Controllers
from gantrymq.broker.controlled.keeping_in_sync import KeepingInSync
from gantrymq.broker.controlled.roles import Told
from gantrymq.errors import BrokerError
from gantrymq.logs import peer_log
from gantrymq.store.message_store import MessageStore

log = peer_log(__name__)

_LOOK_S = 1.0
#: Where all disks are full it isn't handed round and round: so long after one hand-over the next of this broker, s.
_PAUSE_S = 60.0


class HandingOver:
    """Of one broker; `told` gets what the controller says of the new master."""

    def __init__(
        self,
        store: MessageStore,
        in_sync: KeepingInSync,
        controllers: Controllers,
        jobs: Jobs,
        told: Callable[[Told], None],
    ) -> None:
        self._store = store
        self._in_sync = in_sync
        self._controllers = controllers
        self._told = told
        self._job = jobs.repeating("leave a master's place where nothing can be stored", self._look, _LOOK_S)

    def start(self) -> None:
        self._job.start()

    async def stop(self) -> None:
        await self._job.stop()

    async def _look(self) -> float | None:
        """Raises GantryError when the controller can't be asked; it is tried again."""
        in_sync, trouble = self._in_sync.in_sync, self._store.trouble
        if in_sync is None or trouble is None:
            return None
        for other in sorted(in_sync.others):
            try:
                told = await self._controllers.elect(other, is_designated=True)
            except BrokerError as e:
                log.warning("broker %d can't be the master in place of this one: %s", other, e)
            else:
                log.error("broker %d is to be the master, since here nothing can be stored: %s", other, trouble)
                self._told(told)
                return _PAUSE_S
        return None
