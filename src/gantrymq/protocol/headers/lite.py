"""Headers of requests about lite topics (remoting/protocol/header/*Lite*). They need JSON headers.

Times are in ms. `pop_time` and `born_time` are ms since the epoch. `bname` is the name of the target broker. A proxy
uses it to forward the request.
"""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64


class PopLiteMessageRequestHeader(Header):
    """POP_LITE_MESSAGE (200070): pops messages of all lite topics to which the client has subscribed."""

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64 = 0
    attempt_id: str | None = None
    bname: str | None = None


class PopLiteMessageResponseHeader(Header):
    """The response to 200070. `order_count_info` has the number of earlier deliveries of each message.

    The entries are separated by semicolons, in the order of the messages: a number, or "FLAG QUEUE%OFFSET NUMBER" from
    Java's broker for a redelivered message. The offset of a message in its lite topic is
    in its property INNER_MULTI_QUEUE_OFFSET.
    """

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class NotifyUnsubscribeLiteRequestHeader(Header):
    """NOTIFY_UNSUBSCRIBE_LITE (200073), to a client: another client of the group has the lite topic now."""

    lite_topic: str
    consumer_group: str
    client_id: str
    bname: str | None = None


class GetParentTopicInfoRequestHeader(Header):
    """GET_PARENT_TOPIC_INFO (200075)."""

    topic: str


class GetLiteTopicInfoRequestHeader(Header):
    """GET_LITE_TOPIC_INFO (200076)."""

    parent_topic: str
    lite_topic: str


class GetLiteClientInfoRequestHeader(Header):
    """GET_LITE_CLIENT_INFO (200077). `max_count` limits the names in the response."""

    parent_topic: str
    group: str
    client_id: str
    max_count: Int32 = 1000


class GetLiteGroupInfoRequestHeader(Header):
    """GET_LITE_GROUP_INFO (200078): the lag in one lite topic, or the `top_k` lite topics with the largest lags."""

    group: str
    lite_topic: str | None = None
    top_k: Int32 = 20


class TriggerLiteDispatchRequestHeader(Header):
    """TRIGGER_LITE_DISPATCH (200079): dispatches all lite topics with messages to one client or to the group."""

    group: str
    client_id: str | None = None
