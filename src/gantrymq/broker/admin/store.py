"""What has expired goes, by the clock and on demand: CLEAN_EXPIRED_CONSUMEQUEUE, DELETE_EXPIRED_COMMITLOG."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.background.jobs import Jobs
from gantrymq.broker.part import Part
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import LongRequests, Steps
from gantrymq.store.message_store import MessageStore
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

#: cleanResourceInterval; while there is more to delete, a round follows after the shorter pause.
_CLEAN_S = 10.0
_NEXT_ROUND_S = 0.1


class StoreAdmin(Part):
    """Has the store cleaned from `start` on. `queues_deleted` is told when queues are gone that others may hold."""

    def __init__(
        self, store: MessageStore, queues_deleted: Callable[[], None], jobs: Jobs, *, long_requests: LongRequests
    ) -> None:
        self._long_requests = long_requests
        self._store = store
        self._queues_deleted = queues_deleted
        self._cleaning = jobs.repeating("delete what has expired", self._clean, _CLEAN_S)

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_log,
        }

    async def start(self) -> None:
        self._cleaning.start()

    async def stop(self) -> None:
        self._cleaning.cancel()

    def clean_queues(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Deletes the queues whose messages are all gone."""
        return self._long_requests.run(connection, request, self._clean_in_steps(connection.address))

    def _clean_in_steps(self, address: str) -> Steps:
        deleted = 0
        for count in self._store.delete_expired_queues():
            if count:
                self._queues_deleted()
            deleted += count
            yield
        log.info("%s had %d expired queues deleted", address, deleted)
        return RemotingCommand.response()

    def delete_log(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Deletes the log files that have expired, whatever the hour; the answer doesn't wait for it."""
        log.info("%s has the expired log files deleted", connection.address)
        self._store.delete_expired_soon()
        self._cleaning.wake(_NEXT_ROUND_S)
        return RemotingCommand.response()

    def _clean(self) -> float:
        return _NEXT_ROUND_S if self._store.clean(now_ms()) else _CLEAN_S
