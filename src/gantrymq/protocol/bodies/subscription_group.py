"""Bodies with consumer groups, which brokers also store (remoting/protocol/subscription/*, body/*)."""

from __future__ import annotations

from typing import Any

import msgspec

from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.bodies.topic_config import DataVersion
from gantrymq.protocol.java import Int32, Int64


class GroupRetryPolicy(msgspec.Struct, rename="camel"):
    """The delays between retries. CUSTOMIZED uses the delay levels."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: dict[str, Any] | None = None
    customized_retry_policy: dict[str, Any] | None = None


class SubscriptionGroupConfig(msgspec.Struct, rename="camel"):
    """The configuration of one group. `consume_timeout_minute` is in minutes."""

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
    """All groups of a broker: the response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), and subscriptionGroup.json.

    `forbidden_table` maps group and topic to the bits of forbidden operations.
    """

    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
    forbidden_table: dict[str, dict[str, Int32]] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class GroupForbidden(msgspec.Struct):
    """The response to UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str
    readable: bool


class QuerySubscriptionResponseBody(msgspec.Struct, rename="camel"):
    """The response to QUERY_SUBSCRIPTION_BY_CONSUMER (345). Empty if the group is offline or does not subscribe."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None
