"""`write_topic` writes the rows of Arrow batches to a topic."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.arrow.batch_sender import send_batches
from gantrymq.arrow.client_settings import WRITE_SETTINGS
from gantrymq.arrow.connection_pool import task_connections
from gantrymq.arrow.freed_memory import reuse_freed_memory
from gantrymq.arrow.idempotent_sender import IdempotentSender, find_write_queues, queues_of_earlier_attempt
from gantrymq.arrow.option_values import SECURITY, Values, check_names
from gantrymq.arrow.options import WRITE_OPTIONS, WriteOptions
from gantrymq.arrow.read_arguments import NameServers, name_server_option
from gantrymq.arrow.row_messages import RowEncoder
from gantrymq.arrow.row_sender import RowSender
from gantrymq.arrow.write_columns import written_schema
from gantrymq.errors import ConfigError, IllegalMessage

TOPIC_WRITE_OPTIONS = (
    "context",
    "retryTimeoutMs",
    "keepProperties",
    "expectedBrokers",
    *WRITE_SETTINGS,
    *SECURITY,
)
#: The number of the only partition, which is a part of the ids of rows.
_PARTITION = 0
#: Rows that are encoded at a time. A table of Polars or pandas can be one batch.
_SLICE_ROWS = 10_000


def write_topic(
    name_servers: NameServers,
    topic: str | None,
    rows: Any,
    *,
    exactly_once: tuple[str, int] | None = None,
    options: Mapping[str, str] | None = None,
) -> int:
    """Writes rows as messages, and returns their number after all of them are stored.

    Args:
        name_servers: The NameServers, as HOST:PORT. None if the option `context` supplies them.
        topic: The topic. None if the rows have a column `topic`.
        rows: A RecordBatchReader, a table or a record batch of pyarrow, a DataFrame of Polars or pandas, or any other
            object with `__arrow_c_stream__`. The column `body` is required. An unnamed index of pandas is omitted.
        exactly_once: A name and a number of this write. If a write with the same name and number is repeated, brokers
            of GantryMQ drop the rows that they have. The rows must then be the same, in the same order. Numbers of a
            name must increase. Without it, each row is stored at least once.
        options: Further options, with the names and values of the Spark source.

    Raises:
        ConfigError: An argument, an option or a column is invalid.
        IllegalMessage: A row can't be a message. Rows before it may already be stored.
        ClientError: A repeated write has fewer rows than the first write.
        BrokerError: A broker has refused a message, for example because a repeated write has other rows.
        BrokerUnavailable: No broker of the topic is registered, after retries.
        RemotingError: No NameServer, or no broker of the topic, responds, after retries.

    Example:
        `write_topic("127.0.0.1:9876", "orders", pl.DataFrame({"body": ["one", "two"], "tags": ["new", "new"]}))`
    """
    parsed = _options(name_servers, topic, exactly_once, options)
    reader = _reader(rows)
    schema = written_schema(reader.schema, parsed)
    name, number = exactly_once or (uuid.uuid4().hex, 0)
    write_id = f"{name}-{number}"
    encoder = RowEncoder(parsed, f"{write_id}-{_PARTITION}")
    reuse_freed_memory()
    with task_connections(parsed) as brokers:
        if exactly_once is None:
            plain = RowSender(brokers.cluster, _PARTITION, parsed.new_topic)
            return send_batches(_slices(reader, schema), encoder, plain, brokers)
        queues = brokers.submit(find_write_queues(brokers.cluster, parsed)).result()
        of_attempts = queues_of_earlier_attempt(brokers.cluster, queues, write_id, _PARTITION)
        sender = IdempotentSender(brokers.cluster, brokers.submit(of_attempts).result(), _PARTITION)
        count = send_batches(_slices(reader, schema), encoder, sender, brokers)
    sender.finish()
    return count


def _options(
    name_servers: NameServers,
    topic: str | None,
    exactly_once: tuple[str, int] | None,
    options: Mapping[str, str] | None,
) -> WriteOptions:
    given = dict(options or {})
    check_names(given, TOPIC_WRITE_OPTIONS, "write without Spark", WRITE_OPTIONS)
    given |= name_server_option(name_servers)
    if topic is not None:
        given["topic"] = topic
    if exactly_once is not None:
        if not isinstance(exactly_once, tuple | list) or len(exactly_once) != 2 or not exactly_once[0]:
            raise ConfigError(f"exactly_once: {exactly_once!r} is no name and number, such as ('load-orders', 1)")
        name, number = exactly_once
        given |= {"exactlyOnce": "true", "txnAppId": name, "txnVersion": str(number)}
    return WriteOptions.of(Values(given, WRITE_OPTIONS, "write"), streaming=False)


def _reader(rows: Any) -> pa.RecordBatchReader:
    if isinstance(rows, pa.RecordBatchReader):
        return rows
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if not hasattr(rows, "__arrow_c_stream__"):
        raise ConfigError(f"{type(rows).__name__} has no Arrow data: a table, a DataFrame or a reader was expected")
    try:
        return pa.RecordBatchReader.from_stream(rows)
    except pa.ArrowInvalid as e:
        raise ConfigError(f"{type(rows).__name__} is no table with columns: {e}") from e


def _slices(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        whole = [_without_view(batch.column(field.name)) for field in schema]
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            pieces = [column.slice(start, _SLICE_ROWS) for column in whole]
            try:
                columns = [_cast(piece, field.type) for piece, field in zip(pieces, schema, strict=True)]
            except pa.ArrowException as e:
                last = min(start + _SLICE_ROWS, batch.num_rows) - 1
                raise IllegalMessage(f"rows {start} to {last} of a batch have an invalid value: {e}") from e
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _without_view(column: pa.Array) -> pa.Array:
    """Returns a column that Arrow can cast. It can't cast dictionaries of views, such as a Categorical of Polars."""
    values = column.dictionary.type if pa.types.is_dictionary(column.type) else None
    if values is not None and pa.types.is_string_view(values):
        kind = pa.large_string()
    elif values is not None and pa.types.is_binary_view(values):
        kind = pa.large_binary()
    else:
        return column
    return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(kind))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    # Messages have times in ms, so a smaller unit, such as the ns of pandas, loses nothing.
    return column.cast(options=pc.CastOptions(kind, allow_time_truncate=True))
