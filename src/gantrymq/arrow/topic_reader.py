"""`read_topic` reads topics as Arrow batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from gantrymq.arrow.connection_pool import task_connections
from gantrymq.arrow.filters import PushedFilters, with_tags
from gantrymq.arrow.offsets import OffsetRange, plan_ranges
from gantrymq.arrow.options import ReadOptions
from gantrymq.arrow.planning import batch_offsets
from gantrymq.arrow.read_arguments import Boundary, NameServers, conditions_of, read_options
from gantrymq.arrow.row_filter import Condition, RowFilter
from gantrymq.arrow.rows import read_ranges


def read_topic(
    name_servers: NameServers,
    topic: str | Sequence[str],
    *,
    start: Boundary | None = None,
    end: Boundary | None = None,
    filter: str | Sequence[Condition] | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> pa.RecordBatchReader:
    """Reads the messages of one or more topics.

    The offsets to read are planned in this call. The reader then pulls one batch ahead, so it needs memory for a few
    batches, however large the topic is. The rows of a queue are in the order of their offsets.

    Args:
        name_servers: The NameServers, as HOST:PORT. None if the option `context` supplies them.
        topic: The topic, or several of them.
        start: `earliest` (default), `latest`, a time with a time zone, or the first offset of each queue,
            `{"broker-a:0": 120}`.
        end: The end (excluded), in the same forms. Default: `latest`, the end of each queue at the time of the call.
        filter: Conditions `(column, operator, value)`, combined with AND, such as
            `[("storeTimestamp", ">=", time), ("tags", "in", ["paid", "sent"])]`. Operators are `=`, `!=`, `<`, `<=`,
            `>`, `>=`, `in` and `not in`. Conditions on topic, brokerName, queueId, queueOffset, storeTimestamp and
            tags reduce the messages that brokers send. A string is an SQL92 expression over the properties, which
            brokers evaluate.
        columns: The columns of the result. Others cost nothing. Default: all but `properties` and `bodyError`.
        options: Further options, with the names and values of the Spark source.

    Returns:
        A reader. While it is read, it raises DataLost, BrokerError, a RemotingError, or an error of a damaged message:
        RecordError or CompressionError.

    Raises:
        ConfigError: An argument or option is invalid, or there are no messages since the starting time.
        NoRouteInfo: A topic has no route.
        BrokerUnavailable: A broker with some of the messages is not registered, after retries.
        RemotingError: A NameServer or broker does not respond, after retries.
        DataLost: The messages at the start or the end no longer exist.

    Example:
        `read_topic("127.0.0.1:9876", "orders", columns=["queueOffset", "body"]).read_pandas()`
    """
    sql92, conditions = conditions_of(filter)
    parsed = read_options(name_servers, topic, start, end, sql92, options, streaming=False)
    rows = row_filter(parsed, conditions, columns)
    pushed = PushedFilters()
    if not parsed.deduplicate:
        # Deduplication must see all rows before a condition removes some.
        rows.push(pushed)
        parsed = with_tags(parsed, pushed.tags)
    batches = read_ranges(_plan(parsed, pushed), parsed, rows.decoded)
    return rows.reader(batches)


def row_filter(options: ReadOptions, conditions: Sequence[Condition], columns: Sequence[str] | None) -> RowFilter:
    """Returns the filter of a read from brokers. Raises ConfigError for an invalid condition or column."""
    return RowFilter(
        conditions,
        columns,
        property_columns=options.property_columns,
        include_properties=options.include_properties,
        include_body_error=options.returns_corrupt_bodies,
    )


def _plan(options: ReadOptions, filters: PushedFilters) -> list[OffsetRange]:
    # Runs on the event loop of the connections, because the caller may run its own event loop, as in a notebook.
    with task_connections(options) as brokers:
        start, end = brokers.submit(batch_offsets(brokers.cluster, options, filters)).result()
    return plan_ranges(start, end)
