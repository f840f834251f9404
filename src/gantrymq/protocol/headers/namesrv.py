"""Headers of requests between brokers and NameServers, and of requests that administer a NameServer."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64


class BrokerRequestHeader(Header):
    """The common fields of a broker's requests to a NameServer (104, 322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class RegisterBrokerRequestHeader(BrokerRequestHeader):
    """REGISTER_BROKER (103). A `body_crc32` of 0 is not checked."""

    ha_server_addr: str
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerResponseHeader(Header):
    """The response to REGISTER_BROKER. A slave gets the addresses of its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerHeartbeatRequestHeader(Header):
    """BROKER_HEARTBEAT (904)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None


class QueryDataVersionResponseHeader(Header):
    """The response to QUERY_DATA_VERSION (322). If `changed` is true, the broker must register again."""

    changed: bool


class GetBrokerMemberGroupRequestHeader(Header):
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str
    broker_name: str


class NotifyMinBrokerIdChangeRequestHeader(Header):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), from a NameServer to the brokers of one name."""

    min_broker_id: Int64
    min_broker_addr: str
    broker_name: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class BrokerNameRequestHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class WipeWritePermResponseHeader(Header):
    """The response to WIPE_WRITE_PERM_OF_BROKER: the number of changed topics."""

    wipe_topic_count: Int32


class AddWritePermResponseHeader(Header):
    """The response to ADD_WRITE_PERM_OF_BROKER: the number of changed topics."""

    add_topic_count: Int32


class PutKVConfigRequestHeader(Header):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


class KVConfigRequestHeader(Header):
    """GET_KV_CONFIG (101) and DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header):
    """The response to GET_KV_CONFIG."""

    value: str


class GetKVListByNamespaceRequestHeader(Header):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str
