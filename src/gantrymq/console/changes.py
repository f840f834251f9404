"""Changes: what may be done by clicking, each a function of typed arguments that says what it did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gantrymq.auth.policy import Acl
from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.offsets import LATEST
from gantrymq.console.eye import Eye
from gantrymq.console.links import link
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.messages import MessageArguments, find
from gantrymq.console.queries.servers import check_address, is_secret
from gantrymq.console.times import parse_time
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE, TopicConfig
from gantrymq.protocol.topic_name import group_problem

MAX_QUEUES = 1024
MAX_RETRIES = 1_000_000
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
_PERMS = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE}


@dataclass(frozen=True, slots=True)
class Change:
    """`name` is its address, /do/NAME; `back` the page that it leads to. Values of `secrets` are never written down."""

    name: str
    arguments: type[msgspec.Struct]
    perform: Callable[[Eye, Any], Awaitable[str]]
    back: Callable[[Any], str]
    secrets: frozenset[str] = field(default_factory=frozenset)


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


class ResetOffset(msgspec.Struct):
    """`to` is earliest, latest or time, which `time` says."""

    group: str
    topic: str
    to: str = "time"
    time: str = ""


class CloneOffsets(msgspec.Struct):
    group: str
    target: str
    topic: str


class SaveGroup(msgspec.Struct):
    """Makes a group, or changes it: what is empty stays as it is, or gets Java's default."""

    name: str
    cluster: str
    consume_enable: bool | None = None
    retry_max_times: int | None = None
    consume_message_orderly: bool | None = None


class DeleteGroup(msgspec.Struct):
    name: str
    cluster: str
    typed: str = ""
    remove_offsets: bool = False


class ResendDeadLetters(msgspec.Struct):
    """With `again` those that were sent before, too; `to_topic` sends them to all groups of their topic."""

    group: str
    topic: str = ""
    begin: str = ""
    end: str = ""
    max_messages: int = 1000
    again: bool = False
    to_topic: bool = False


class ResendLetter(msgspec.Struct):
    """One dead letter, by its place; as ResendDeadLetters."""

    topic: str
    broker: str
    queue: int
    offset: int
    to_topic: bool = False


class ConsumeDirectly(msgspec.Struct):
    """Has one consumer consume a message now."""

    topic: str
    broker: str
    queue: int
    offset: int
    group: str
    client_id: str


class EndGivenUp(msgspec.Struct):
    """`how` is commit or rollback."""

    how: str
    max_messages: int = 100


class SaveUser(msgspec.Struct):
    """An empty password, type or status stays as it is."""

    cluster: str
    username: str
    password: str = ""
    user_type: str = ""
    user_status: str = ""


class DeleteUser(msgspec.Struct):
    cluster: str
    username: str
    typed: str = ""


class SaveRight(msgspec.Struct):
    """What a user may do with a resource, or mayn't; `actions` and `source_ips` have commas between them."""

    cluster: str
    username: str
    resource: str
    actions: str
    decision: str = "Allow"
    source_ips: str = ""


class DeleteRight(msgspec.Struct):
    cluster: str
    username: str
    resource: str


class SetConfig(msgspec.Struct):
    """One key of a broker's configuration; an empty `value` is one, too."""

    address: str
    key: str
    value: str = ""


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
    _check_typed(one.name, one.typed)
    brokers = await eye.admin.delete_topic(one.name, one.cluster)
    return f"topic {one.name} is deleted from {len(brokers)} brokers"


async def reset_offset(eye: Eye, one: ResetOffset) -> str:
    if one.to == "time":
        at = parse_time(one.time)
        if at is None:
            raise BadArguments("to which time?")
    elif one.to in ("earliest", "latest"):
        at = 0 if one.to == "earliest" else LATEST
    else:
        raise BadArguments(f"{one.to!r}: earliest, latest or time")
    queues = await eye.admin.reset_offset(one.group, one.topic, at)
    return f"group {one.group} goes on at other offsets in {len(queues)} queues of {one.topic}"


async def clone_offsets(eye: Eye, one: CloneOffsets) -> str:
    queues = await eye.admin.clone_offsets(one.group, one.target, one.topic)
    return f"group {one.target} goes on where {one.group} is, in {len(queues)} queues of {one.topic}"


async def save_group(eye: Eye, one: SaveGroup) -> str:
    if problem := group_problem(one.name):
        raise BadArguments(problem)
    if one.retry_max_times is not None and not -1 <= one.retry_max_times <= MAX_RETRIES:
        raise BadArguments(f"{one.retry_max_times} retries: -1 to {MAX_RETRIES}")
    given = {
        key: value
        for key, value in msgspec.structs.asdict(one).items()
        if key not in ("name", "cluster") and value is not None
    }
    masters = await eye.admin.masters_of(one.cluster)
    for address in masters:
        config = await eye.admin.group_config(address, one.name) or SubscriptionGroupConfig(one.name)
        # Attributes that aren't named stay.
        changed = msgspec.structs.replace(config, attributes={}, **given)
        await eye.admin.create_group(changed, broker=address)
    return f"group {one.name} is on {len(masters)} brokers as it is to be"


async def delete_group(eye: Eye, one: DeleteGroup) -> str:
    _check_typed(one.name, one.typed)
    brokers = await eye.admin.delete_group(one.name, cluster=one.cluster, remove_offsets=one.remove_offsets)
    return f"group {one.name} is deleted from {len(brokers)} brokers"


async def resend_dead_letters(eye: Eye, one: ResendDeadLetters) -> str:
    done = await eye.admin.resend_dead_letters(
        one.group,
        topic=one.topic or None,
        begin_ms=parse_time(one.begin) or 0,
        end_ms=parse_time(one.end),
        max_messages=max(one.max_messages, 0),
        again=one.again,
        to_topic=one.to_topic,
    )
    return f"{done.resent} dead letters sent again, {done.left_out} left out, {done.unreadable} unreadable"


async def resend_letter(eye: Eye, one: ResendLetter) -> str:
    place = MessageArguments(topic=one.topic, broker=one.broker, queue=one.queue, offset=one.offset)
    letter = await find(eye, place)
    if not await eye.admin.resend_dead_letter(letter, to_topic=one.to_topic):
        raise GantryError(f"the dead letter {letter.msg_id} can't be read")
    return f"the dead letter {letter.msg_id} is sent again"


async def consume_directly(eye: Eye, one: ConsumeDirectly) -> str:
    place = MessageArguments(topic=one.topic, broker=one.broker, queue=one.queue, offset=one.offset)
    result = await eye.admin.consume_directly(one.group, one.client_id, await find(eye, place))
    return f"{one.client_id} answers {result.consume_result} after {result.spent_time_mills} ms: {result.remark or '-'}"


async def end_given_up(eye: Eye, one: EndGivenUp) -> str:
    if one.how not in ("commit", "rollback"):
        raise BadArguments(f"{one.how!r}: commit or rollback")
    ended = await eye.admin.end_given_up(commit=one.how == "commit", max_messages=max(one.max_messages, 0))
    return f"{ended} transactions ended: {one.how}"


async def save_user(eye: Eye, one: SaveUser) -> str:
    brokers = await eye.admin.all_brokers_of(one.cluster)
    user = UserInfo(one.username, one.password or None, one.user_type or None, one.user_status or None)
    made = changed = 0
    for address in brokers:
        if await eye.admin.user(address, one.username) is None:
            await eye.admin.create_user([address], user)
            made += 1
        else:
            await eye.admin.update_user([address], user)
            changed += 1
    return f"user {one.username} is made on {made} brokers, changed on {changed}"


async def delete_user(eye: Eye, one: DeleteUser) -> str:
    _check_typed(one.username, one.typed)
    brokers = await eye.admin.all_brokers_of(one.cluster)
    await eye.admin.delete_user(brokers, one.username)
    return f"user {one.username} is deleted from {len(brokers)} brokers"


async def save_right(eye: Eye, one: SaveRight) -> str:
    subject = f"User:{one.username}"
    acl = acl_of(subject, [one.resource.strip()], _listed(one.actions), _listed(one.source_ips), one.decision)
    try:
        Acl.from_info(acl.policies)
    except ValueError as e:
        raise BadArguments(str(e)) from None
    brokers = await eye.admin.all_brokers_of(one.cluster)
    for address in brokers:
        if await eye.admin.acl(address, subject) is None:
            await eye.admin.create_acl([address], acl)
        else:
            await eye.admin.update_acl([address], acl)
    return f"what user {one.username} may do with {one.resource.strip()} is changed on {len(brokers)} brokers"


async def delete_right(eye: Eye, one: DeleteRight) -> str:
    brokers = await eye.admin.all_brokers_of(one.cluster)
    await eye.admin.delete_acl(brokers, f"User:{one.username}", one.resource.strip())
    return f"the entry of user {one.username} for {one.resource.strip()} is taken away on {len(brokers)} brokers"


async def set_config(eye: Eye, one: SetConfig) -> str:
    key, value = one.key.strip(), one.value.strip()
    if not key or any(c in key + value for c in "\r\n"):
        raise BadArguments("a key and a value on one line are needed")
    if is_secret(key):
        raise BadArguments(f"{key} is a secret: it is changed in the broker's own file")
    await check_address(eye, one.address)
    await eye.admin.update_broker_config([one.address], {key: value})
    now = (await eye.admin.broker_config(one.address)).get(key)
    if now != value:
        raise GantryError(f"broker {one.address} took {key}={value} and says {key}={now}: it may not know the key")
    return f"{key}={value} on broker {one.address}"


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _check_queues(count: int) -> None:
    if not 1 <= count <= MAX_QUEUES:
        raise BadArguments(f"{count} queues: 1 to {MAX_QUEUES}")


def _check_typed(name: str, typed: str) -> None:
    if name != typed:
        raise BadArguments(f"to delete {name}, type its name; this was {typed!r}")


CHANGES = (
    Change("create-topic", CreateTopic, create_topic, lambda one: link("topic", name=one.name)),
    Change("alter-topic", AlterTopic, alter_topic, lambda one: link("topic", name=one.name)),
    Change("delete-topic", DeleteTopic, delete_topic, lambda one: link("topics")),
    Change("reset-offset", ResetOffset, reset_offset, lambda one: link("group", name=one.group)),
    Change("clone-offsets", CloneOffsets, clone_offsets, lambda one: link("group", name=one.target)),
    Change("save-group", SaveGroup, save_group, lambda one: link("group", name=one.name)),
    Change("delete-group", DeleteGroup, delete_group, lambda one: link("groups")),
    Change("resend-dead-letters", ResendDeadLetters, resend_dead_letters, lambda one: link("dead-letters")),
    Change("resend-letter", ResendLetter, resend_letter, lambda one: link("messages", topic=one.topic)),
    Change(
        "consume-directly",
        ConsumeDirectly,
        consume_directly,
        lambda one: link("message", topic=one.topic, broker=one.broker, queue=one.queue, offset=one.offset),
    ),
    Change("end-given-up", EndGivenUp, end_given_up, lambda one: link("transactions")),
    Change("save-user", SaveUser, save_user, lambda one: link("users"), frozenset({"password"})),
    Change("delete-user", DeleteUser, delete_user, lambda one: link("users")),
    Change(
        "save-right",
        SaveRight,
        save_right,
        lambda one: link("rights", user=one.username, resource=one.resource.strip()),
    ),
    Change("delete-right", DeleteRight, delete_right, lambda one: link("users", search=one.username)),
    Change("set-config", SetConfig, set_config, lambda one: link("broker", address=one.address)),
)
