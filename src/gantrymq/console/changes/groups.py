"""Changes of consumer groups and their offsets."""

from __future__ import annotations

import msgspec

from gantrymq.client.admin.offsets import LATEST
from gantrymq.console.changes.change import Change, changed_attributes, check_typed
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.links import link
from gantrymq.console.pages import BadArguments, parse_time
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.topic_name import group_problem
from gantrymq.times import point_in_time

MAX_RETRIES = 1_000_000


class SaveGroup(msgspec.Struct):
    """Creates or changes a group. Empty values mean no change, or the default for a new group."""

    name: str
    cluster: str
    consume_enable: bool | None = None
    retry_max_times: int | None = None
    consume_message_orderly: bool | None = None
    attributes: str = ""


class DeleteGroup(msgspec.Struct):
    name: str
    cluster: str
    typed: str = ""
    remove_offsets: bool = False


class ResetOffset(msgspec.Struct):
    """Resets the offsets of a group. `to` is earliest, latest or time. `time` is used only if `to` is time."""

    group: str
    topic: str
    to: str = "time"
    time: str = ""


class CloneOffsets(msgspec.Struct):
    group: str
    target: str
    topic: str


async def save_group(view: ClusterView, one: SaveGroup) -> str:
    if problem := group_problem(one.name):
        raise BadArguments(problem)
    if one.retry_max_times is not None and not -1 <= one.retry_max_times <= MAX_RETRIES:
        raise BadArguments(f"{one.retry_max_times} retries: expected -1 to {MAX_RETRIES}")
    given = {
        key: value
        for key, value in msgspec.structs.asdict(one).items()
        if key not in ("name", "cluster", "attributes") and value is not None
    }
    attributes = changed_attributes(one.attributes)
    masters = await view.admin.masters_of(one.cluster)
    for address in masters:
        config = await view.admin.group_config(address, one.name) or SubscriptionGroupConfig(one.name)
        # The broker keeps attributes that the request does not contain.
        changed = msgspec.structs.replace(config, attributes=attributes, **given)
        await view.admin.create_group(changed, broker=address)
    return f"group {one.name} is on {len(masters)} brokers"


async def delete_group(view: ClusterView, one: DeleteGroup) -> str:
    check_typed(one.name, one.typed)
    brokers = await view.admin.delete_group(one.name, cluster=one.cluster, remove_offsets=one.remove_offsets)
    return f"group {one.name} is deleted from {len(brokers)} brokers"


async def reset_offset(view: ClusterView, one: ResetOffset) -> str:
    if one.to == "time":
        at_ms = parse_time(one.time)
        if at_ms is None:
            raise BadArguments("a time is required")
        at = point_in_time(at_ms)
    elif one.to in ("earliest", "latest"):
        at = 0 if one.to == "earliest" else LATEST
    else:
        raise BadArguments(f"{one.to!r}: expected earliest, latest or time")
    queues = await view.admin.reset_offset(one.group, one.topic, at)
    return f"offsets of group {one.group} are reset in {len(queues)} queues of {one.topic}"


async def clone_offsets(view: ClusterView, one: CloneOffsets) -> str:
    queues = await view.admin.clone_offsets(one.group, one.target, one.topic)
    return f"offsets of group {one.group} are cloned to {one.target} in {len(queues)} queues of {one.topic}"


CHANGES = (
    Change(
        name="save-group",
        arguments=SaveGroup,
        perform=save_group,
        back=lambda one: link("group", name=one.name),
    ),
    Change(
        name="delete-group",
        arguments=DeleteGroup,
        perform=delete_group,
        back=lambda one: link("groups"),
    ),
    Change(
        name="reset-offset",
        arguments=ResetOffset,
        perform=reset_offset,
        back=lambda one: link("group", name=one.group),
    ),
    Change(
        name="clone-offsets",
        arguments=CloneOffsets,
        perform=clone_offsets,
        back=lambda one: link("group", name=one.target),
    ),
)
