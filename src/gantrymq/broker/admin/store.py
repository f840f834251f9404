"""Deletes expired files and queues: CLEAN_EXPIRED_CONSUMEQUEUE, DELETE_EXPIRED_COMMITLOG."""

from __future__ import annotations

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.errors import StoreError
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import Steps
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

#: Pause between two rounds (Java's `cleanResourceInterval`), in seconds. If more files are to be deleted, the next
#: round starts after `_NEXT_ROUND_S`.
_CLEAN_S = 10.0
_NEXT_ROUND_S = 0.1


class StoreAdmin(Feature):
    """Deletes expired files of the store, periodically and on request."""

    def __init__(self, context: BrokerContext) -> None:
        self._long_requests = context.long_requests
        self._store = context.store
        self._queues_expired = context.events.queues_expired
        self._cleaning = context.jobs.repeating("delete what has expired", self._clean, _CLEAN_S)

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_log,
        }

    def load(self) -> None:
        # After a restart, consumers must not see messages that had expired before. The topics are loaded already.
        try:
            self._store.apply_topic_retention(now_ms())
        except StoreError as e:
            # All other queues are done. The job repeats the search.
            log.error("the retention of a topic is not applied at the start: %s", e)

    async def start(self) -> None:
        self._cleaning.start()

    async def stop(self) -> None:
        self._cleaning.cancel()

    def clean_queues(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Deletes the queues whose messages have all been deleted."""
        return self._long_requests.run(connection, request, self._clean_in_steps(connection.address))

    def _clean_in_steps(self, address: str) -> Steps:
        deleted = 0
        for count in self._store.delete_expired_queues():
            if count:
                self._queues_expired.publish()
            deleted += count
            yield
        log.info("%s had %d expired queues deleted", address, deleted)
        return RemotingCommand.response()

    def delete_log(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Deletes expired log files at any hour of the day. The response is sent before they are deleted."""
        log.info("%s has the expired log files deleted", connection.address)
        self._store.delete_expired_soon()
        self._cleaning.wake(_NEXT_ROUND_S)
        return RemotingCommand.response()

    def _clean(self) -> float:
        return _NEXT_ROUND_S if self._store.clean(now_ms()) else _CLEAN_S
