"""Charts: the history of the cluster, of a broker or of a group."""

from __future__ import annotations

import msgspec

from gantrymq.console import prometheus
from gantrymq.console.cluster_view import ClusterView
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
    """Selects the history of a `broker` by name or of a `group`. Default: the whole cluster.

    `span` is 15m, 1h, 6h, 1d, 1w or 1mo.
    """

    broker: str = ""
    group: str = ""
    span: str = "1h"


class Chart(msgspec.Struct):
    """The points of one series. `least`, `most` and `last` are None without points."""

    title: str
    series: str
    values: list[float | None]
    least: float | None
    most: float | None
    last: float | None


class HistoryPage(msgspec.Struct):
    """Charts with points at `times` between `begin` and `end`, in s since 1970."""

    about: str
    span: str
    spans: list[str]
    begin: float
    end: float
    times: list[int]
    charts: list[Chart]


async def charts(view: ClusterView, arguments: HistoryArguments) -> HistoryPage:
    """Returns the charts. Raises GantryError if the user has no right to see them, or if there is no history."""
    length = SPANS.get(arguments.span)
    if length is None:
        raise BadArguments(f"{arguments.span!r}: expected one of {', '.join(SPANS)}")
    if view.history is None:
        raise GantryError("this console keeps no history")
    await _check(view, arguments)
    titles = _series(arguments)
    now = time()
    if view.settings.prometheus:
        clusters = sorted((await servers_of(view)).info.cluster_addr_table)
        points = await prometheus.points(view.settings.prometheus, clusters, list(titles), now - length, now)
    else:
        points = await view.history.points(list(titles), now - length, now)
    found = [_chart(title, name, points) for name, title in titles.items()]
    return HistoryPage(
        arguments.group or arguments.broker, arguments.span, list(SPANS), now - length, now, points.times, found
    )


async def _check(view: ClusterView, arguments: HistoryArguments) -> None:
    """Raises GantryError if the user has no right to query the data.

    The console's own keys signed the requests whose results are in the history, so the user's rights must be checked
    here.
    """
    if view.settings.login != "cluster":
        return
    if arguments.group:
        await view.admin.consume_stats(arguments.group)
    elif not (await servers_of(view)).runtime:
        raise ClientError("you have no right to query the figures of brokers")


def _series(arguments: HistoryArguments) -> dict[str, str]:
    """Returns the series to show: {name: title}."""
    if arguments.group:
        of_group = f"group/{arguments.group}/"
        return {
            f"{of_group}lag": "Lag, messages",
            f"{of_group}seconds": "Lag, seconds",
            f"{of_group}tps": "Consumes/s",
        }
    if arguments.broker:
        of_broker = f"broker/{arguments.broker}/"
        return {
            f"{of_broker}in": "In, messages/s",
            f"{of_broker}out": "Out, messages/s",
            f"{of_broker}disk": "Disk",
        }
    return {
        "in": "In, messages/s",
        "out": "Out, messages/s",
        "lag": "Lag, all groups",
        "disk": "Fullest disk",
    }


def _chart(title: str, name: str, points: Points) -> Chart:
    values = points.values[name]
    known = [value for value in values if value is not None]
    return Chart(title, name, values, min(known, default=None), max(known, default=None), known[-1] if known else None)
