"""Typed request and response headers: what a command's ext fields mean.

Each class is plain data; its wire names are Java's camel case (remoting/protocol/header/*). Fields without a default
are required (@CFNotNull). Read one with `RemotingCommand.read_header`, write one with `RemotingCommand.request`.
"""

from __future__ import annotations

from functools import cache

import msgspec


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
        if value is None:
            continue
        fields[wire_name] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return fields


class SendMessageRequestHeader(Header):
    """SEND_MESSAGE (10)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: int | None = None


class SendMessageRequestHeaderV2(SendMessageRequestHeader, rename=None):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): the same fields under one-letter names."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: int = msgspec.field(name="d")
    queue_id: int = msgspec.field(name="e")
    sys_flag: int = msgspec.field(name="f")
    born_timestamp: int = msgspec.field(name="g")
    flag: int = msgspec.field(name="h")
    properties: str | None = msgspec.field(name="i", default=None)
    reconsume_times: int | None = msgspec.field(name="j", default=None)
    unit_mode: bool | None = msgspec.field(name="k", default=None)
    max_reconsume_times: int | None = msgspec.field(name="l", default=None)
    batch: bool | None = msgspec.field(name="m", default=None)
    broker_name: str | None = msgspec.field(name="n", default=None)


class SendMessageResponseHeader(Header):
    """Answer to a send; `msg_id` is the offset message id, joined by commas for a batch."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class PullMessageRequestHeader(Header):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361); `sys_flag` holds the PULL_ bits of `protocol.sys_flag`."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    sub_version: int
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    request_source: int | None = None
    proxy_froward_client_id: str | None = None


class PullMessageResponseHeader(Header):
    """Answer to a pull; the body is the found records, one after the other."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None


class QueryConsumerOffsetRequestHeader(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequestHeader(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


class QueueRequestHeader(Header):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: int


class SearchOffsetRequestHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29); `boundary_type` is LOWER or UPPER."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


class OffsetResponseHeader(Header):
    """Answer to 14, 29, 30 and 31."""

    offset: int


class StoreTimeResponseHeader(Header):
    """Answer to GET_EARLIEST_MSG_STORETIME (32), in ms."""

    timestamp: int


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

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


class CreateTopicRequestHeader(Header):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
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
    broker_id: int


class RegisterBrokerRequestHeader(BrokerRequestHeader):
    """REGISTER_BROKER (103); a `body_crc32` of 0 is not checked."""

    ha_server_addr: str
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0


class RegisterBrokerResponseHeader(Header):
    """Answer to REGISTER_BROKER: a slave learns its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerHeartbeatRequestHeader(Header):
    """BROKER_HEARTBEAT (904)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int | None = None
    heartbeat_timeout_mills: int | None = None
