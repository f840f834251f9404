"""mqadmin's commands for connected consumers and producers. Source: tools/command/consumer, connection."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from gantrymq.cli.admin.command import Broker, Topic, command
from gantrymq.cli.admin.output import Output, Table, human_time, listing, settings, table
from gantrymq.cli.admin.values import TrueFalse
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.connection import ClientConnection
from gantrymq.protocol.bodies.heartbeat import CONSUME_ACTIVELY
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.version_name import version_name

app = new_app()

ConsumerGroup = Annotated[str, typer.Option("-g", "--consumerGroup", help="Consumer group.")]

_CONNECTION = {"clientId": "Client Id", "clientAddr": "Client Addr", "language": "Language", "version": "Version"}


@command(app, "consumerProgress")
async def consumer_progress(
    admin: AdminClient,
    group: Annotated[str | None, typer.Option("-g", "--groupName", help="Consumer group; without it all.")] = None,
    topic: Annotated[str | None, typer.Option("-t", "--topicName", help="Only this topic.")] = None,
    show_client_ip: Annotated[
        TrueFalse, typer.Option("-s", "--showClientIP", help="Who reads each queue.")
    ] = TrueFalse.FALSE,
    cluster: Annotated[str | None, typer.Option("-c", "--cluster", help="Only this cluster's brokers.")] = None,
) -> Output:
    """Query consumer's progress, speed."""
    if group is None:
        return await _all_progress(admin)
    stats = await admin.consume_stats(group, topic)
    readers = await _readers(admin, group) if show_client_ip else {}
    names = {broker.broker_name for broker in await admin.brokers_of(cluster)} if cluster else None
    rows: list[dict[str, Any]] = [
        {
            "topic": queue.topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "brokerOffset": progress.broker_offset,
            "consumerOffset": progress.consumer_offset,
            "clientIP": readers.get(queue),
            "diff": progress.lag,
            "inflight": progress.inflight,
            "lastTimestamp": progress.last_timestamp,
        }
        for queue, progress in sorted(stats.offset_table.items())
        if names is None or queue.broker_name in names
    ]
    columns: dict[str, Any] = {
        "topic": "Topic",
        "brokerName": "Broker Name",
        "queueId": "QID",
        "brokerOffset": "Broker Offset",
        "consumerOffset": "Consumer Offset",
        "clientIP": ("Client IP", lambda ip: ip or "N/A"),
        "diff": "Diff",
        "inflight": "Inflight",
        "lastTimestamp": ("Last Time", lambda ms: human_time(ms) or "N/A"),
    }
    if not show_client_ip:
        del columns["clientIP"]
    totals: dict[str, Any] = {
        "consumeTps": stats.consume_tps,
        "diffTotal": sum(row["diff"] for row in rows),
        "inflightTotal": sum(row["inflight"] for row in rows),
    }
    return Output(
        {"group": group, "queues": rows} | totals,
        [
            table(rows, columns),
            f"Consume TPS: {totals['consumeTps']:.2f}",
            f"Consume Diff Total: {totals['diffTotal']}",
            f"Consume Inflight Total: {totals['inflightTotal']}",
        ],
    )


@command(app, "consumerStatus")
async def consumer_status(
    admin: AdminClient,
    group: ConsumerGroup,
    client_id: Annotated[str | None, typer.Option("-i", "--clientId", help="Only this consumer.")] = None,
    broker: Broker = None,
    jstack: Annotated[bool, typer.Option("-s", "--jstack", help="With its threads' stacks.")] = False,
) -> Output:
    """Query consumer's internal data structure."""
    connections = (await admin.consumer_connection(group, broker)).connection_set
    document: list[Any] = []
    parts: list[str | Table] = []
    for connection in connections:
        if client_id not in (None, connection.client_id):
            continue
        try:
            info = await admin.consumer_running_info(group, connection.client_id, jstack=jstack, broker=broker)
        except GantryError as e:
            # Show the other consumers even if one has just disconnected or doesn't support the request.
            document.append({"clientId": connection.client_id, "error": str(e)})
            parts.append(f"Consumer {connection.client_id}: {e}")
            continue
        queues = [
            {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
            | msgspec.to_builtins(state)
            for queue, state in sorted(info.mq_table.items())
        ]
        speeds = [{"topic": name} | msgspec.to_builtins(speed) for name, speed in sorted(info.status_table.items())]
        document.append(
            {
                "clientId": connection.client_id,
                "properties": info.properties,
                "subscriptionSet": info.subscription_set,
                "mqTable": queues,
                "statusTable": speeds,
                "jstack": info.jstack,
            }
        )
        parts += [
            f"Consumer {connection.client_id}",
            settings(info.properties),
            Table(["Topic", "SubExpression"], [[one.topic, one.sub_string] for one in info.subscription_set]),
            table(
                queues,
                {
                    "topic": "Topic",
                    "brokerName": "Broker Name",
                    "queueId": "QID",
                    "commitOffset": "Commit Offset",
                    "cachedMsgCount": "Cached",
                    "lastPullTimestamp": ("Last Pull", human_time),
                    "lastConsumeTimestamp": ("Last Consume", human_time),
                },
            ),
            table(
                speeds,
                {
                    "topic": "Topic",
                    "pullRT": "Pull RT",
                    "pullTPS": "Pull TPS",
                    "consumeRT": "Consume RT",
                    "consumeOKTPS": "Consume OK TPS",
                    "consumeFailedTPS": "Consume Failed TPS",
                },
            ),
            *([info.jstack] if info.jstack else []),
        ]
    return Output(document, parts)


@command(app, "consumerConnection")
async def consumer_connection(admin: AdminClient, group: ConsumerGroup, broker: Broker = None) -> Output:
    """Query consumer's socket connection, client version and subscription."""
    connection = await admin.consumer_connection(group, broker)
    subscriptions = sorted(connection.subscription_table.values(), key=lambda data: data.topic)
    return Output(
        connection,
        [
            table(_connections(connection.connection_set), _CONNECTION),
            "Below is subscription:",
            Table(["Topic", "SubExpression"], [[data.topic, data.sub_string] for data in subscriptions]),
            f"ConsumeType: {connection.consume_type}",
            f"MessageModel: {connection.message_model}",
            f"ConsumeFromWhere: {connection.consume_from_where}",
        ],
    )


@command(app, "producerConnection")
async def producer_connection(
    admin: AdminClient,
    group: Annotated[str, typer.Option("-g", "--producerGroup", help="Producer group.")],
    topic: Topic,
) -> Output:
    """Query producer's socket connection and client version."""
    return listing(_connections((await admin.producer_connection(group, topic)).connection_set), _CONNECTION)


async def _all_progress(admin: AdminClient) -> Output:
    rows = []
    for group in await admin.groups():
        row: dict[str, Any] = {"group": group, "count": 0, "version": "OFFLINE", "type": "", "model": ""}
        try:
            stats = await admin.consume_stats(group)
            row |= {"consumeTps": stats.consume_tps, "diffTotal": stats.total_diff}
        except GantryError:
            row |= {"consumeTps": 0.0, "diffTotal": 0}
        try:
            connection = await admin.consumer_connection(group)
        except GantryError:
            # No consumer is connected: the row has OFFLINE.
            rows.append(row)
            continue
        pulls = connection.consume_type == CONSUME_ACTIVELY
        row |= {
            "count": len(connection.connection_set),
            "version": version_name(min(one.version for one in connection.connection_set)),
            "type": "PULL" if pulls else "PUSH",
            "model": "" if pulls else connection.message_model,
        }
        rows.append(row)
    return listing(
        rows,
        {
            "group": "Group",
            "count": "Count",
            "version": "Version",
            "type": "Type",
            "model": "Model",
            "consumeTps": "TPS",
            "diffTotal": "Diff Total",
        },
    )


async def _readers(admin: AdminClient, group: str) -> dict[MessageQueue, str]:
    """Returns {queue: address of its consumer}; empty for a group without connected consumers."""
    readers: dict[MessageQueue, str] = {}
    try:
        for connection in (await admin.consumer_connection(group)).connection_set:
            info = await admin.consumer_running_info(group, connection.client_id)
            readers |= dict.fromkeys(info.mq_table, connection.client_id.split("@")[0])
    except GantryError:
        pass
    return readers


def _connections(connections: list[ClientConnection]) -> list[dict[str, Any]]:
    return [
        {
            "clientId": one.client_id,
            "clientAddr": one.client_addr,
            "language": one.language,
            "version": version_name(one.version),
        }
        for one in connections
    ]
