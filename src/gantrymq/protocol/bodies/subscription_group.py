"""A consumer group as brokers are told of it and keep it (remoting/protocol/subscription/*, body/*)."""

from __future__ import annotations

from typing import Any

import msgspec

from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.bodies.topic_config import DataVersion
from gantrymq.protocol.java import Int32, Int64


class GroupRetryPolicy(msgspec.Struct, rename="camel"):
    """How the delays between retries grow; CUSTOMIZED is the delay levels."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: dict[str, Any] | None = None
    customized_retry_policy: dict[str, Any] | None = None


class SubscriptionGroupConfig(msgspec.Struct, rename="camel"):
    """One group; `consume_timeout_minute` in minutes."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    group_retry_policy: GroupRetryPolicy = msgspec.field(default_factory=GroupRetryPolicy)
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    subscription_data_set: list[dict[str, Any]] | None = None
    attributes: dict[str, str] = {}


class SubscriptionGroupList(msgspec.Struct, rename="camel"):
    """The body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""

    group_config_list: list[SubscriptionGroupConfig] = []


class SubscriptionGroupWrapper(msgspec.Struct, rename="camel"):
    """All groups of a broker: the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), and subscriptionGroup.json.

    `forbidden_table` is group -> topic -> bits of what the group may not do.
    """

    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
    forbidden_table: dict[str, dict[str, Int32]] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class GroupForbidden(msgspec.Struct):
    """The answer to UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str
    readable: bool


class QuerySubscriptionResponseBody(msgspec.Struct, rename="camel"):
    """The answer to QUERY_SUBSCRIPTION_BY_CONSUMER (345); no subscription when the group has none or isn't online."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None
