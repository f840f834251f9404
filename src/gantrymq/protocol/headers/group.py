"""Headers of requests about groups and their clients."""

from __future__ import annotations

import msgspec

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32


class GroupRequestHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP (38) and NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    consumer_group: str


class UnregisterClientRequestHeader(Header):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetProducerConnectionListRequestHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class DeleteSubscriptionGroupRequestHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP (207). `clean_offset` also deletes the group's offsets."""

    group_name: str
    clean_offset: bool = False


class GetSubscriptionGroupConfigRequestHeader(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352), QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class UpdateGroupForbiddenRequestHeader(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353). Without `readable`, nothing changes."""

    group: str
    topic: str
    readable: bool | None = None


class QuerySubscriptionByConsumerRequestHeader(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str


class GetConsumerRunningInfoRequestHeader(Header):
    """GET_CONSUMER_RUNNING_INFO (307), to a broker and from the broker to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY (309), which a broker forwards to a client. `msg_id` is an offset message id."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
