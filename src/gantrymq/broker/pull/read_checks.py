"""Checks for both pull and pop requests (`PullMessageProcessor`, `PopMessageProcessor`). Their order differs.

All functions raise RequestRefused.
"""

from __future__ import annotations

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.tables import BrokerTopics, SubscriptionGroupTable
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import PERM_READ, TopicConfig
from gantrymq.protocol.codes import ResponseCode


def check_broker(config: BrokerConfig, doing: str) -> None:
    """Checks that the broker allows reads. `doing` is Java's word for the request, such as "pulling"."""
    if not config.broker_permission & PERM_READ:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] {doing} message is forbidden"
        )


def existing_topic(topics: BrokerTopics, name: str) -> TopicConfig:
    """Returns the topic if it exists."""
    topic = topics.get(name)
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
    return topic


def readable_topic(topics: BrokerTopics, name: str, doing: str) -> TopicConfig:
    """Returns the topic if it exists and is readable."""
    topic = existing_topic(topics, name)
    if not topic.is_readable:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{name}] {doing} message is forbidden")
    return topic


def check_queue_id(topic: TopicConfig, queue_id: int, code: int = ResponseCode.INVALID_PARAMETER) -> None:
    """Checks that the topic has a read queue with this id. `code` is the code of the error."""
    if not 0 <= queue_id < topic.read_queue_nums:
        raise RequestRefused(
            code,
            f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] topicConfig.readQueueNums:"
            f"[{topic.read_queue_nums}]",
        )


def existing_group(groups: SubscriptionGroupTable, name: str) -> SubscriptionGroupConfig:
    """Returns the group if it exists."""
    group = groups.get(name)
    if group is None:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist")
    return group
