"""RequestHandlers: one function for each request code of a controller (processor/ControllerRequestProcessor).

What only looks is answered at once, from memory; what may change something once the state store has it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from gantrymq.background.failures import failure_fields
from gantrymq.background.jobs import Jobs
from gantrymq.config import format_properties
from gantrymq.controller.changes import Changes
from gantrymq.controller.config import ControllerConfig
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
from gantrymq.controller.replicas import MAX_TEXT, Decision, Replicas
from gantrymq.errors import BodyError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.controller import SyncStateSet
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, decode_request_json, encode_json
from gantrymq.protocol.headers.controller import (
    LEASE_EPOCH_FIELD,
    LEASE_FIELD,
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    BrokerSetRequestHeader,
    CleanControllerBrokerDataRequestHeader,
    ControllerHeartbeatRequestHeader,
    ElectMasterRequestHeader,
    GetMetaDataResponseHeader,
    GetReplicaInfoRequestHeader,
    RegisterBrokerToControllerRequestHeader,
)
from gantrymq.remoting.configuration import Configuration
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.file_changes import FileChanges
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: A sync-state set has no more bytes.
MAX_SYNC_STATE_BYTES = 16 * 1024
#: Broker sets are told in steps of so many, and in one answer not more bytes than so many: a frame has its bound.
_SETS_PER_STEP = 50
_MAX_ANSWER_BYTES = 12 * 1024 * 1024

_response = RemotingCommand.response


class RequestHandlers:
    """`expect` is told in how many seconds a broker that has sent a heartbeat will be gone if it sends no other."""

    def __init__(
        self,
        config: ControllerConfig,
        configuration: Configuration[ControllerConfig],
        replicas: Replicas,
        live_brokers: LiveBrokers,
        leadership: Leadership,
        leases: Leases,
        changes: Changes,
        elections: Elections,
        file_changes: FileChanges,
        long_requests: LongRequests,
        jobs: Jobs,
        expect: Callable[[float], None],
    ) -> None:
        self._config = config
        self._configuration = configuration
        self._replicas = replicas
        self._live_brokers = live_brokers
        self._leadership = leadership
        self._leases = leases
        self._changes = changes
        self._elections = elections
        self._file_changes = file_changes
        self._long_requests = long_requests
        self._jobs = jobs
        self._expect = expect

    def by_code(self) -> dict[int, RequestHandler]:
        """What a RemotingServer wants."""
        return {
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self._alter_sync_state_set,
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect_master,
            RequestCode.CONTROLLER_REGISTER_BROKER: self._register_broker,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._get_replica_info,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self._get_metadata_info,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._get_sync_state_data,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.UPDATE_CONTROLLER_CONFIG: self._update_config,
            RequestCode.GET_CONTROLLER_CONFIG: self._get_config,
            RequestCode.CLEAN_BROKER_DATA: self._clean_broker_data,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._get_next_broker_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._apply_broker_id,
        }

    # -- brokers ------------------------------------------------------------------------------------------------

    def _get_metadata_info(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Each controller answers this one: so brokers learn who leads."""
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

    def _broker_heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Whoever leads: when that changes, the next one knows who lives."""
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
            log.warning("no room for the heartbeat of %s at %s", identity, header.broker_addr)
            return _response(ResponseCode.CONTROLLER_INVALID_REQUEST, f"{len(self._live_brokers)} brokers live already")
        self._elections.heard(identity)
        self._expect(max(timeout_ms, SOONEST_MS) / 1000)
        # Only who leads elects another master, and not before this time is over.
        lease_ms = self._leases.granted_ms(header.broker_name, timeout_ms, is_leader=self._leadership.is_leader)
        known = self._replicas.get(header.broker_name)
        # Who was replaced while it was silent, and hasn't been told, is granted nothing.
        fields = {LEASE_FIELD: str(lease_ms), LEASE_EPOCH_FIELD: str(known.master_epoch if known is not None else 0)}
        return _response(ResponseCode.SUCCESS, "Heart beat success", fields=fields)

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

    def _update_config(self, connection: Connection, request: RemotingCommand) -> None:
        source = f"UPDATE_CONTROLLER_CONFIG of {connection.address}"

        async def update() -> RemotingCommand:
            await self._file_changes.make(lambda: self._configuration.changed(request.body, source))
            return _response()

        connection.respond_with(request, update())

    def _get_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        # As a NameServer's: `gantry doctor` finds what it looks for in the header.
        body = format_properties(self._configuration.properties()).encode()
        return _response(body=body, fields=failure_fields(self._jobs))

    def _change(
        self, connection: Connection, request: RemotingCommand, broker_name: str, decide: Callable[[], Decision]
    ) -> None:
        async def change() -> RemotingCommand:
            return _answer(await self._changes.make(broker_name, decide))

        connection.respond_with(request, change())


def _answer(decision: Decision) -> RemotingCommand:
    return _response(decision.code, decision.remark, decision.header, decision.body)


def _given(value: int | None, default: int) -> int:
    return default if value is None else value
