"""Which request needs which action on what, under access control of 5.x.

Source: auth/authorization/builder/DefaultAuthorizationContextBuilder and, for requests that it doesn't list, the
annotations of their headers (remoting/protocol/header/*). What neither lists needs a known user alone; those that Java
forgets, though they change the broker or read messages, are in `_ADDED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from gantrymq.auth.policy import Action, Resource, ResourceType
from gantrymq.protocol.bodies.heartbeat import HeartbeatData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.receipt_handle import normal_topic
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX, TRANSACTION_HALF_TOPIC

Fields = Mapping[str, str]


class Need(NamedTuple):
    """One of `actions` must be allowed on `resource`."""

    resource: Resource
    actions: tuple[Action, ...]


_Find = Callable[[Fields, bytes, str], Iterable[Need]]

_PUB, _SUB = (Action.PUB,), (Action.SUB,)
_CREATE, _UPDATE, _DELETE, _GET = (Action.CREATE,), (Action.UPDATE,), (Action.DELETE,), (Action.GET,)
_SUB_GET, _SUB_UPDATE = (Action.SUB, Action.GET), (Action.SUB, Action.UPDATE)
_PUB_SUB_GET = (Action.PUB, Action.SUB, Action.GET)


def needs(code: int, fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
    """What a request to a broker of `cluster` needs. Raises BodyError for a body that can't be read."""
    find = _FINDERS.get(code)
    return () if find is None else find(fields, body, cluster)


# -- resources --------------------------------------------------------------------------------------------------


def _topic(name: str, actions: tuple[Action, ...]) -> Need:
    return Need(Resource(ResourceType.TOPIC, name), actions)


def _group(name: str, actions: tuple[Action, ...]) -> Need:
    return Need(Resource(ResourceType.GROUP, name.removeprefix(RETRY_TOPIC_PREFIX)), actions)


def _topic_or_group(topic: str, actions: tuple[Action, ...]) -> Need:
    """A retry topic stands for its group."""
    return _group(topic, actions) if topic.startswith(RETRY_TOPIC_PREFIX) else _topic(topic, actions)


# -- how they are found -----------------------------------------------------------------------------------------


def _sending(topic_field: str) -> _Find:
    """Of the topic, or the group whose retry topic it is. Java asks for the group that the sender says it is of."""

    def find(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
        topic = fields.get(topic_field, "")
        return (_group(topic, _SUB) if topic.startswith(RETRY_TOPIC_PREFIX) else _topic(topic, _PUB),)

    return find


def _replying(topic_field: str) -> _Find:
    """Nothing for the topic of replies, as in Java; any other is one that is sent to."""
    sending = _sending(topic_field)

    def find(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
        return () if fields.get(topic_field) == f"{cluster}_REPLY_TOPIC" else sending(fields, body, cluster)

    return find


def _ending(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
    """Of the topic. Who was asked about a transaction names that of half messages, as the question did."""
    topic = fields.get("topic", "")
    return () if topic in ("", TRANSACTION_HALF_TOPIC) else (_topic(topic, _PUB),)


def _popped(topic: str, group: str) -> Iterable[Need]:
    """What came back is in a retry topic of the group; Java takes the topic's name for a part of the group's."""
    yield _group(group, _SUB)
    yield _topic_or_group(normal_topic(topic, group), _SUB)


def _acknowledging(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
    return _popped(fields.get("topic", ""), fields.get("consumerGroup", ""))


def _consuming(actions: tuple[Action, ...]) -> _Find:
    """Of the topic and the group. Java looks at no retry topic, so that one group may read another's."""

    def find(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
        yield _topic_or_group(fields.get("topic", ""), actions)
        yield _group(fields.get("consumerGroup", ""), actions)

    return find


def _named(
    actions: tuple[Action, ...], *, topics: tuple[str, ...] = (), groups: tuple[str, ...] = (), separator: str = ""
) -> _Find:
    """The topics and groups in these fields, several in one where it has separators; a missing field needs nothing."""

    def find(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
        for field, named in ((groups, _group), (topics, _topic_or_group)):
            for name in field:
                value = fields.get(name, "")
                for part in value.split(separator) if separator else (value,):
                    if part:
                        yield named(part, actions)

    return find


def _of_cluster(actions: tuple[Action, ...]) -> _Find:
    def find(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
        return (Need(Resource(ResourceType.CLUSTER, fields.get("clusterName") or cluster), actions),)

    return find


def _route(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
    topic = fields.get("topic", "")
    actions = _SUB_GET if topic.startswith(RETRY_TOPIC_PREFIX) else _PUB_SUB_GET
    return (_topic_or_group(topic, actions),)


def _heartbeat(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
    for consumer in decode_json(body, HeartbeatData).consumer_data_set:
        yield _group(consumer.group_name, _SUB)
        for subscription in consumer.subscription_data_set:
            if not subscription.topic.startswith(RETRY_TOPIC_PREFIX):
                yield _topic(subscription.topic, _SUB)


class _Queue(msgspec.Struct):
    topic: str


class _LockBatchBody(msgspec.Struct, rename="camel"):
    consumer_group: str
    mq_set: list[_Queue] = []


def _lock(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
    locked = decode_json(body, _LockBatchBody)
    yield _group(locked.consumer_group, _SUB)
    for topic in {queue.topic for queue in locked.mq_set}:
        if not topic.startswith(RETRY_TOPIC_PREFIX):
            yield _topic(topic, _SUB)


class _Ack(msgspec.Struct):
    consumer_group: str | None = msgspec.field(name="c", default=None)
    topic: str | None = msgspec.field(name="t", default=None)


class _BatchAckBody(msgspec.Struct):
    acks: list[_Ack] = []


def _batch_ack(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
    for ack in decode_json(body, _BatchAckBody).acks:
        yield from _popped(ack.topic or "", ack.consumer_group or "")


class _ModeBody(msgspec.Struct, rename="camel"):
    topic: str = ""
    consumer_group: str = ""


def _mode(actions: tuple[Action, ...]) -> _Find:
    def find(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
        wanted = decode_json(body, _ModeBody)
        yield _group(wanted.consumer_group, actions)
        yield _topic_or_group(wanted.topic, actions)

    return find


class _TopicName(msgspec.Struct, rename="camel"):
    topic_name: str = ""


class _TopicListBody(msgspec.Struct, rename="camel"):
    topic_config_list: list[_TopicName] = []


def _topic_list(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
    return [_topic(topic.topic_name, _CREATE) for topic in decode_json(body, _TopicListBody).topic_config_list]


class _GroupName(msgspec.Struct, rename="camel"):
    group_name: str = ""


class _GroupListBody(msgspec.Struct, rename="camel"):
    group_config_list: list[_GroupName] = []


def _group_config(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
    return (_group(decode_json(body, _GroupName).group_name, _CREATE),)


def _group_config_list(fields: Fields, body: bytes, cluster: str) -> Iterable[Need]:
    return [_group(group.group_name, _CREATE) for group in decode_json(body, _GroupListBody).group_config_list]


# -- by code ----------------------------------------------------------------------------------------------------

_GROUP_AND_TOPIC_SUB = _named(_SUB, groups=("consumerGroup",), topics=("topic",))
_GROUP_AND_TOPIC_GET = _named(_GET, groups=("consumerGroup",), topics=("topic",))
_GROUP_AND_TOPIC_OF = {actions: _named(actions, groups=("group",), topics=("topic",)) for actions in (_GET, _UPDATE)}
_TOPIC_GET = _named(_GET, topics=("topic",))
_CLUSTER_GET, _CLUSTER_UPDATE = _of_cluster(_GET), _of_cluster(_UPDATE)

_LISTED: dict[int, _Find] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.SEND_MESSAGE: _sending("topic"),
    RequestCode.SEND_MESSAGE_V2: _sending("b"),
    RequestCode.SEND_BATCH_MESSAGE: _sending("b"),
    RequestCode.RECALL_MESSAGE: _named(_PUB, topics=("topic",)),
    RequestCode.END_TRANSACTION: _ending,
    RequestCode.CONSUMER_SEND_MSG_BACK: _named(_SUB, groups=("group",)),
    RequestCode.PULL_MESSAGE: _consuming(_SUB),
    RequestCode.QUERY_MESSAGE: _named(_SUB_GET, topics=("topic",)),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _named(_SUB, groups=("consumerGroup",)),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _named(_SUB_GET, groups=("consumerGroup",)),
    RequestCode.QUERY_CONSUMER_OFFSET: _consuming(_SUB_GET),
    RequestCode.UPDATE_CONSUMER_OFFSET: _consuming(_SUB_UPDATE),
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
}

_ANNOTATED: dict[int, _Find] = {
    RequestCode.POP_MESSAGE: _GROUP_AND_TOPIC_SUB,
    RequestCode.PEEK_MESSAGE: _GROUP_AND_TOPIC_SUB,
    RequestCode.ACK_MESSAGE: _acknowledging,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _acknowledging,
    RequestCode.NOTIFICATION: _GROUP_AND_TOPIC_SUB,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _GROUP_AND_TOPIC_SUB,
    RequestCode.POLLING_INFO: _GROUP_AND_TOPIC_GET,
    RequestCode.QUERY_CONSUME_QUEUE: _GROUP_AND_TOPIC_GET,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _GROUP_AND_TOPIC_GET,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _GROUP_AND_TOPIC_GET,
    RequestCode.GET_CONSUME_STATS: _named(
        _GET, groups=("consumerGroup",), topics=("topic", "topicList"), separator=";"
    ),
    RequestCode.QUERY_CORRECTION_OFFSET: _named(
        _GET, groups=("filterGroups", "compareGroup"), topics=("topic",), separator=","
    ),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _GROUP_AND_TOPIC_OF[_GET],
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _GROUP_AND_TOPIC_OF[_GET],
    RequestCode.QUERY_CONSUME_TIME_SPAN: _GROUP_AND_TOPIC_OF[_GET],
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _GROUP_AND_TOPIC_OF[_GET],
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _GROUP_AND_TOPIC_OF[_GET],
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _GROUP_AND_TOPIC_OF[_UPDATE],
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _GROUP_AND_TOPIC_OF[_UPDATE],
    RequestCode.CLONE_GROUP_OFFSET: _named(_UPDATE, groups=("destGroup",), topics=("topic",)),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _named(_UPDATE, topics=("topic",)),
    RequestCode.UPDATE_AND_CREATE_TOPIC: _named(_CREATE, topics=("topic",)),
    RequestCode.DELETE_TOPIC_IN_BROKER: _named(_DELETE, topics=("topic",)),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _named(_DELETE, groups=("groupName",)),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _TOPIC_GET,
    RequestCode.GET_MAX_OFFSET: _TOPIC_GET,
    RequestCode.GET_MIN_OFFSET: _TOPIC_GET,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _TOPIC_GET,
    RequestCode.VIEW_MESSAGE_BY_ID: _TOPIC_GET,
    RequestCode.GET_TOPIC_STATS_INFO: _TOPIC_GET,
    RequestCode.GET_TOPIC_CONFIG: _TOPIC_GET,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _TOPIC_GET,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _TOPIC_GET,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    RequestCode.GET_ALL_PRODUCER_INFO: _CLUSTER_GET,
    RequestCode.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    RequestCode.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: _CLUSTER_GET,
    RequestCode.GET_BROKER_MEMBER_GROUP: _CLUSTER_GET,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _CLUSTER_UPDATE,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: _CLUSTER_UPDATE,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _CLUSTER_UPDATE,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _CLUSTER_UPDATE,
    RequestCode.AUTH_GET_USER: _CLUSTER_GET,
    RequestCode.AUTH_LIST_USER: _CLUSTER_GET,
    RequestCode.AUTH_GET_ACL: _CLUSTER_GET,
    RequestCode.AUTH_LIST_ACL: _CLUSTER_GET,
    RequestCode.AUTH_CREATE_USER: _CLUSTER_UPDATE,
    RequestCode.AUTH_UPDATE_USER: _CLUSTER_UPDATE,
    RequestCode.AUTH_DELETE_USER: _CLUSTER_UPDATE,
    RequestCode.AUTH_CREATE_ACL: _CLUSTER_UPDATE,
    RequestCode.AUTH_UPDATE_ACL: _CLUSTER_UPDATE,
    RequestCode.AUTH_DELETE_ACL: _CLUSTER_UPDATE,
}

_ADDED: dict[int, _Find] = {
    RequestCode.LITE_PULL_MESSAGE: _consuming(_SUB),
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
    RequestCode.SEND_REPLY_MESSAGE: _replying("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _replying("b"),
    RequestCode.QUERY_ASSIGNMENT: _mode(_SUB_GET),
    RequestCode.SET_MESSAGE_REQUEST_MODE: _mode(_UPDATE),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _topic_list,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_config,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _group_config_list,
    RequestCode.UPDATE_BROKER_CONFIG: _CLUSTER_UPDATE,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _CLUSTER_UPDATE,
    RequestCode.CLEAN_UNUSED_TOPIC: _CLUSTER_UPDATE,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _CLUSTER_UPDATE,
}

_FINDERS = _LISTED | _ANNOTATED | _ADDED
