"""Typed request and response headers: what a command's ext fields mean.

Each class is plain data; its wire names are Java's camel case (remoting/protocol/header/*). Fields without a default
are required (@CFNotNull). Read one with `RemotingCommand.read_header`, write one with `RemotingCommand.request`.
"""

from __future__ import annotations

from functools import cache

import msgspec

from gantrymq.protocol.java import Int32, Int64


class Header(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all headers."""


@cache
def _field_names(header_type: type[Header]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(header_type.__struct_fields__, header_type.__struct_encode_fields__, strict=True))


def header_fields(header: Header) -> dict[str, str]:
    """The ext fields of a header: every value as Java's toString, None left out."""
    fields: dict[str, str] = {}
    for name, wire_name in _field_names(type(header)):
        value = getattr(header, name)
        if type(value) is str:
            fields[wire_name] = value
        elif value is not None:
            fields[wire_name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return fields


class SendMessageRequestHeader(Header):
    """SEND_MESSAGE (10)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None


class SendMessageRequestHeaderV2(SendMessageRequestHeader, rename=None):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): the same fields under one-letter names."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: Int32 = msgspec.field(name="d")
    queue_id: Int32 = msgspec.field(name="e")
    sys_flag: Int32 = msgspec.field(name="f")
    born_timestamp: Int64 = msgspec.field(name="g")
    flag: Int32 = msgspec.field(name="h")
    properties: str | None = msgspec.field(name="i", default=None)
    reconsume_times: Int32 | None = msgspec.field(name="j", default=None)
    unit_mode: bool | None = msgspec.field(name="k", default=None)
    max_reconsume_times: Int32 | None = msgspec.field(name="l", default=None)
    batch: bool | None = msgspec.field(name="m", default=None)
    broker_name: str | None = msgspec.field(name="n", default=None)


class SendMessageResponseHeader(Header):
    """Answer to a send; `msg_id` is the offset message id, joined by commas for a batch."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class PullMessageRequestHeader(Header):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361); `sys_flag` holds the PULL_ bits of `protocol.sys_flag`."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None


class PullMessageResponseHeader(Header):
    """Answer to a pull; the body is the found records, one after the other."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class QueryConsumerOffsetRequestHeader(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequestHeader(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class QueueRequestHeader(Header):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32


class SearchOffsetRequestHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29); `boundary_type` is LOWER or UPPER."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class OffsetResponseHeader(Header):
    """Answer to 14, 29, 30 and 31."""

    offset: Int64


class StoreTimeResponseHeader(Header):
    """Answer to GET_EARLIEST_MSG_STORETIME (32), in ms."""

    timestamp: Int64


class GroupRequestHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP (38) and NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    consumer_group: str


class UnregisterClientRequestHeader(Header):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerSendMsgBackRequestHeader(Header):
    """CONSUMER_SEND_MSG_BACK (36); `offset` is the record's place in the commit log."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class CreateTopicRequestHeader(Header):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: str | None = None


class TopicRequestHeader(Header):
    """Requests about one topic."""

    topic: str


class GetRouteInfoRequestHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class BrokerRequestHeader(Header):
    """What every request of a broker to a NameServer says of itself (104, 322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class RegisterBrokerRequestHeader(BrokerRequestHeader):
    """REGISTER_BROKER (103); a `body_crc32` of 0 is not checked."""

    ha_server_addr: str
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerResponseHeader(Header):
    """Answer to REGISTER_BROKER: a slave learns its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerHeartbeatRequestHeader(Header):
    """BROKER_HEARTBEAT (904)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None


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
    """Answer to GET_KV_CONFIG."""

    value: str


class GetKVListByNamespaceRequestHeader(Header):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class BrokerNameRequestHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class WipeWritePermResponseHeader(Header):
    """Answer to WIPE_WRITE_PERM_OF_BROKER: how many topics it touched."""

    wipe_topic_count: Int32


class AddWritePermResponseHeader(Header):
    """Answer to ADD_WRITE_PERM_OF_BROKER: how many topics it touched."""

    add_topic_count: Int32


class DeleteTopicInNamesrvRequestHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV (216); without a cluster the topic goes everywhere."""

    topic: str
    cluster_name: str | None = None


class GetTopicsByClusterRequestHeader(Header):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class QueryDataVersionResponseHeader(Header):
    """Answer to QUERY_DATA_VERSION (322): whether the broker must register again."""

    changed: bool


class GetBrokerMemberGroupRequestHeader(Header):
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str
    broker_name: str


class NotifyMinBrokerIdChangeRequestHeader(Header):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), sent by a NameServer to the brokers of one name."""

    min_broker_id: Int64
    min_broker_addr: str
    broker_name: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class GetBrokerConfigResponseHeader(Header):
    """Answer to GET_BROKER_CONFIG (26): a DataVersion in JSON."""

    version: str


class DeleteSubscriptionGroupRequestHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP (207); `clean_offset` forgets how far the group has got."""

    group_name: str
    clean_offset: bool = False


class GetSubscriptionGroupConfigRequestHeader(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352), QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class UpdateGroupForbiddenRequestHeader(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353); without `readable` nothing changes."""

    group: str
    topic: str
    readable: bool | None = None


class GetProducerConnectionListRequestHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class GetConsumeStatsRequestHeader(Header):
    """GET_CONSUME_STATS (208); `topic_list` separates names by semicolons and goes before `topic`."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumeStatsInBrokerHeader(Header):
    """GET_BROKER_CONSUME_STATS (317); `is_order` leaves out topics that keep no order."""

    is_order: bool = False


class QuerySubscriptionByConsumerRequestHeader(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str


class QueryConsumeTimeSpanRequestHeader(Header):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class QueryConsumeQueueRequestHeader(Header):
    """QUERY_CONSUME_QUEUE (321): `count` units from queue offset `index` on."""

    topic: str
    queue_id: Int32
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class ResetOffsetRequestHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220).

    A `timestamp` (ms) of -1 is the end. With a `queue_id` and an `offset` other than -1 that queue goes to that offset.
    """

    topic: str
    group: str
    timestamp: Int64
    queue_id: Int32 = -1
    offset: Int64 | None = None
    is_force: bool = False


class GetConsumerStatusRequestHeader(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221).

    `client_addr` is a client id, None for all of the group.
    """

    topic: str
    group: str
    client_addr: str | None = None


class CloneGroupOffsetRequestHeader(Header):
    """CLONE_GROUP_OFFSET (314); without a topic all topics of the source group."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffsetHeader(Header):
    """QUERY_CORRECTION_OFFSET (308); `filter_groups` are separated by commas and don't count."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class ViewMessageRequestHeader(Header):
    """VIEW_MESSAGE_BY_ID (33); `offset` is the record's place in the commit log."""

    offset: Int64
    topic: str | None = None


class ViewBrokerStatsDataRequestHeader(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class GetConsumerRunningInfoRequestHeader(Header):
    """GET_CONSUMER_RUNNING_INFO (307), to a broker and from it to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY (309), to a broker and from it to the client; `msg_id` is an offset message id."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class QueryMessageRequestHeader(Header):
    """QUERY_MESSAGE (12): the newest `max_num` messages with a key, stored between two times (ms)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class QueryMessageResponseHeader(Header):
    """Answer to QUERY_MESSAGE: the newest message in the index."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64
