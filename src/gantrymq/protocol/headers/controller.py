"""Headers of requests between brokers, administrators and controllers (remoting/protocol/header/controller/*)."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.namesrv import BrokerHeartbeatRequestHeader
from gantrymq.protocol.java import Int32, Int64

#: Lease in a GantryMQ controller's response to a heartbeat, in ms. 0 if the controller is not the leader. A GantryMQ
#: master stops accepting messages when the lease has passed, counted from the time at which it sent the heartbeat.
LEASE_FIELD = "leaseMillis"
#: Master epoch of the broker set, in the same response. The lease is valid only for brokers with this epoch.
LEASE_EPOCH_FIELD = "leaseMasterEpoch"


class BrokerSetRequestHeader(Header):
    """CONTROLLER_GET_NEXT_BROKER_ID (1012), and the common first fields of a broker's other requests."""

    cluster_name: str
    broker_name: str


class GetNextBrokerIdResponseHeader(Header):
    """The response to CONTROLLER_GET_NEXT_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ApplyBrokerIdRequestHeader(BrokerSetRequestHeader):
    """CONTROLLER_APPLY_BROKER_ID (1013). The check code is the broker's address, a semicolon, and a unique text.

    A repeated request with the same check code succeeds and gets the same id.
    """

    applied_broker_id: Int64
    register_check_code: str


class ApplyBrokerIdResponseHeader(Header):
    """The response to CONTROLLER_APPLY_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None


class RegisterBrokerToControllerRequestHeader(BrokerSetRequestHeader):
    """CONTROLLER_REGISTER_BROKER (1003)."""

    broker_id: Int64
    broker_address: str


class RegisterBrokerToControllerResponseHeader(Header):
    """The response to CONTROLLER_REGISTER_BROKER: the master, if there is a live one. The body is a SyncStateSet."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class AlterSyncStateSetRequestHeader(Header):
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001) of a master. The body is the new SyncStateSet with the old epoch."""

    broker_name: str
    master_broker_id: Int64
    master_epoch: Int32


class AlterSyncStateSetResponseHeader(Header):
    """The response to CONTROLLER_ALTER_SYNC_STATE_SET. The body is the new SyncStateSet."""

    new_sync_state_set_epoch: Int32 = 0


class ElectMasterRequestHeader(Header):
    """CONTROLLER_ELECT_MASTER (1002) of a broker. With `designate_elect`, an administrator selects this broker id.

    A broker id of -1 means that the request does not come from a broker.
    """

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = -1
    designate_elect: bool = False


class ElectMasterResponseHeader(Header):
    """The response to CONTROLLER_ELECT_MASTER. The body is an ElectMasterResponseBody."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class GetReplicaInfoRequestHeader(Header):
    """CONTROLLER_GET_REPLICA_INFO (1004)."""

    broker_name: str


class GetReplicaInfoResponseHeader(Header):
    """The response to CONTROLLER_GET_REPLICA_INFO. The body is a SyncStateSet."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class GetMetaDataResponseHeader(Header):
    """The response to CONTROLLER_GET_METADATA_INFO (1005). `peers` has the form "id:host:port;..."."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class NotifyBrokerRoleChangedRequestHeader(Header):
    """NOTIFY_BROKER_ROLE_CHANGED (1008), from a controller to the brokers of a set. The body is a SyncStateSet."""

    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None


class CleanControllerBrokerDataRequestHeader(Header):
    """CLEAN_BROKER_DATA (1011). The ids have the form "1;2;3". Without ids, the whole broker set is removed."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False


class ControllerHeartbeatRequestHeader(BrokerHeartbeatRequestHeader):
    """BROKER_HEARTBEAT (904) to a controller, with the progress of the broker's log and its election priority.

    A lower priority number is elected first.
    """

    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    election_priority: Int32 | None = None
