"""mqadmin's commands about groups' offsets (tools/command/offset/*)."""

from __future__ import annotations

from typing import Annotated

import typer

from gantrymq.cli.admin.command import Topic, command
from gantrymq.cli.admin.output import Output, listing
from gantrymq.cli.admin.values import TrueFalse, parse_time
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.admin.offsets import LATEST
from gantrymq.protocol.message import MessageQueue
from gantrymq.system.clock import now_ms

app = typer.Typer(add_completion=False)

Group = Annotated[str, typer.Option("-g", "--group", help="Consumer group.")]
Force = Annotated[TrueFalse, typer.Option("-f", "--force", help="false: no queue goes forward.")]


@command(app, "resetOffsetByTime")
async def reset_offset_by_time(
    admin: AdminClient,
    group: Group,
    topic: Topic,
    timestamp: Annotated[str, typer.Option("-s", "--timestamp", help="now, -1 (the end), ms, yyyy-MM-dd#HH:mm:ss:SSS")],
    force: Force = TrueFalse.TRUE,
    broker: Annotated[str | None, typer.Option("-b", "--broker", help="HOST:PORT; with -q one queue alone.")] = None,
    queue_id: Annotated[int | None, typer.Option("-q", "--queue", min=0, help="Queue id; needs -b.")] = None,
    offset: Annotated[int | None, typer.Option("-o", "--offset", min=0, help="This offset; needs -b and -q.")] = None,
) -> Output:
    """Reset consumer offset by timestamp (without client restart)."""
    timestamp_ms = now_ms() if timestamp == "now" else parse_time(timestamp, "'-s' / '--timestamp'")
    if (broker is None) != (queue_id is None) or (offset is not None and broker is None):
        raise typer.BadParameter("-b and -q go together, -o with them", param_hint="'-b' / '-q' / '-o'")
    if broker is None or queue_id is None:
        return _offsets(await admin.reset_offset(group, topic, timestamp_ms, force=bool(force)))
    if offset is None and timestamp_ms == LATEST:
        offset = await admin.api.max_offset(broker, topic, queue_id)
    elif offset is None:
        offset = await admin.api.search_offset(broker, topic, queue_id, timestamp_ms)
    await admin.reset_queue_offset(broker, group, topic, queue_id, offset)
    return Output(
        {"brokerAddr": broker, "topic": topic, "queueId": queue_id, "offset": offset},
        [f"reset consumer offset to {offset}"],
    )


@command(app, "skipAccumulatedMessage")
async def skip_accumulated_message(
    admin: AdminClient, group: Group, topic: Topic, force: Force = TrueFalse.TRUE
) -> Output:
    """Skip all messages that are accumulated (not consumed) currently."""
    return _offsets(await admin.skip_accumulated(group, topic, force=bool(force)))


@command(app, "cloneGroupOffset")
async def clone_group_offset(
    admin: AdminClient,
    source: Annotated[str, typer.Option("-s", "--srcGroup", help="The group whose offsets are taken.")],
    target: Annotated[str, typer.Option("-d", "--destGroup", help="The group that goes on there.")],
    topic: Topic,
    offline: Annotated[str | None, typer.Option("-o", "--offline", help="Taken, as mqadmin does, without use.")] = None,
) -> Output:
    """Clone offset from other group."""
    offsets = await admin.clone_offsets(source, target, topic)
    done = f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"
    shown = _offsets(offsets)
    return Output(shown.document, [*shown.parts, done])


def _offsets(offsets: dict[MessageQueue, int]) -> Output:
    rows = [
        {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
        for queue, offset in offsets.items()
    ]
    return listing(rows, {"brokerName": "Broker Name", "queueId": "QID", "offset": "Offset"})
