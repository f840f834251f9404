"""mqadmin's command statsAll. Source: tools/command/stats/StatsAllSubCommand."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gantrymq.cli.admin.command import command
from gantrymq.cli.admin.output import Output, listing
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.stats import BrokerStatsData
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

app = new_app()

# Names of a broker's counters (common/stats/Stats).
TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
_GROUP_GET_NUMS = "GROUP_GET_NUMS"


@command(app, "statsAll")
async def stats_all(
    admin: AdminClient,
    active_topic: Annotated[bool, typer.Option("-a", "--activeTopic", help="Only topics in use.")] = False,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only this topic.")] = None,
) -> Output:
    """Topic and Consumer tps stats."""
    rows: list[dict[str, Any]] = []
    for name in [topic] if topic else await admin.topic_list():
        if name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
            continue
        try:
            of_topic = await _of_topic(admin, name)
        except GantryError:
            # The topic was just deleted, or its brokers are down. This is an error only if the command line names the
            # topic.
            if topic:
                raise
            continue
        rows += [row for row in of_topic if not active_topic or row["inMsg24Hour"] or row["outMsg24Hour"]]
    return listing(
        rows,
        {
            "topic": "Topic",
            "consumerGroup": ("Consumer Group", lambda group: group or "NO_CONSUMER"),
            "accumulation": "Accumulation",
            "inTps": "In TPS",
            "outTps": "Out TPS",
            "inMsg24Hour": "In Msg 24 Hour",
            "outMsg24Hour": "Out Msg 24 Hour",
        },
    )


async def _of_topic(admin: AdminClient, topic: str) -> list[dict[str, Any]]:
    """Returns one row for each consumer group of the topic, or one row without a group."""
    route = await admin.topic_route(topic)
    masters = [broker.master_address for broker in route.broker_datas if broker.master_address]
    in_tps, in_24_hours = await _sum(admin, masters, TOPIC_PUT_NUMS, topic)
    rows = []
    for group in await admin.groups_of_topic(topic) or [""]:
        out_tps, out_24_hours, accumulation = 0.0, 0, 0
        if group:
            out_tps, out_24_hours = await _sum(admin, masters, _GROUP_GET_NUMS, f"{topic}@{group}")
            accumulation = await _accumulation(admin, group, topic)
        rows.append(
            {
                "topic": topic,
                "consumerGroup": group,
                "accumulation": accumulation,
                "inTps": in_tps,
                "outTps": out_tps,
                "inMsg24Hour": in_24_hours,
                "outMsg24Hour": out_24_hours,
            }
        )
    return rows


async def _sum(admin: AdminClient, addresses: list[str], name: str, key: str) -> tuple[float, int]:
    """Returns (messages per second in the last minute, messages in a day), summed over the brokers."""
    found = [data for address in addresses if (data := await admin.broker_stats(address, name, key))]
    return sum((data.stats_minute.tps for data in found), 0.0), sum(messages_of_day(data) for data in found)


def messages_of_day(data: BrokerStatsData) -> int:
    """Returns the number of messages in a day, or in the longest period that the broker has counted so far."""
    return data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum


async def _accumulation(admin: AdminClient, group: str, topic: str) -> int:
    try:
        return max(0, (await admin.consume_stats(group, topic)).total_diff)
    except GantryError:
        # The group has only consumed from another cluster.
        return 0
