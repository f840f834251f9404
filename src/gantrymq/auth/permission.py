"""The permission that a request needs, and functions that create it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gantrymq.auth.policy import Action, Pattern, Resource, ResourceType
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX

#: A function that returns the record at a physical offset if a queue refers to this record, otherwise None.
RecordAt = Callable[[int], Record | None]


class Need(NamedTuple):
    """A needed permission: one of `actions` must be allowed on `resource`.

    `Pattern.ANY` means all resources of the type. The action must then be allowed for all of them and denied for none.
    """

    resource: Resource
    actions: tuple[Action, ...]


class Guarded(NamedTuple):
    """The properties of the broker that the rules use."""

    cluster: str
    record_at: RecordAt


#: The need of a request that names no resource: any permission on any resource.
ANYTHING = Need(Resource(ResourceType.ANY, "", Pattern.ANY), (Action.ANY,))

_ALL_TOPICS = Resource(ResourceType.TOPIC, "", Pattern.ANY)
_ALL_GROUPS = Resource(ResourceType.GROUP, "", Pattern.ANY)


def group_need(name: str, actions: tuple[Action, ...]) -> Need:
    """Returns the need for a group. An empty name means all groups. The name of a retry topic means its group."""
    name = name.removeprefix(RETRY_TOPIC_PREFIX)
    return Need(Resource(ResourceType.GROUP, name) if name.strip() else _ALL_GROUPS, actions)


def topic_need(name: str, actions: tuple[Action, ...]) -> Need:
    """Returns the need for a topic. An empty name means all topics. A retry topic means its group."""
    if name.startswith(RETRY_TOPIC_PREFIX):
        return group_need(name, actions)
    return Need(Resource(ResourceType.TOPIC, name) if name.strip() else _ALL_TOPICS, actions)


def send_need(topic: str) -> Need:
    """Returns the need of a send: to a retry topic, SUB of its group. Java checks the group in the request instead."""
    if topic.startswith(RETRY_TOPIC_PREFIX):
        return group_need(topic, (Action.SUB,))
    return topic_need(topic, (Action.PUB,))
