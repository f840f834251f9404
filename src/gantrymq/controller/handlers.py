"""Handlers of requests about broker sets, one per request code (processor/ControllerRequestProcessor).

Read requests are answered at once, from memory. Changes are answered after the state store has stored them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from gantrymq.controller.changes import Changes
from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.elections import Elections
from gantrymq.controller.leadership import Leadership
from gantrymq.controller.replicas import Decision, Replicas
from gantrymq.errors import BodyError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.controller import SyncStateSet
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, decode_request_json, encode_json
from gantrymq.protocol.headers.controller import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    BrokerSetRequestHeader,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    GetMetaDataResponseHeader,
    GetReplicaInfoRequestHeader,
    RegisterBrokerToControllerRequestHeader,
)
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.long_requests import LongRequests

log = peer_log(__name__)

#: Largest body with a sync-state set, in bytes.
MAX_SYNC_STATE_BYTES = 16 * 1024
#: Broker sets encoded per step, and the largest response in bytes, because a frame is limited.
_SETS_PER_STEP = 50
_MAX_ANSWER_BYTES = 12 * 1024 * 1024

_response = RemotingCommand.response


class RequestHandlers:
    """Handles the requests about broker sets: their ids, masters and sync-state sets."""

    def __init__(
        self,
        config: ControllerConfig,
        replicas: Replicas,
        leadership: Leadership,
        changes: Changes,
        elections: Elections,
        long_requests: LongRequests,
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._leadership = leadership
        self._changes = changes
        self._elections = elections
        self._long_requests = long_requests

    def by_code(self) -> dict[int, RequestHandler]:
        """Returns the handlers by request code, for a RemotingServer."""
        return {
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self._alter_sync_state_set,
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect_master,
            RequestCode.CONTROLLER_REGISTER_BROKER: self._register_broker,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._get_replica_info,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self._get_metadata_info,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._get_sync_state_data,
            RequestCode.CLEAN_BROKER_DATA: self._clean_broker_data,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._get_next_broker_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._apply_broker_id,
        }

    # -- brokers ------------------------------------------------------------------------------------------------

    def _get_metadata_info(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Returns the leader. Every controller answers this request, so brokers can find the leader."""
        leader, me = self._leadership.leader, self._leadership.me
        peers = [peer.replace("-", ":", 1) for peer in self._config.peers] or [f"{me.controller_id}:{me.address}"]
        return _response(
            header=GetMetaDataResponseHeader(
                group=self._config.group,
                controller_leader_id=leader.controller_id if leader is not None else None,
                controller_leader_address=leader.address if leader is not None else None,
                is_leader=self._leadership.is_leader,
                peers="".join(f"{peer};" for peer in peers),
            )
        )

    def _get_next_broker_id(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(BrokerSetRequestHeader)
        self._leadership.check()
        return _answer(self._replicas.get_next_broker_id(header))

    def _apply_broker_id(self, connection: Connection, request: RemotingCommand) -> None:
        header = request.read_header(ApplyBrokerIdRequestHeader)
        self._change(connection, request, header.broker_name, lambda: self._replicas.apply_broker_id(header))

    def _register_broker(self, connection: Connection, request: RemotingCommand) -> None:
        header = request.read_header(RegisterBrokerToControllerRequestHeader)
        self._change(
            connection,
            request,
            header.broker_name,
            lambda: self._replicas.register_broker(header, self._elections.live()),
        )

    def _get_replica_info(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(GetReplicaInfoRequestHeader)
        self._elections.asked(connection)
        self._leadership.check()
        return _answer(self._replicas.get_replica_info(header.broker_name))

    def _alter_sync_state_set(self, connection: Connection, request: RemotingCommand) -> None:
        header = request.read_header(AlterSyncStateSetRequestHeader)
        if len(request.body) > MAX_SYNC_STATE_BYTES:
            raise BodyError(f"body of {len(request.body)} bytes: a sync-state set has at most {MAX_SYNC_STATE_BYTES}")
        body = decode_json(request.body, SyncStateSet)
        self._change(
            connection,
            request,
            header.broker_name,
            lambda: self._replicas.alter_sync_state_set(header, body, self._elections.live()),
        )

    def _elect_master(self, connection: Connection, request: RemotingCommand) -> None:
        header = request.read_header(ElectMasterRequestHeader)

        async def elect() -> RemotingCommand:
            decision = await self._elections.hold(header, connection)
            if decision.code == ResponseCode.SUCCESS:
                log.info("%s had %s's master elected", connection.address, header.broker_name)
            return _answer(decision)

        connection.respond_with(request, elect())

    # -- administration -----------------------------------------------------------------------------------------

    def _get_sync_state_data(self, connection: Connection, request: RemotingCommand) -> Reply:
        names = decode_request_json(request.body, list[str]) if request.body else []
        if not names:
            return _response(ResponseCode.SYSTEM_ERROR, "not set any response code")
        self._leadership.check()
        return self._long_requests.run(connection, request, self._sync_state_data(names))

    def _sync_state_data(self, names: list[str]) -> Generator[None, None, Reply]:
        names = list(dict.fromkeys(names))
        pieces: list[bytes] = []
        size = 0
        for start in range(0, len(names), _SETS_PER_STEP):
            some = self._replicas.infos(names[start : start + _SETS_PER_STEP], self._elections.live())
            if some:
                pieces.append(encode_json(some)[1:-1])
                size += len(pieces[-1])
            if size > _MAX_ANSWER_BYTES:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"more than {_MAX_ANSWER_BYTES} bytes: ask for less")
            yield
        return _response(body=b'{"replicasInfoTable":{%b}}' % b",".join(pieces))

    def _clean_broker_data(self, connection: Connection, request: RemotingCommand) -> None:
        header = request.read_header(CleanControllerBrokerDataRequestHeader)
        log.info(
            "%s cleans broker set %s, ids %s",
            connection.address,
            header.broker_name,
            header.broker_controller_ids_to_clean or "all",
        )
        self._change(
            connection,
            request,
            header.broker_name,
            lambda: self._replicas.clean_broker_data(header, self._elections.live()),
        )

    def _change(
        self, connection: Connection, request: RemotingCommand, broker_name: str, decide: Callable[[], Decision]
    ) -> None:
        async def change() -> RemotingCommand:
            return _answer(await self._changes.make(broker_name, decide))

        connection.respond_with(request, change())


def _answer(decision: Decision) -> RemotingCommand:
    return _response(decision.code, decision.remark, decision.header, decision.body)
