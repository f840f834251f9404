"""Need: what a request must be allowed to do, and the few words in which rules say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gantrymq.auth.policy import Action, Pattern, Resource, ResourceType
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX

#: The record that begins at a physical offset and stands in its queue; None where none does.
RecordAt = Callable[[int], Record | None]


class Need(NamedTuple):
    """One of `actions` must be allowed on `resource`.

    A resource with `Pattern.ANY` is all of its kind: one must be allowed that for all of them, and denied it for none.
    """

    resource: Resource
    actions: tuple[Action, ...]


class Guarded(NamedTuple):
    """What rules have to know of the broker whose requests they are about."""

    cluster: str
    record_at: RecordAt


#: Whatever it is: some right on something. What a request needs that names nothing.
ANYTHING = Need(Resource(ResourceType.ANY, "", Pattern.ANY), (Action.ANY,))

_ALL_TOPICS = Resource(ResourceType.TOPIC, "", Pattern.ANY)
_ALL_GROUPS = Resource(ResourceType.GROUP, "", Pattern.ANY)


def group_need(name: str, actions: tuple[Action, ...]) -> Need:
    """Without a name it is about all groups. A retry topic's name stands for its group's."""
    name = name.removeprefix(RETRY_TOPIC_PREFIX)
    return Need(Resource(ResourceType.GROUP, name) if name.strip() else _ALL_GROUPS, actions)


def topic_need(name: str, actions: tuple[Action, ...]) -> Need:
    """Without a name it is about all topics. A retry topic is its group's."""
    if name.startswith(RETRY_TOPIC_PREFIX):
        return group_need(name, actions)
    return Need(Resource(ResourceType.TOPIC, name) if name.strip() else _ALL_TOPICS, actions)


def send_need(topic: str) -> Need:
    """What a sender needs. Java asks for the group that the sender says it is of, where the topic is a retry topic."""
    if topic.startswith(RETRY_TOPIC_PREFIX):
        return group_need(topic, (Action.SUB,))
    return topic_need(topic, (Action.PUB,))
