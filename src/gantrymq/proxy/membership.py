"""The rpcs Heartbeat and NotifyClientTermination (`ClientActivity`). A client without heartbeats expires."""

from __future__ import annotations

from gantrymq.background.jobs import Jobs
from gantrymq.logs import peer_log
from gantrymq.proxy.call import Call, Handlers
from gantrymq.proxy.clients import LITE_CONSUMERS, Client, Clients
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.statuses import ProxyError, status
from gantrymq.proxy.v2.definition_pb2 import ClientType, Code
from gantrymq.proxy.v2.service_pb2 import (
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
)
from gantrymq.proxy.validation import check_group
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

_CONSUMERS = (ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, *LITE_CONSUMERS)
#: Longest interval between two searches for expired clients, s.
_LOOK_S = 5.0


class Membership:
    """Serves the two rpcs for all clients, and removes clients without heartbeats."""

    def __init__(self, config: ProxyConfig, clients: Clients, jobs: Jobs) -> None:
        self._clients = clients
        self._silence_s = config.channel_expired_timeout / 1000
        self._expiring = jobs.repeating("look for silent clients", self._expire, min(_LOOK_S, self._silence_s / 4))

    @property
    def handlers(self) -> Handlers:
        return {"Heartbeat": self.heartbeat, "NotifyClientTermination": self.notify_client_termination}

    def start(self) -> None:
        self._expiring.start()

    async def stop(self) -> None:
        await self._expiring.stop()

    async def heartbeat(self, call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
        """Records that a client is alive. Raises ProxyError for a client that has not sent its settings."""
        client = self._clients.heard(call.client_id, monotonic())
        if client is None:
            raise _unknown()
        _check_type(client, request.group.name)
        return HeartbeatResponse(status=status(Code.OK))

    async def notify_client_termination(
        self, call: Call, request: NotifyClientTerminationRequest
    ) -> NotifyClientTerminationResponse:
        """Removes a client. Raises ProxyError if the client is unknown or in another group."""
        client = self._clients.get(call.client_id)
        if client is None:
            raise _unknown()
        _check_type(client, request.group.name)
        if client.is_consumer and request.group.name != client.group:
            raise ProxyError(Code.FORBIDDEN, f"client {client.client_id} isn't in group {request.group.name}")
        self._clients.remove(client.client_id)
        return NotifyClientTerminationResponse(status=status(Code.OK))

    def _expire(self) -> None:
        for client in self._clients.expire(monotonic() - self._silence_s):
            log.info("client %s is silent, and taken for gone", client.client_id)


def _unknown() -> ProxyError:
    return ProxyError(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")


def _check_type(client: Client, group: str) -> None:
    if client.client_type in _CONSUMERS:
        check_group(group)
    elif client.client_type != ClientType.PRODUCER:
        raise ProxyError(Code.UNRECOGNIZED_CLIENT_TYPE, ClientType.Name(client.client_type))
