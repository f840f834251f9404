"""Charts: the history of the cluster, of a broker or of a group."""

from __future__ import annotations

import msgspec

from gantrymq.console import prometheus
from gantrymq.console.eye import Eye
from gantrymq.console.history import Points
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.servers import servers_of
from gantrymq.errors import ClientError, GantryError
from gantrymq.system.clock import time

SPANS = {
    "15m": 900,
    "1h": 3600,
    "6h": 6 * 3600,
    "1d": 86400,
    "1w": 7 * 86400,
    "1mo": 31 * 86400,
}


class HistoryArguments(msgspec.Struct, kw_only=True):
    """Of a `broker` by its name, of a `group`, or of the whole cluster; `span` is 15m, 1h, 6h, 1d, 1w or 1mo."""

    broker: str = ""
    group: str = ""
    span: str = "1h"


class Chart(msgspec.Struct):
    """One figure's points; `least`, `most` and `last` are None without any."""

    title: str
    series: str
    values: list[float | None]
    least: float | None
    most: float | None
    last: float | None


class HistoryPage(msgspec.Struct):
    """Points from `begin` to `end` at `times`, s since 1970."""

    about: str
    span: str
    spans: list[str]
    begin: float
    end: float
    times: list[int]
    charts: list[Chart]


async def charts(eye: Eye, arguments: HistoryArguments) -> HistoryPage:
    """Raises GantryError for what this user may not see, or when there is no history."""
    length = SPANS.get(arguments.span)
    if length is None:
        raise BadArguments(f"{arguments.span!r}: one of {', '.join(SPANS)}")
    if eye.history is None:
        raise GantryError("this console keeps no history")
    await _check(eye, arguments)
    titles = _series(arguments)
    now = time()
    if eye.settings.prometheus:
        clusters = sorted((await servers_of(eye)).info.cluster_addr_table)
        points = await prometheus.points(eye.settings.prometheus, clusters, list(titles), now - length, now)
    else:
        points = await eye.history.points(list(titles), now - length, now)
    found = [_chart(title, name, points) for name, title in titles.items()]
    return HistoryPage(
        arguments.group or arguments.broker, arguments.span, list(SPANS), now - length, now, points.times, found
    )


async def _check(eye: Eye, arguments: HistoryArguments) -> None:
    """The history was asked for with the console's keys: users see what they could ask for themselves."""
    if eye.settings.login != "cluster":
        return
    if arguments.group:
        await eye.admin.consume_stats(arguments.group)
    elif not (await servers_of(eye)).runtime:
        raise ClientError("you may not ask brokers for their figures")


def _series(arguments: HistoryArguments) -> dict[str, str]:
    """{series: title}"""
    if arguments.group:
        of_group = f"group/{arguments.group}/"
        return {
            f"{of_group}behind": "Behind, messages",
            f"{of_group}seconds": "Behind, seconds",
            f"{of_group}tps": "Consumes/s",
        }
    if arguments.broker:
        of_broker = f"broker/{arguments.broker}/"
        return {
            f"{of_broker}in": "In, messages/s",
            f"{of_broker}out": "Out, messages/s",
            f"{of_broker}disk": "Disk, used ratio",
        }
    return {"in": "In, messages/s", "out": "Out, messages/s", "behind": "Not consumed yet"}


def _chart(title: str, name: str, points: Points) -> Chart:
    values = points.values[name]
    known = [value for value in values if value is not None]
    return Chart(title, name, values, min(known, default=None), max(known, default=None), known[-1] if known else None)
