"""Requests of a broker to its controllers (`BrokerOuterAPI`). One of the controllers is the leader."""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.controller.roles import BrokerSetState
from gantrymq.errors import BrokerError, GantryError, RemotingError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.controller import ElectMasterResponseBody, SyncStateSet
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.controller import (
    LEASE_EPOCH_FIELD,
    LEASE_FIELD,
    AlterSyncStateSetRequestHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdRequestHeader,
    BrokerSetRequestHeader,
    ControllerHeartbeatRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    GetReplicaInfoResponseHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.refusals import broker_error
from gantrymq.remoting.client import RemotingClient

log = peer_log(__name__)

_TIMEOUT_MS = 3000


class Progress(NamedTuple):
    """The replication progress of a broker: the last epoch, the end and the confirm offset of its log."""

    epoch: int
    max_offset: int
    confirm_offset: int


class Controllers:
    """Sends the requests of the broker at `address` to the controllers in `config.controller_addr`.

    Each method that sends a request raises GantryError if it fails.
    """

    def __init__(self, config: BrokerConfig, address: str, remoting: RemotingClient) -> None:
        self._config = config
        self._address = address
        self._remoting = remoting
        #: host:port of the leading controller; None if it is unknown.
        self.leader: str | None = None

    async def find_leader(self) -> str:
        """Queries the controllers one after the other for their leader. Raises GantryError if none returns one."""
        problem: GantryError | None = None
        for address in self._config.controller_addr:
            try:
                request = RemotingCommand.request(RequestCode.CONTROLLER_GET_METADATA_INFO)
                answer = await self._remoting.call(address, request, _TIMEOUT_MS)
                leader = answer.read_header(GetMetaDataResponseHeader).controller_leader_address
            except GantryError as e:
                problem = problem or e
                continue
            if leader:
                if leader != self.leader:
                    log.info("the controller %s leads", leader)
                self.leader = leader
                return leader
        self.leader = None
        raise problem or BrokerError(ResponseCode.CONTROLLER_NOT_LEADER, "no controller leads", "")

    async def heartbeat(self, controller: str, broker_id: int, progress: Progress, told_epoch: int) -> float | None:
        """Sends a heartbeat and returns the duration of the lease that it grants, in seconds.

        `told_epoch` is the master epoch that this broker has. Returns None if the controller doesn't support leases.
        Returns 0 if the controller grants no lease at present or has a different epoch.
        """
        config = self._config
        header = ControllerHeartbeatRequestHeader(
            cluster_name=config.broker_cluster_name,
            broker_addr=self._address,
            broker_name=config.broker_name,
            broker_id=broker_id,
            heartbeat_timeout_mills=config.controller_heart_beat_timeout_mills,
            epoch=progress.epoch,
            max_offset=progress.max_offset,
            confirm_offset=progress.confirm_offset,
            election_priority=config.broker_election_priority,
        )
        request = RemotingCommand.request(RequestCode.BROKER_HEARTBEAT, header)
        answer = await self._remoting.call(controller, request, config.send_heartbeat_timeout_millis)
        lease = answer.ext_fields.get(LEASE_FIELD, "")
        if not lease.isdecimal():
            return None
        # Another master may have been elected since this broker was notified.
        is_told = answer.ext_fields.get(LEASE_EPOCH_FIELD, str(told_epoch)) == str(told_epoch)
        return int(lease) / 1000 if is_told else 0.0

    # -- requests to the leading controller ---------------------------------------------------------------------

    async def next_id(self) -> int:
        """Returns the next free broker id. Raises BrokerError if the controller returns none."""
        header = BrokerSetRequestHeader(cluster_name=self._cluster, broker_name=self._name)
        answer = await self._call(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
        broker_id = answer.read_header(GetNextBrokerIdResponseHeader).next_broker_id
        if broker_id is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the controller gives no broker id", self.leader or "")
        return broker_id

    async def apply(self, broker_id: int, check_code: str) -> None:
        """Applies for a broker id. Raises BrokerError with CONTROLLER_BROKER_ID_INVALID if another broker has it."""
        header = ApplyBrokerIdRequestHeader(
            cluster_name=self._cluster,
            broker_name=self._name,
            applied_broker_id=broker_id,
            register_check_code=check_code,
        )
        await self._call(RequestCode.CONTROLLER_APPLY_BROKER_ID, header)

    async def register(self, broker_id: int) -> BrokerSetState | None:
        """Registers the broker's address. Returns the state of its broker set if there is a live master, else None."""
        header = RegisterBrokerToControllerRequestHeader(
            cluster_name=self._cluster, broker_name=self._name, broker_id=broker_id, broker_address=self._address
        )
        answer = await self._call(RequestCode.CONTROLLER_REGISTER_BROKER, header)
        state = answer.read_header(RegisterBrokerToControllerResponseHeader)
        if state.master_epoch is None:
            return None
        members, members_epoch = _members(answer.body)
        return BrokerSetState(state.master_epoch, state.master_broker_id, state.master_address, members, members_epoch)

    async def info(self) -> BrokerSetState:
        """Returns the master and the sync-state set."""
        header = GetReplicaInfoRequestHeader(broker_name=self._name)
        answer = await self._call(RequestCode.CONTROLLER_GET_REPLICA_INFO, header)
        state = answer.read_header(GetReplicaInfoResponseHeader)
        members, members_epoch = _members(answer.body)
        return BrokerSetState(
            state.master_epoch or 0, state.master_broker_id, state.master_address, members, members_epoch
        )

    async def elect(self, broker_id: int, *, is_designated: bool = False) -> BrokerSetState:
        """Has the controller elect a master if there is none, and returns the master.

        With `is_designated`, only this broker can be elected. Raises BrokerError if no broker can be elected.
        """
        header = ElectMasterRequestHeader(
            cluster_name=self._cluster,
            broker_name=self._name,
            broker_id=broker_id,
            designate_elect=is_designated,
        )
        answer = await self._invoke(RequestCode.CONTROLLER_ELECT_MASTER, header)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            raise broker_error(answer, self.leader or "")
        state = answer.read_header(ElectMasterResponseHeader)
        body = decode_json(answer.body, ElectMasterResponseBody) if answer.body else ElectMasterResponseBody()
        members = None if body.sync_state_set is None else frozenset(body.sync_state_set)
        return BrokerSetState(
            state.master_epoch or 0,
            state.master_broker_id,
            state.master_address,
            members,
            state.sync_state_set_epoch or 0,
        )

    async def alter(
        self, broker_id: int, epoch: int, members: frozenset[int], members_epoch: int
    ) -> tuple[frozenset[int], int]:
        """Requests a change of the master's sync-state set. Returns the new set and its epoch.

        `members_epoch` is the epoch of the set that this change replaces.
        """
        header = AlterSyncStateSetRequestHeader(broker_name=self._name, master_broker_id=broker_id, master_epoch=epoch)
        body = encode_json(SyncStateSet(sorted(members), members_epoch))
        answer = await self._call(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)
        new_epoch = answer.read_header(AlterSyncStateSetResponseHeader).new_sync_state_set_epoch
        return (_members(answer.body)[0] or members), new_epoch

    @property
    def _cluster(self) -> str:
        return self._config.broker_cluster_name

    @property
    def _name(self) -> str:
        return self._config.broker_name

    async def _call(self, code: int, header: Header, body: bytes = b"") -> RemotingCommand:
        answer = await self._invoke(code, header, body)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer, self.leader or "")
        return answer

    async def _invoke(self, code: int, header: Header, body: bytes = b"") -> RemotingCommand:
        leader = self.leader or await self.find_leader()
        try:
            answer = await self._remoting.invoke(leader, RemotingCommand.request(code, header, body), _TIMEOUT_MS)
        except RemotingError:
            self.leader = None
            raise
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self.leader = None
        return answer


def _members(body: bytes) -> tuple[frozenset[int] | None, int]:
    """Returns the sync-state set and its epoch from the body of a response; None and 0 if the body is empty."""
    if not body:
        return None, 0
    found = decode_json(body, SyncStateSet)
    return frozenset(found.sync_state_set), found.sync_state_set_epoch
