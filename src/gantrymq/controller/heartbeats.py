"""Handles heartbeats: records their brokers as live, and grants leases to masters (BrokerHeartbeatManager)."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.controller.elections import Elections
from gantrymq.controller.leadership import Leadership
from gantrymq.controller.leases import Leases
from gantrymq.controller.live_brokers import (
    DEFAULT_TIMEOUT_MS,
    LAST_PRIORITY,
    SOONEST_MS,
    BrokerIdentity,
    LiveBrokers,
)
from gantrymq.controller.replicas import MAX_TEXT, Replicas
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.controller import LEASE_EPOCH_FIELD, LEASE_FIELD, ControllerHeartbeatRequestHeader
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

_response = RemotingCommand.response


class Heartbeats:
    """Handles heartbeats.

    `expect` is called after each heartbeat, with the time until the broker expires without another one, in seconds.
    """

    def __init__(
        self,
        replicas: Replicas,
        live_brokers: LiveBrokers,
        leadership: Leadership,
        leases: Leases,
        elections: Elections,
        expect: Callable[[float], None],
    ) -> None:
        self._replicas = replicas
        self._live_brokers = live_brokers
        self._leadership = leadership
        self._leases = leases
        self._elections = elections
        self._expect = expect

    def by_code(self) -> dict[int, RequestHandler]:
        """Returns the handlers by request code."""
        return {RequestCode.BROKER_HEARTBEAT: self._heartbeat}

    def _heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Records a heartbeat. Followers do this, too, so that a new leader has the live brokers at once."""
        header = request.read_header(ControllerHeartbeatRequestHeader)
        if header.broker_id is None:
            return _response(ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
        if max(len(header.cluster_name), len(header.broker_name), len(header.broker_addr)) > MAX_TEXT:
            return _response(
                ResponseCode.CONTROLLER_INVALID_REQUEST, f"a name or an address has more than {MAX_TEXT} characters"
            )
        timeout_ms = _given(header.heartbeat_timeout_mills, DEFAULT_TIMEOUT_MS)
        identity = BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id)
        is_known = self._live_brokers.heartbeat(
            identity,
            header.broker_addr,
            connection,
            int(monotonic() * 1000),
            timeout_ms=timeout_ms,
            epoch=_given(header.epoch, -1),
            max_offset=_given(header.max_offset, -1),
            confirm_offset=_given(header.confirm_offset, -1),
            election_priority=_given(header.election_priority, LAST_PRIORITY),
        )
        if not is_known:
            log.warning("too many live brokers: rejects the heartbeat of %s at %s", identity, header.broker_addr)
            return _response(ResponseCode.CONTROLLER_INVALID_REQUEST, f"{len(self._live_brokers)} brokers live already")
        self._elections.heard(identity)
        self._expect(max(timeout_ms, SOONEST_MS) / 1000)
        # The leader elects no other master before the lease ends. A follower grants no lease.
        lease_ms = self._leases.granted_ms(header.broker_name, timeout_ms, is_leader=self._leadership.is_leader)
        known = self._replicas.get(header.broker_name)
        # The current epoch invalidates the lease for a broker that was replaced as master while it was silent.
        fields = {LEASE_FIELD: str(lease_ms), LEASE_EPOCH_FIELD: str(known.master_epoch if known is not None else 0)}
        return _response(ResponseCode.SUCCESS, "Heart beat success", fields=fields)


def _given(value: int | None, default: int) -> int:
    return default if value is None else value
