"""Bodies of requests between controllers and brokers (remoting/protocol/body/*)."""

from __future__ import annotations

import msgspec

from gantrymq.protocol.java import Int32, Int64


class SyncStateSet(msgspec.Struct, rename="camel"):
    """The sync-state set: ids of the brokers that have all acknowledged messages. The epoch counts its changes."""

    sync_state_set: list[Int64] = []
    sync_state_set_epoch: Int32 = 0


class BrokerMemberGroup(msgspec.Struct, rename="camel"):
    """The addresses of the brokers of one name, HOST:PORT by broker id."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = {}


class ElectMasterResponseBody(msgspec.Struct, rename="camel", omit_defaults=True):
    """The response to CONTROLLER_ELECT_MASTER. Contains no members if the master has not changed."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[Int64] | None = None


class ReplicaIdentity(msgspec.Struct, rename="camel"):
    """A broker of a broker set."""

    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool | None = None


class ReplicasInfo(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """A broker set. The master fields are None if there is no master."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    in_sync_replicas: list[ReplicaIdentity]
    not_in_sync_replicas: list[ReplicaIdentity]


class BrokerReplicasInfo(msgspec.Struct, rename="camel"):
    """The response to CONTROLLER_GET_SYNC_STATE_DATA: broker sets by name."""

    replicas_info_table: dict[str, ReplicasInfo] = {}


class EpochEntry(msgspec.Struct, rename="camel"):
    """An epoch: the part of the log that one master wrote. The last epoch has no real end yet."""

    epoch: int
    start_offset: int
    end_offset: int = (1 << 63) - 1


class EpochEntryCache(msgspec.Struct, rename="camel"):
    """The response to GET_BROKER_EPOCH_CACHE (1007)."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epoch_list: list[EpochEntry]
    max_offset: int
