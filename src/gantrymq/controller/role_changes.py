"""Notifies brokers when their set has a new master (NOTIFY_BROKER_ROLE_CHANGED)."""

from __future__ import annotations

from gantrymq.background.tasks import Tasks
from gantrymq.controller.broker_set import BrokerSet
from gantrymq.controller.live_brokers import BrokerIdentity
from gantrymq.controller.replicas import Live, Replicas
from gantrymq.errors import RemotingError
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.controller import NotifyBrokerRoleChangedRequestHeader
from gantrymq.remoting.client import RemotingClient

log = peer_log(__name__)

#: Maximum number of concurrent notifications. A notification can take as long as a connection attempt.
MAX_UNDER_WAY = 1_000


class RoleChanges:
    """Sends each notification once, without a response, as in Java. Brokers also poll, every 5 s."""

    def __init__(self, client: RemotingClient, replicas: Replicas) -> None:
        self._client = client
        self._replicas = replicas
        self._tasks = Tasks("telling a broker of its new master")

    def send(self, changed: BrokerSet, live: Live) -> None:
        """Notifies the active brokers of the set."""
        for broker_id, replica in changed.replicas.items():
            identity = BrokerIdentity(changed.cluster_name, changed.broker_name, broker_id)
            if live(identity) is None:
                continue
            if len(self._tasks) >= MAX_UNDER_WAY:
                log.warning(
                    "broker %s at %s is not notified: notifications of %d others are pending",
                    identity,
                    replica.address,
                    MAX_UNDER_WAY,
                )
                continue
            self._tasks.start(self._notify(replica.address, changed))

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _notify(self, address: str, changed: BrokerSet) -> None:
        header = NotifyBrokerRoleChangedRequestHeader(
            master_address=changed.master_address,
            master_epoch=changed.master_epoch,
            sync_state_set_epoch=changed.sync_state_set_epoch,
            master_broker_id=changed.master,
        )
        body = encode_json(changed.sync_state())
        request = RemotingCommand.request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header, body)
        try:
            connection = await self._client.connection(address)
            now = self._replicas.get(changed.broker_name)
            if now is not None and now.master_epoch == changed.master_epoch:
                await connection.invoke_oneway(request)
        except RemotingError as e:
            log.warning("can't notify broker %s at %s of its master: %s", changed.broker_name, address, e)
