"""Bodies of requests about lite topics (`common/lite/*`, `remoting/protocol/body/*Lite*`). Times are in ms."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from gantrymq.errors import ClientError
from gantrymq.protocol.bodies.stats import OffsetWrapper, TopicOffset
from gantrymq.protocol.java import Int64
from gantrymq.times import MAX_MS, timestamp_ms


class LiteSubscriptionAction(StrEnum):
    """A change of a client's subscriptions. COMPLETE_ADD replaces them."""

    PARTIAL_ADD = "PARTIAL_ADD"
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    COMPLETE_ADD = "COMPLETE_ADD"
    COMPLETE_REMOVE = "COMPLETE_REMOVE"


class OffsetOptionType(StrEnum):
    """The meaning of `OffsetOption.value`: a policy, a queue offset, a number of messages or a time in ms."""

    POLICY = "POLICY"
    OFFSET = "OFFSET"
    TAIL_N = "TAIL_N"
    TIMESTAMP = "TIMESTAMP"


#: Values of `OffsetOption` with the type POLICY: the group's offset, the first and the last message.
POLICY_LAST = 0
POLICY_MIN = 1
POLICY_MAX = 2


class OffsetOption(msgspec.Struct, frozen=True):
    """Where a group continues to read a lite topic. Create it with one of the class methods."""

    type: OffsetOptionType = OffsetOptionType.POLICY
    value: Int64 = POLICY_LAST

    @classmethod
    def last_offset(cls) -> OffsetOption:
        """The offset of the group."""
        return cls(OffsetOptionType.POLICY, POLICY_LAST)

    @classmethod
    def min_offset(cls) -> OffsetOption:
        """The first message of the lite topic."""
        return cls(OffsetOptionType.POLICY, POLICY_MIN)

    @classmethod
    def max_offset(cls) -> OffsetOption:
        """The end of the lite topic: only new messages."""
        return cls(OffsetOptionType.POLICY, POLICY_MAX)

    @classmethod
    def of_offset(cls, offset: int) -> OffsetOption:
        """An offset in the lite topic.

        Args:
            offset: Offset of the next message, 0 or more.

        Raises:
            ClientError: The offset is invalid.
        """
        return cls(OffsetOptionType.OFFSET, _whole("offset", offset))

    @classmethod
    def of_tail_n(cls, tail_n: int) -> OffsetOption:
        """A number of messages before the offset of the group.

        Args:
            tail_n: Number of messages, 0 or more.

        Raises:
            ClientError: The number is invalid.
        """
        return cls(OffsetOptionType.TAIL_N, _whole("tail_n", tail_n))

    @classmethod
    def of_timestamp(cls, timestamp: datetime | int) -> OffsetOption:
        """The first message that was stored at a time or later.

        Args:
            timestamp: A datetime with a time zone, or milliseconds since the epoch.

        Raises:
            ClientError: The time is invalid.
        """
        return cls(OffsetOptionType.TIMESTAMP, timestamp_ms("timestamp", timestamp))


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_MS:
        raise ClientError(f"{name}={value!r}: must be a whole number, 0 or more")
    return value


class LiteSubscription(msgspec.Struct, rename="camel"):
    """A change to the subscriptions of a client (`LiteSubscriptionDTO`)."""

    action: LiteSubscriptionAction
    client_id: str = ""
    group: str = ""
    topic: str = ""
    lite_topic_set: list[str] | None = None
    offset_option: OffsetOption | None = None
    version: Int64 = 0


class LiteSubscriptionCtlBody(msgspec.Struct, rename="camel"):
    """The body of LITE_SUBSCRIPTION_CTL (200071)."""

    subscription_set: list[LiteSubscription] = []


class ClientGroup(msgspec.Struct, rename="camel", frozen=True):
    """A subscriber of a lite topic."""

    client_id: str
    group: str


class BrokerLiteInfoBody(msgspec.Struct, rename="camel"):
    """The response to GET_BROKER_LITE_INFO (200074).

    Attributes:
        topic_meta: {parent topic: time after which an unused lite topic expires, in minutes, -1 for never}.
        group_meta: {parent topic: groups that read its lite topics}.
    """

    store_type: str | None = None
    max_lmq_num: int = 0
    current_lmq_num: int = 0
    lite_subscription_count: int = 0
    order_info_count: int = 0
    cq_table_size: int = 0
    offset_table_size: int = 0
    event_map_size: int = 0
    topic_meta: dict[str, int] | None = None
    group_meta: dict[str, list[str]] | None = None


class ParentTopicInfoBody(msgspec.Struct, rename="camel"):
    """The response to GET_PARENT_TOPIC_INFO (200075). `ttl` is in minutes, -1 for never."""

    topic: str | None = None
    ttl: int = 0
    groups: list[str] | None = None
    lmq_num: int = 0
    lite_topic_count: int = 0


class LiteTopicInfoBody(msgspec.Struct, rename="camel"):
    """The response to GET_LITE_TOPIC_INFO (200076).

    `sharding_to_broker` is true if producers send messages of this lite topic to this broker.
    """

    parent_topic: str | None = None
    lite_topic: str | None = None
    subscriber: list[ClientGroup] | None = None
    topic_offset: TopicOffset | None = None
    sharding_to_broker: bool = False


class LiteClientInfoBody(msgspec.Struct, rename="camel"):
    """The response to GET_LITE_CLIENT_INFO (200077). The count is -1 for an unknown client."""

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    last_access_time: int = 0
    last_consume_time: int = 0
    lite_topic_count: int = 0
    lite_topic_set: list[str] | None = None


class LiteLagInfo(msgspec.Struct, rename="camel"):
    """The lag of a group in a lite topic, and the store time of the oldest message of the lag, or -1."""

    lite_topic: str | None = None
    lag_count: int = 0
    earliest_unconsumed_timestamp: int = -1


class LiteGroupInfoBody(msgspec.Struct, rename="camel"):
    """The response to GET_LITE_GROUP_INFO (200078)."""

    group: str | None = None
    parent_topic: str | None = None
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: int = -1
    total_lag_count: int = 0
    lite_topic_offset_wrapper: OffsetWrapper | None = None
    lag_count_top_k: list[LiteLagInfo] | None = msgspec.field(name="lagCountTopK", default=None)
    lag_timestamp_top_k: list[LiteLagInfo] | None = msgspec.field(name="lagTimestampTopK", default=None)
