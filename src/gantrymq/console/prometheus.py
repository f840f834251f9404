"""Charts from a Prometheus server that scrapes the brokers, in place of the console's own history.

All replicas of a broker count the same messages, so only the largest value of a broker's replicas is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http.client import HTTPException
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import msgspec

from gantrymq.console.history import MAX_POINTS, SAMPLE_S, Points
from gantrymq.errors import GantryError

TIMEOUT_S = 10.0
_MAX_BYTES = 16 * 1024 * 1024
#: Shortest range of a rate, s. A rate needs a few samples.
_LEAST_RATE_S = 60
_OF_GROUP = "node_id, topic, consumer_group, is_retry"


class _Series(msgspec.Struct):
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct):
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""


#: Created during the import. If several threads decode a type for the first time at once, msgspec can crash the
#: process.
_ANSWERS = msgspec.json.Decoder(_Answer)


async def points(url: str, clusters: Sequence[str], names: Sequence[str], begin_s: float, end_s: float) -> Points:
    """Returns series with the names of the history from `begin_s` to `end_s`. A series without a metric is empty.

    Raises GantryError if Prometheus does not return the series.
    """
    step = max(SAMPLE_S, -(-int(end_s - begin_s) // MAX_POINTS))
    begin, end = int(begin_s) // step * step, int(end_s) // step * step
    loop = asyncio.get_running_loop()

    async def query(name: str) -> dict[int, float]:
        expression = expression_of(name, clusters, max(_LEAST_RATE_S, step))
        if expression is None:
            return {}
        arguments = {"query": expression, "start": str(begin), "end": str(end), "step": str(step)}
        return await loop.run_in_executor(None, _values, url, arguments)

    of_names = dict(zip(names, await asyncio.gather(*(query(name) for name in names)), strict=True))
    times = sorted({time for values in of_names.values() for time in values})
    return Points(times, {name: [values.get(time) for time in times] for name, values in of_names.items()})


def expression_of(name: str, clusters: Sequence[str], rate_s: int) -> str | None:
    """Returns the PromQL expression for a series of the history; None if there is no such metric."""
    kind, _, rest = name.partition("/")
    of, _, what = rest.rpartition("/")
    labels = [f'cluster=~"{_quoted("|".join(map(_literal, clusters)))}"']
    if kind == "broker":
        labels.append(f'node_id="{_quoted(of)}"')
    elif kind == "group":
        labels.append(f'consumer_group="{_quoted(of)}"')
    else:
        what = kind
    where = ", ".join(labels)
    if kind != "group" and what == "in":
        received = f"rate(rocketmq_messages_in_total{{{where}}}[{rate_s}s])"
        return f"sum(max by (cluster, node_id, topic, message_type) ({received}))"
    if what in ("out", "tps"):
        return f"sum(rate(rocketmq_messages_out_total{{{where}}}[{rate_s}s]))"
    if what == "lag":
        waiting = f'rocketmq_consumer_lag_messages{{{where}, is_system="false"}}'
        return f"sum(max by (cluster, {_OF_GROUP}) ({waiting}))"
    if what == "seconds":
        return f"max(rocketmq_consumer_lag_latency_milliseconds{{{where}}}) / 1000"
    if what == "disk":
        return f'max(gantry_disk_used_ratio{{{where}, files="commitLog"}})'
    return None


def _values(url: str, arguments: dict[str, str]) -> dict[int, float]:
    """Returns {time in s: value} of an expression with one series. Raises GantryError."""
    request = Request(f"{url.rstrip('/')}/api/v1/query_range?{urlencode(arguments)}")
    try:
        with urlopen(request, timeout=TIMEOUT_S) as response:
            answer = _ANSWERS.decode(response.read(_MAX_BYTES))
        if answer.status != "success":
            raise GantryError(f"Prometheus at {url}: {answer.error}")
        return {int(time): float(value) for series in answer.data.result for time, value in series.values}
    except (OSError, HTTPException, ValueError) as e:
        raise GantryError(f"Prometheus at {url}: {e}") from e


def _quoted(text: str) -> str:
    """Escapes a text for use in a PromQL string."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _literal(name: str) -> str:
    """Escapes a name for use in an RE2 regular expression."""
    return "".join(c if c.isalnum() or c in "_-" else f"\\{c}" for c in name)
