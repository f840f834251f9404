"""A master that can't store messages hands over to another in-sync broker.

The reason is a full or failing disk. Java's master rejects messages until an operator elects another one. The
controller itself would not act, because the broker still sends heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.background.jobs import Jobs
from gantrymq.broker.controller.controllers import Controllers
from gantrymq.broker.controller.roles import BrokerSetState
from gantrymq.broker.controller.sync_state_sets import SyncStateSets
from gantrymq.errors import BrokerError
from gantrymq.logs import peer_log
from gantrymq.store.message_store import MessageStore

log = peer_log(__name__)

_LOOK_S = 1.0
#: Pause after a handover, in seconds. If all disks are full, the pause limits how often the brokers hand over to each
#: other.
_PAUSE_S = 60.0


class Handover:
    """Hands over the master role of one broker. `state` is called with the controller's state after the election."""

    def __init__(
        self,
        store: MessageStore,
        in_sync: SyncStateSets,
        controllers: Controllers,
        jobs: Jobs,
        state: Callable[[BrokerSetState], None],
    ) -> None:
        self._store = store
        self._in_sync = in_sync
        self._controllers = controllers
        self._state_received = state
        self._job = jobs.repeating("leave a master's place where nothing can be stored", self._look, _LOOK_S)

    def start(self) -> None:
        self._job.start()

    async def stop(self) -> None:
        await self._job.stop()

    async def _look(self) -> float | None:
        """If nothing can be stored, has the controller elect another in-sync broker. Raises GantryError."""
        in_sync, trouble = self._in_sync.in_sync, self._store.trouble
        if in_sync is None or trouble is None:
            return None
        for other in sorted(in_sync.others):
            try:
                state = await self._controllers.elect(other, is_designated=True)
            except BrokerError as e:
                log.warning("broker %d can't be the master in place of this one: %s", other, e)
            else:
                log.error("broker %d is to be the master, since here nothing can be stored: %s", other, trouble)
                self._state_received(state)
                return _PAUSE_S
        return None
