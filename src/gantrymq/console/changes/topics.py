"""Topics, made, changed and deleted."""

from __future__ import annotations

import msgspec

from gantrymq.console.changes.change import Change, check_typed
from gantrymq.console.eye import Eye
from gantrymq.console.links import link
from gantrymq.console.pages import BadArguments
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE, TopicConfig

MAX_QUEUES = 1024
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
_PERMS = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE}


class CreateTopic(msgspec.Struct):
    name: str
    cluster: str
    queues: int = 8
    message_type: str = "NORMAL"


class AlterTopic(msgspec.Struct):
    """Queues on each broker; no broker of the cluster loses other settings."""

    name: str
    cluster: str
    write_queues: int
    read_queues: int
    perm: str = "rw"


class DeleteTopic(msgspec.Struct):
    """`typed` is the name once more, as its user typed it."""

    name: str
    cluster: str
    typed: str = ""


async def create_topic(eye: Eye, one: CreateTopic) -> str:
    _check_queues(one.queues)
    if one.message_type not in MESSAGE_TYPES:
        raise BadArguments(f"{one.message_type!r}: a topic's type is one of {', '.join(MESSAGE_TYPES)}")
    if one.name in (await eye.admin.topics_of_cluster(one.cluster)):
        raise GantryError(f"there is a topic {one.name} already")
    attributes = {} if one.message_type == "NORMAL" else {"+message.type": one.message_type}
    config = TopicConfig(one.name, one.queues, one.queues, attributes=attributes)
    brokers = await eye.admin.create_topic(config, cluster=one.cluster)
    return f"topic {one.name} is on {len(brokers)} brokers, with {one.queues} queues on each"


async def alter_topic(eye: Eye, one: AlterTopic) -> str:
    _check_queues(one.write_queues)
    _check_queues(one.read_queues)
    perm = _PERMS.get(one.perm)
    if perm is None:
        raise BadArguments(f"{one.perm!r}: a topic's rights are one of {', '.join(_PERMS)}")
    masters = await eye.admin.masters_of(one.cluster)
    for address in masters:
        config = await eye.admin.topic_config(address, one.name)
        # Attributes that aren't named stay.
        changed = msgspec.structs.replace(
            config, write_queue_nums=one.write_queues, read_queue_nums=one.read_queues, perm=perm, attributes={}
        )
        await eye.admin.create_topic(changed, broker=address)
    return f"topic {one.name} is changed on {len(masters)} brokers"


async def delete_topic(eye: Eye, one: DeleteTopic) -> str:
    check_typed(one.name, one.typed)
    brokers = await eye.admin.delete_topic(one.name, one.cluster)
    return f"topic {one.name} is deleted from {len(brokers)} brokers"


def _check_queues(count: int) -> None:
    if not 1 <= count <= MAX_QUEUES:
        raise BadArguments(f"{count} queues: 1 to {MAX_QUEUES}")


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
