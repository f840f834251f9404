"""Converts the arguments of `read_topic`, `stream_topic` and `scan_store` to options."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from gantrymq.arrow.client_settings import READ_SETTINGS
from gantrymq.arrow.filters import milliseconds
from gantrymq.arrow.option_values import SECURITY, Values, check_names
from gantrymq.arrow.options import READ_OPTIONS, ReadOptions
from gantrymq.arrow.row_filter import Condition
from gantrymq.errors import ConfigError

#: The start or the end of a read: `earliest`, `latest`, a time, or an offset for each queue, `{"broker-a:0": 120}`.
Boundary = str | datetime | Mapping[str, int]
#: One or more NameServers as HOST:PORT; None if the option `context` supplies them.
NameServers = str | Sequence[str] | None

_COMMON = (
    "context",
    "retryTimeoutMs",
    "tags",
    "consumerGroup",
    "readFrom",
    "failOnDataLoss",
    "expectedBrokers",
    "includeProperties",
    "propertyColumns",
    "checkCrc",
    "corruptBodies",
    "startingOffsetsByTimestampStrategy",
    "maxBytesPerSecondPerBroker",
    *READ_SETTINGS,
    *SECURITY,
)
BATCH_OPTIONS = (*_COMMON, "compacted", "deduplicate")
STREAM_OPTIONS = _COMMON


def read_options(
    name_servers: NameServers,
    topic: str | Sequence[str],
    start: Boundary | None,
    end: Boundary | None,
    sql92: str | None,
    options: Mapping[str, str] | None,
    *,
    streaming: bool,
) -> ReadOptions:
    """Returns the options of a read from brokers. Raises ConfigError for an invalid argument or option."""
    given = dict(options or {})
    check_names(given, STREAM_OPTIONS if streaming else BATCH_OPTIONS, "read without Spark", READ_OPTIONS)
    topics = [topic] if isinstance(topic, str) else list(topic)
    if not topics:
        raise ConfigError("no topic is named")
    given |= name_server_option(name_servers)
    given["subscribe"] = ",".join(topics)
    if sql92 is not None:
        given["sql92"] = sql92
    for kind, boundary in (("starting", start), ("ending", end)):
        if boundary is not None:
            given |= _boundary_option(kind, boundary, topics)
    return ReadOptions.of(Values(given, READ_OPTIONS, "read"), streaming=streaming)


def name_server_option(name_servers: NameServers) -> dict[str, str]:
    """Returns the option with the NameServers, if there are any."""
    if name_servers is None:
        return {}
    return {"nameServer": name_servers if isinstance(name_servers, str) else ";".join(name_servers)}


def conditions_of(filter: str | Sequence[Condition] | None) -> tuple[str | None, Sequence[Condition]]:
    """Returns the SQL92 expression and the conditions of the argument `filter`."""
    return (filter, ()) if isinstance(filter, str) else (None, filter or ())


def zoned_milliseconds(what: str, time: datetime) -> int:
    """Returns the time in ms since the epoch, rounded down. Raises ConfigError if it has no time zone."""
    if time.tzinfo is None:
        raise ConfigError(f"{what}: the time {time} has no time zone")
    return milliseconds(time)


def _boundary_option(kind: str, boundary: Boundary, topics: Sequence[str]) -> dict[str, str]:
    what = "start" if kind == "starting" else "end"
    if isinstance(boundary, datetime):
        return {f"{kind}Timestamp": str(zoned_milliseconds(what, boundary))}
    if isinstance(boundary, str):
        return {f"{kind}Offsets": boundary}
    if not isinstance(boundary, Mapping) or not all(isinstance(queue, str) for queue in boundary):
        raise ConfigError(
            f"{what}: {boundary!r} is none of 'earliest', 'latest', a datetime with a time zone, and offsets of queues "
            'such as {"broker-a:0": 120}'
        )
    if len(topics) != 1:
        raise ConfigError(f"{what}: offsets of queues need a single topic, not {', '.join(topics)}")
    return {f"{kind}Offsets": json.dumps({topics[0]: dict(boundary)})}
