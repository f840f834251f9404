"""Rules that derive the needs of a request from its header, its body, or the record that it refers to.

A missing field means all topics or all groups. Rules decode bodies and header numbers with the types of the handlers,
so that rules and handlers interpret a request in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from gantrymq.auth.permission import Guarded, Need, group_need, send_need, topic_need
from gantrymq.auth.policy import Action, Resource, ResourceType
from gantrymq.errors import ProtocolError
from gantrymq.protocol import properties as names
from gantrymq.protocol.bodies.connection import CheckClientRequestBody
from gantrymq.protocol.bodies.heartbeat import HeartbeatData
from gantrymq.protocol.bodies.lite import LiteSubscriptionAction, LiteSubscriptionCtlBody
from gantrymq.protocol.bodies.offset import QueueLockRequest
from gantrymq.protocol.bodies.pop import BatchAckBody, QueryAssignmentRequestBody, RequestMode
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig, SubscriptionGroupList
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_request_json
from gantrymq.protocol.headers.group import ConsumeMessageDirectlyResultRequestHeader
from gantrymq.protocol.headers.query import ViewMessageRequestHeader
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.headers.transaction import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.receipt_handle import normal_topic
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_HALF_TOPIC,
)

Actions = tuple[Action, ...]
#: Returns the needs of a request. Raises HeaderError or BodyError for an invalid request.
Rule = Callable[[RemotingCommand, Guarded], Iterable[Need]]

_SUB = (Action.SUB,)
#: Topics whose records have their target topic in the property REAL_TOPIC. Only brokers write to these topics, so the
#: property can be trusted.
_WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, TRANSACTION_HALF_TOPIC, TRANSACTION_CHECK_MAX_TIME_TOPIC})

# -- header ----------------------------------------------------------------------------------------------


def named(actions: Actions, *, topic: str | None = None, group: str | None = None) -> Rule:
    """Returns a rule for the topic and the group in header fields."""

    def find(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
        if topic is not None:
            yield topic_need(request.ext_fields.get(topic, ""), actions)
        if group is not None:
            yield group_need(request.ext_fields.get(group, ""), actions)

    return find


def sending(topic: str) -> Rule:
    """Returns a rule for a send to the topic in a header field."""

    def find(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
        return (send_need(request.ext_fields.get(topic, "")),)

    return find


def replying(topic: str) -> Rule:
    """Returns a rule for a reply: the rule of a send, but no need for the cluster's reply topic, as in Java."""

    def find(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
        name = request.ext_fields.get(topic, "")
        return () if name == f"{broker.cluster}_REPLY_TOPIC" else (send_need(name),)

    return find


def ending_half_messages(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """END_HALF_MESSAGES: a send to each topic. The broker ends only half messages of these topics."""
    named_topics = [name for name in request.ext_fields.get("topics", "").split(",") if name.strip()]
    return [send_need(name) for name in named_topics or [""]]


def everything(actions: Actions, kind: ResourceType) -> Rule:
    """Returns a rule for all topics or all groups."""
    need = topic_need("", actions) if kind is ResourceType.TOPIC else group_need("", actions)
    return lambda request, broker: (need,)


def of_broker(actions: Actions) -> Rule:
    """Returns a rule for the broker's own cluster. The cluster in the request is ignored."""

    def find(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
        return (Need(Resource(ResourceType.CLUSTER, broker.cluster), actions),)

    return find


def leaving(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """UNREGISTER_CLIENT. Producer groups are not resources."""
    group = request.ext_fields.get("consumerGroup", "")
    return (group_need(group, _SUB),) if group.strip() else ()


def looking_at_progress(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """GET_CONSUME_STATS: the listed topics, or the named one, or all topics."""
    get = (Action.GET,)
    yield group_need(request.ext_fields.get("consumerGroup", ""), get)
    listed = [name for name in request.ext_fields.get("topicList", "").split(";") if name.strip()]
    for name in listed or [request.ext_fields.get("topic", "")]:
        yield topic_need(name, get)


def correcting(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """QUERY_CORRECTION_OFFSET. The filtered groups are optional."""
    get = (Action.GET,)
    yield topic_need(request.ext_fields.get("topic", ""), get)
    yield group_need(request.ext_fields.get("compareGroup", ""), get)
    for name in request.ext_fields.get("filterGroups", "").split(","):
        if name.strip():
            yield group_need(name, get)


def looking_at_units(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """QUERY_CONSUME_QUEUE. The group is optional."""
    get = (Action.GET,)
    yield topic_need(request.ext_fields.get("topic", ""), get)
    group = request.ext_fields.get("consumerGroup", "")
    if group:
        yield group_need(group, get)


def cloning(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """CLONE_GROUP_OFFSET. Java does not check the source group."""
    yield group_need(request.ext_fields.get("destGroup", ""), (Action.UPDATE,))
    yield topic_need(request.ext_fields.get("topic", ""), (Action.UPDATE,))
    yield group_need(request.ext_fields.get("srcGroup", ""), (Action.GET,))


# -- body ------------------------------------------------------------------------------------------------


class _TopicList(msgspec.Struct, rename="camel"):
    """The type that `TopicAdmin` decodes."""

    topic_config_list: list[TopicConfig] = []


def _of_subscriptions(group: str, topics: Iterable[str]) -> Iterable[Need]:
    yield group_need(group, _SUB)
    for topic in dict.fromkeys(topics):
        yield topic_need(topic, _SUB)


def heartbeat(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """HEART_BEAT. Producer groups are not resources. Rights are checked when a transaction check is sent."""
    for consumer in decode_request_json(request.body, HeartbeatData).consumer_data_set:
        yield from _of_subscriptions(consumer.group_name, (each.topic for each in consumer.subscription_data_set))


def checking_client(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    wanted = decode_request_json(request.body, CheckClientRequestBody)
    return _of_subscriptions(
        wanted.group, () if wanted.subscription_data is None else (wanted.subscription_data.topic,)
    )


def locking(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    locked = decode_request_json(request.body, QueueLockRequest)
    return _of_subscriptions(locked.consumer_group, (queue.topic for queue in locked.mq_set))


def assigning(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    wanted, actions = decode_request_json(request.body, QueryAssignmentRequestBody), (Action.SUB, Action.GET)
    return group_need(wanted.consumer_group, actions), topic_need(wanted.topic, actions)


def setting_mode(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    wanted, update = decode_request_json(request.body, RequestMode), (Action.UPDATE,)
    return group_need(wanted.consumer_group, update), topic_need(wanted.topic, update)


def creating_topics(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    wanted = decode_request_json(request.body, _TopicList).topic_config_list
    return [topic_need(topic.topic_name, (Action.CREATE,)) for topic in wanted]


def creating_group(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    return (group_need(decode_request_json(request.body, SubscriptionGroupConfig).group_name, (Action.CREATE,)),)


def creating_groups(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    wanted = decode_request_json(request.body, SubscriptionGroupList).group_config_list
    return [group_need(group.group_name, (Action.CREATE,)) for group in wanted]


def _consumed(topic: str, group: str) -> Iterable[Need]:
    """Yields the needs for a message that was delivered to a group.

    The name of a retry topic of POP contains both group and topic. Java uses the whole name as the name of the group.
    """
    return group_need(group, _SUB), topic_need(normal_topic(topic, group), _SUB)


def acknowledging(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    return _consumed(request.ext_fields.get("topic", ""), request.ext_fields.get("consumerGroup", ""))


def acknowledging_batch(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    for ack in decode_request_json(request.body, BatchAckBody).acks if request.body else ():
        yield from _consumed(ack.topic, ack.group)


def subscribing_to_lite_topics(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """LITE_SUBSCRIPTION_CTL. Java checks nothing."""
    body = decode_request_json(request.body, LiteSubscriptionCtlBody) if request.body else LiteSubscriptionCtlBody()
    for change in body.subscription_set:
        if change.action is not LiteSubscriptionAction.COMPLETE_REMOVE:
            yield from _consumed(change.topic, change.group)


# -- record --------------------------------------------------------------------------------------
#
# The topic of the record decides, not the topic in the request. If no record begins at the offset, the handler rejects
# the request, so the rule needs no particular permission.


def _by_id(message_id: str, broker: Guarded) -> Record | None:
    try:
        return broker.record_at(decode_offset_message_id(message_id)[1])
    except ProtocolError:
        return None


def _topic(record: Record) -> str:
    return record.topic.decode(errors="replace")


def _real_topic(record: Record) -> str:
    topic = _topic(record)
    return decode_properties(record.properties).get(names.REAL_TOPIC, "") if topic in _WAITING_TOPICS else topic


def viewing(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """VIEW_MESSAGE_BY_ID. Java checks only the topic in the request, if the request has one."""
    record = broker.record_at(request.read_header(ViewMessageRequestHeader).offset)
    return () if record is None else (topic_need(_real_topic(record), (Action.SUB, Action.GET)),)


def giving_back(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """CONSUMER_SEND_MSG_BACK. A message in a system topic was not delivered to any group."""
    header = request.read_header(ConsumerSendMsgBackRequestHeader)
    record = broker.record_at(header.offset)
    return (group_need(header.group, _SUB),) if record is None else _consumed(_topic(record), header.group)


def consuming_directly(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """CONSUME_MESSAGE_DIRECTLY: the broker delivers the message to a client of the group."""
    header = request.read_header(ConsumeMessageDirectlyResultRequestHeader)
    record = _by_id(header.msg_id or "", broker)
    if record is None:
        return (group_need(header.consumer_group, _SUB),)
    return _consumed(_real_topic(record), header.consumer_group)


def ending_transaction(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """END_TRANSACTION: a send to the target topic of the half message."""
    record = broker.record_at(request.read_header(EndTransactionRequestHeader).commit_log_offset)
    return () if record is None else (send_need(_real_topic(record)),)


def resuming_check(request: RemotingCommand, broker: Guarded) -> Iterable[Need]:
    """RESUME_CHECK_HALF_MESSAGE."""
    record = _by_id(request.read_header(ResumeCheckHalfMessageRequestHeader).msg_id, broker)
    return () if record is None else (topic_need(_real_topic(record), (Action.UPDATE,)),)
