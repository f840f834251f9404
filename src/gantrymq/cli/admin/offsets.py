"""mqadmin's commands for the offsets of consumer groups. Source: tools/command/offset/*."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from gantrymq.cli.admin.command import Topic, command
from gantrymq.cli.admin.confirmation import Confirmation
from gantrymq.cli.admin.output import Column, Output, listing, table
from gantrymq.cli.admin.values import TrueFalse, parse_time
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.admin.offsets import LATEST
from gantrymq.protocol.message import MessageQueue
from gantrymq.system.clock import now_ms
from gantrymq.times import point_in_time

app = new_app()

Group = Annotated[str, typer.Option("-g", "--group", help="Consumer group.")]
RouteTopic = Annotated[
    str | None,
    typer.Option("-c", "--cluster", help="Cluster or parent topic with the brokers of a light queue or of the timer."),
]
Force = Annotated[TrueFalse, typer.Option("-f", "--force", help="false: no queue goes forward.")]


@command(app, "resetOffsetByTime")
async def reset_offset_by_time(
    admin: AdminClient,
    group: Group,
    topic: Topic,
    timestamp: Annotated[str, typer.Option("-s", "--timestamp", help="now, -1 (the end), ms, yyyy-MM-dd#HH:mm:ss:SSS")],
    confirmation: Confirmation,
    force: Force = TrueFalse.TRUE,
    broker: Annotated[str | None, typer.Option("-b", "--broker", help="HOST:PORT; with -q only one queue.")] = None,
    queue_id: Annotated[int | None, typer.Option("-q", "--queue", min=0, help="Queue id; needs -b.")] = None,
    offset: Annotated[int | None, typer.Option("-o", "--offset", min=0, help="This offset; needs -b and -q.")] = None,
    cluster: RouteTopic = None,
) -> Output:
    """Reset consumer offset by timestamp (without client restart)."""
    at_ms = now_ms() if timestamp == "now" else parse_time(timestamp, "'-s' / '--timestamp'")
    at = at_ms if at_ms == LATEST else point_in_time(at_ms)
    if (broker is None) != (queue_id is None) or (offset is not None and broker is None):
        raise typer.BadParameter("-b and -q go together, -o with them", param_hint="'-b' / '-q' / '-o'")
    if broker is None or queue_id is None:
        action = f"reset the offsets of group {group!r} in topic {topic!r} to {timestamp}"
        if plan := await _check(admin, confirmation, action, group, topic, at, bool(force), cluster):
            return plan
        return _offsets(await admin.reset_offset(group, topic, at, force=bool(force), cluster=cluster))
    if offset is None and at_ms == LATEST:
        offset = await transport_of(admin).api.max_offset(broker, topic, queue_id)
    elif offset is None:
        offset = await transport_of(admin).api.search_offset(broker, topic, queue_id, max(0, at_ms))
    action = f"reset the offset of group {group!r} in queue {queue_id} of topic {topic!r} to {offset}"
    if plan := await confirmation.check(action, [broker]):
        return plan
    await admin.reset_queue_offset(broker, group, topic, queue_id, offset)
    return Output(
        {"brokerAddr": broker, "topic": topic, "queueId": queue_id, "offset": offset},
        [f"reset consumer offset to {offset}"],
    )


@command(app, "skipAccumulatedMessage")
async def skip_accumulated_message(
    admin: AdminClient,
    group: Group,
    topic: Topic,
    confirmation: Confirmation,
    force: Force = TrueFalse.TRUE,
    cluster: RouteTopic = None,
) -> Output:
    """Skip all messages that are accumulated (not consumed) currently."""
    action = f"skip the messages of topic {topic!r} that group {group!r} has not consumed"
    if plan := await _check(admin, confirmation, action, group, topic, LATEST, bool(force), cluster):
        return plan
    return _offsets(await admin.skip_accumulated(group, topic, force=bool(force), cluster=cluster))


@command(app, "cloneGroupOffset")
async def clone_group_offset(
    admin: AdminClient,
    source: Annotated[str, typer.Option("-s", "--srcGroup", help="The group whose offsets are copied.")],
    target: Annotated[str, typer.Option("-d", "--destGroup", help="The group that receives the offsets.")],
    topic: Topic,
    confirmation: Confirmation,
    offline: Annotated[str | None, typer.Option("-o", "--offline", help="No effect, as in mqadmin.")] = None,
) -> Output:
    """Clone offset from other group."""
    action = f"replace the offsets of group {target!r} in topic {topic!r} by those of {source!r}"
    if plan := await confirmation.check(action, await admin.masters_of_topic(topic)):
        return plan
    offsets = await admin.clone_offsets(source, target, topic)
    done = f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"
    shown = _offsets(offsets)
    return Output(shown.document, [*shown.parts, done])


async def _check(
    admin: AdminClient,
    confirmation: Confirmation,
    action: str,
    group: str,
    topic: str,
    at: datetime | int,
    force: bool,
    cluster: str | None,
) -> Output | None:
    """Works like `Confirmation.check`. A dry run also prints the present and the new offset of each queue."""
    servers = await admin.masters_of_topic(topic, cluster)
    plan = await confirmation.check(action, servers)
    if plan is None:
        return None
    planned = await admin.planned_offsets(group, topic, at, force=force, cluster=cluster)
    rows = [
        {
            "topic": queue.topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "committedOffset": committed,
            "offset": offset,
        }
        for queue, (committed, offset) in planned.items()
    ]
    columns: dict[str, Column] = {
        "brokerName": "Broker Name",
        "queueId": "QID",
        "committedOffset": ("Committed", lambda offset: "" if offset is None else str(offset)),
        "offset": "Offset",
    }
    return Output(plan.document | {"queues": rows}, [*plan.parts, table(rows, columns)])


def _offsets(offsets: dict[MessageQueue, int]) -> Output:
    rows = [
        {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
        for queue, offset in offsets.items()
    ]
    return listing(rows, {"brokerName": "Broker Name", "queueId": "QID", "offset": "Offset"})
