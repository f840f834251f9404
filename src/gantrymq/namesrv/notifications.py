"""Notifies brokers when the lowest id of their name changes (NOTIFY_MIN_BROKER_ID_CHANGE)."""

from __future__ import annotations

from collections.abc import Iterable

from gantrymq.background.tasks import Tasks
from gantrymq.errors import RemotingError
from gantrymq.logs import peer_log
from gantrymq.namesrv.brokers import MinBrokerIdChange
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import NotifyMinBrokerIdChangeRequestHeader
from gantrymq.remoting.client import RemotingClient

log = peer_log(__name__)

#: Maximum number of concurrent notifications. A notification can take as long as a connection attempt.
MAX_UNDER_WAY = 1_000


class Notifications:
    """Sends each notification once, without a response, as in Java. Brokers also poll from time to time."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client
        self._tasks = Tasks("telling a broker of the lowest id")

    def __len__(self) -> int:
        return len(self._tasks)

    def send(self, changes: Iterable[MinBrokerIdChange]) -> None:
        for change in changes:
            log.info("broker %s: the lowest id is now %d", change.broker_name, change.min_broker_id)
            for address in change.notify:
                if len(self) >= MAX_UNDER_WAY:
                    log.warning(
                        "broker %s at %s is not notified: notifications of %d others are pending",
                        change.broker_name,
                        address,
                        MAX_UNDER_WAY,
                    )
                    continue
                self._tasks.start(self._notify(address, change))

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _notify(self, address: str, change: MinBrokerIdChange) -> None:
        header = NotifyMinBrokerIdChangeRequestHeader(
            min_broker_id=change.min_broker_id,
            min_broker_addr=change.min_broker_addr,
            broker_name=change.broker_name,
            offline_broker_addr=change.offline_broker_addr,
            ha_broker_addr=change.ha_broker_addr,
        )
        try:
            request = RemotingCommand.request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)
            await self._client.invoke_oneway(address, request)
        except RemotingError as e:
            log.warning("can't notify broker %s at %s of the lowest broker id: %s", change.broker_name, address, e)
