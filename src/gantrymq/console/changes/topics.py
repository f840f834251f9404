"""Changes of topics."""

from __future__ import annotations

import msgspec

from gantrymq.console.changes.change import Change, changed_attributes, check_typed
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.links import link
from gantrymq.console.pages import BadArguments
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE, TopicConfig

MAX_QUEUES = 1024
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED")
_PERMS = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE}


class CreateTopic(msgspec.Struct):
    name: str
    cluster: str
    queues: int = 8
    message_type: str = "NORMAL"
    attributes: str = ""


class AlterTopic(msgspec.Struct):
    """Changes the queues, permissions and attributes of a topic on each broker. Other settings do not change."""

    name: str
    cluster: str
    write_queues: int
    read_queues: int
    perm: str = "rw"
    attributes: str = ""


class DeleteTopic(msgspec.Struct):
    """Deletes a topic. `typed` is the name that the user typed as a confirmation."""

    name: str
    cluster: str
    typed: str = ""


async def create_topic(view: ClusterView, one: CreateTopic) -> str:
    _check_queues(one.queues)
    if one.message_type not in MESSAGE_TYPES:
        raise BadArguments(f"message type {one.message_type!r}: expected one of {', '.join(MESSAGE_TYPES)}")
    if one.name in (await view.admin.topics_of_cluster(one.cluster)):
        raise GantryError(f"topic {one.name} exists already")
    attributes = changed_attributes(one.attributes)
    if one.message_type != "NORMAL":
        attributes["+message.type"] = one.message_type
    config = TopicConfig(one.name, one.queues, one.queues, attributes=attributes)
    brokers = await view.admin.create_topic(config, cluster=one.cluster)
    return f"topic {one.name} is on {len(brokers)} brokers, with {one.queues} queues on each"


async def alter_topic(view: ClusterView, one: AlterTopic) -> str:
    _check_queues(one.write_queues, 0)
    _check_queues(one.read_queues)
    perm = _PERMS.get(one.perm)
    if perm is None:
        raise BadArguments(f"permission {one.perm!r}: expected one of {', '.join(_PERMS)}")
    attributes = changed_attributes(one.attributes)
    masters = await view.admin.masters_of(one.cluster)
    for address in masters:
        config = await view.admin.topic_config(address, one.name)
        # The broker keeps attributes that the request does not contain.
        changed = msgspec.structs.replace(
            config,
            write_queue_nums=one.write_queues,
            read_queue_nums=one.read_queues,
            perm=perm,
            attributes=attributes,
        )
        await view.admin.create_topic(changed, broker=address)
    return f"topic {one.name} is changed on {len(masters)} brokers"


async def delete_topic(view: ClusterView, one: DeleteTopic) -> str:
    check_typed(one.name, one.typed)
    brokers = await view.admin.delete_topic(one.name, one.cluster)
    return f"topic {one.name} is deleted from {len(brokers)} brokers"


def _check_queues(count: int, fewest: int = 1) -> None:
    if not fewest <= count <= MAX_QUEUES:
        raise BadArguments(f"{count} queues: expected {fewest} to {MAX_QUEUES}")


CHANGES = (
    Change(
        name="create-topic",
        arguments=CreateTopic,
        perform=create_topic,
        back=lambda one: link("topic", name=one.name),
    ),
    Change(
        name="alter-topic",
        arguments=AlterTopic,
        perform=alter_topic,
        back=lambda one: link("topic", name=one.name),
    ),
    Change(
        name="delete-topic",
        arguments=DeleteTopic,
        perform=delete_topic,
        back=lambda one: link("topics"),
    ),
)
