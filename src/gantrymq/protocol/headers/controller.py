"""Headers of what brokers, administrators and controllers say to each other (remoting/protocol/header/controller/*)."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.namesrv import BrokerHeartbeatRequestHeader
from gantrymq.protocol.java import Int32, Int64

#: The field of an answer to a heartbeat with which a controller of ours grants a lease, ms; 0 where it doesn't lead. A
#: master of ours takes no messages when so much has passed since it sent a heartbeat that was answered.
LEASE_FIELD = "leaseMillis"
#: The set's epoch as that controller knows it: the lease is for brokers that were told of who is master in it.
LEASE_EPOCH_FIELD = "leaseMasterEpoch"


class BrokerSetRequestHeader(Header):
    """CONTROLLER_GET_NEXT_BROKER_ID (1012), and what other requests of a broker begin with."""

    cluster_name: str
    broker_name: str


class GetNextBrokerIdResponseHeader(Header):
    """Answer to CONTROLLER_GET_NEXT_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ApplyBrokerIdRequestHeader(BrokerSetRequestHeader):
    """CONTROLLER_APPLY_BROKER_ID (1013); the check code is the broker's address, a semicolon, and what tells it apart.

    Who applies for an id once more with the check code that it was given to gets it again.
    """

    applied_broker_id: Int64
    register_check_code: str


class ApplyBrokerIdResponseHeader(Header):
    """Answer to CONTROLLER_APPLY_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None


class RegisterBrokerToControllerRequestHeader(BrokerSetRequestHeader):
    """CONTROLLER_REGISTER_BROKER (1003)."""

    broker_id: Int64
    broker_address: str


class RegisterBrokerToControllerResponseHeader(Header):
    """Answer to CONTROLLER_REGISTER_BROKER: the master, if there is one that lives; the body is a SyncStateSet."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class AlterSyncStateSetRequestHeader(Header):
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001) of a master; the body is the SyncStateSet, with the epoch before it."""

    broker_name: str
    master_broker_id: Int64
    master_epoch: Int32


class AlterSyncStateSetResponseHeader(Header):
    """Answer to CONTROLLER_ALTER_SYNC_STATE_SET; the body is the new SyncStateSet."""

    new_sync_state_set_epoch: Int32 = 0


class ElectMasterRequestHeader(Header):
    """CONTROLLER_ELECT_MASTER (1002) of a broker or, with `designate_elect`, of an administrator for this broker id.

    A broker id of -1 is no broker's.
    """

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = -1
    designate_elect: bool = False


class ElectMasterResponseHeader(Header):
    """Answer to CONTROLLER_ELECT_MASTER; the body is an ElectMasterResponseBody."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class GetReplicaInfoRequestHeader(Header):
    """CONTROLLER_GET_REPLICA_INFO (1004)."""

    broker_name: str


class GetReplicaInfoResponseHeader(Header):
    """Answer to CONTROLLER_GET_REPLICA_INFO; the body is a SyncStateSet."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class GetMetaDataResponseHeader(Header):
    """Answer to CONTROLLER_GET_METADATA_INFO (1005); `peers` are "id:host:port;..." ."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class NotifyBrokerRoleChangedRequestHeader(Header):
    """NOTIFY_BROKER_ROLE_CHANGED (1008), sent by a controller to the brokers of a set; the body is a SyncStateSet."""

    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None


class CleanControllerBrokerDataRequestHeader(Header):
    """CLEAN_BROKER_DATA (1011); the ids are "1;2;3", without any the whole broker set is meant."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False


class ControllerHeartbeatRequestHeader(BrokerHeartbeatRequestHeader):
    """BROKER_HEARTBEAT (904) to a controller: how far the broker is, and how much it wants to be master.

    The lower its priority, the rather it is elected.
    """

    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    election_priority: Int32 | None = None
