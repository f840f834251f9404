"""Which request needs which permission in plain_acl.yml (`PlainAccessResource.parse`, `Permission.ADMIN_CODE`).

As of RocketMQ 5.2, the last with these files; what is not named here needs a signature alone. Java forgets those
marked as added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gantrymq.auth.plain_acl import Perm
from gantrymq.protocol.bodies.heartbeat import HeartbeatData
from gantrymq.protocol.bodies.pop import BatchAckBody
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.receipt_handle import normal_topic
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, retry_topic

Fields = Mapping[str, str]
#: (topic, or a group's retry topic; what is to be done with it)
PlainNeed = tuple[str, Perm]
_Find = Callable[[Fields, bytes], Iterable[PlainNeed]]

ADMIN_CODES = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        # Added: the same for several, and 5.x' users, which only the other way of access control reads.
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        *(code for code in RequestCode if code.name.startswith("AUTH_")),
    }
)


def plain_needs(code: int, fields: Fields, body: bytes) -> Iterable[PlainNeed]:
    """What a request needs. Raises BodyError for a heartbeat that can't be read."""
    find = _FINDERS.get(code)
    return () if find is None else find(fields, body)


def _sending(topic_field: str) -> _Find:
    """Of the topic, or the group whose retry topic it is. Java asks for the group that the sender says it is of."""

    def find(fields: Fields, body: bytes) -> Iterable[PlainNeed]:
        topic = fields.get(topic_field, "")
        return ((topic, Perm.SUB if topic.startswith(RETRY_TOPIC_PREFIX) else Perm.PUB),)

    return find


def _replying(topic_field: str) -> _Find:
    """Nothing for the topic of replies, whose name ends so; any other is one that is sent to."""
    sending = _sending(topic_field)

    def find(fields: Fields, body: bytes) -> Iterable[PlainNeed]:
        return () if fields.get(topic_field, "").endswith("_REPLY_TOPIC") else sending(fields, body)

    return find


def _consuming(*, topic: str | None = None, group: str | None = None) -> _Find:
    """SUB of the topic and the group in these fields; a field that isn't there asks for nothing."""

    def find(fields: Fields, body: bytes) -> Iterable[PlainNeed]:
        if topic is not None and topic in fields:
            yield fields[topic], Perm.SUB
        if group is not None and group in fields:
            yield retry_topic(fields[group]), Perm.SUB

    return find


def _popped(topic: str, group: str) -> Iterable[PlainNeed]:
    """What came back is in a retry topic of the group, made of both names."""
    yield normal_topic(topic, group), Perm.SUB
    yield retry_topic(group), Perm.SUB


def _acknowledging(fields: Fields, body: bytes) -> Iterable[PlainNeed]:
    return _popped(fields.get("topic", ""), fields.get("consumerGroup", ""))


def _batch_ack(fields: Fields, body: bytes) -> Iterable[PlainNeed]:
    for ack in decode_json(body, BatchAckBody).acks:
        yield from _popped(ack.topic, ack.group)


def _publishing(fields: Fields, body: bytes) -> Iterable[PlainNeed]:
    return ((fields.get("topic", ""), Perm.PUB),)


def _heartbeat(fields: Fields, body: bytes) -> Iterable[PlainNeed]:
    for consumer in decode_json(body, HeartbeatData).consumer_data_set:
        yield retry_topic(consumer.group_name), Perm.SUB
        for subscription in consumer.subscription_data_set:
            yield subscription.topic, Perm.SUB


_CONSUMING = _consuming(topic="topic", group="consumerGroup")

_FINDERS: dict[int, _Find] = {
    RequestCode.SEND_MESSAGE: _sending("topic"),
    RequestCode.SEND_MESSAGE_V2: _sending("b"),
    RequestCode.SEND_BATCH_MESSAGE: _sending("b"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _consuming(group="group"),
    RequestCode.PULL_MESSAGE: _CONSUMING,
    RequestCode.QUERY_MESSAGE: _consuming(topic="topic"),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _consuming(group="consumerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _consuming(group="consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _CONSUMING,
    # Added.
    RequestCode.LITE_PULL_MESSAGE: _CONSUMING,
    RequestCode.POP_MESSAGE: _CONSUMING,
    RequestCode.PEEK_MESSAGE: _CONSUMING,
    RequestCode.ACK_MESSAGE: _acknowledging,
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _acknowledging,
    RequestCode.NOTIFICATION: _CONSUMING,
    RequestCode.SEND_REPLY_MESSAGE: _replying("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _replying("b"),
    RequestCode.RECALL_MESSAGE: _publishing,
}
