"""Encodes the rows of a write as request bodies with many messages each.

Native code encodes plain rows, which have a body, keys, tags and a map of properties, and go to the topic of the
options. `row_messages` encodes all other rows, and defines the rules.

| row | CPU time in native code | in Python |
|---|---|---|
| 128 B with keys | 0.05 us | 3.4 us |
| 1 KiB | 0.27 us | 4.3 us |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from gantrymq.arrow.columns import BODY, PROPERTIES, WRITE_COLUMNS, Origin
from gantrymq.kernels import native
from gantrymq.kernels.interface import Array
from gantrymq.protocol import properties as names
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.row_ids import GANTRY_ID, SEQUENCE_LENGTH, Place

#: Limits of a request: messages, and approximate size in bytes. They keep a request well below a broker's
#: maxMessageSize of 4 MiB.
REQUEST_MESSAGES = 1000
REQUEST_BYTES = 1024 * 1024
#: The columns keys and tags, with their properties.
_SINGLES = {name: column.source for name, column in WRITE_COLUMNS.items() if column.origin is Origin.PROPERTY}
_COLUMNS = {BODY, PROPERTIES, *_SINGLES}
#: Properties that the writer adds.
_ADDED = {names.UNIQUE_KEY, GANTRY_ID}
_BYTES = (pa.binary(), pa.string())
#: Largest number of rows that are encoded at once. `UniqueKeys.some` returns at most 65,536 keys at once.
_ROWS_AT_ONCE = 30_000

#: A message as (flag, body, properties), the form that `encode_batch` accepts.
Encoded = tuple[int, bytes, bytes]


class BatchBody(NamedTuple):
    """A batch of `messages` messages, encoded by `protocol.batch`."""

    messages: int
    body: bytes


def batch_body(messages: Sequence[Encoded]) -> BatchBody:
    return BatchBody(len(messages), encode_batch(messages))


def requests_of(messages: Sequence[Encoded]) -> list[list[Encoded]]:
    """Divides messages into requests, in order, within REQUEST_MESSAGES and REQUEST_BYTES."""
    requests: list[list[Encoded]] = []
    size = REQUEST_BYTES
    for message in messages:
        length = len(message[1]) + len(message[2])
        if size + length > REQUEST_BYTES or len(requests[-1]) == REQUEST_MESSAGES:
            requests.append([])
            size = 0
        requests[-1].append(message)
        size += length
    return requests


class SequencedBatch(NamedTuple):
    """A batch of rows with exactlyOnce for one queue, and the writer's position in the queue after the batch."""

    body: bytes
    place: Place


class PlainRows:
    """Rows that native code encodes as messages.

    Args:
        rows: The rows.
        id_prefix: The prefix of the property GANTRY_ID.
        first_row: The number of the first row.
        unique_keys: Generates the unique key of each message.
        dropped: Names of properties that are omitted.
        most_bytes: The limit for the properties of a message, in bytes, without GANTRY_SEQ.
    """

    def __init__(
        self,
        rows: pa.RecordBatch,
        id_prefix: str,
        first_row: int,
        unique_keys: UniqueKeys,
        dropped: list[str],
        most_bytes: int,
    ) -> None:
        self._rows = rows
        self._id_prefix = id_prefix
        self.first_row = first_row
        self._unique_keys = unique_keys
        self._dropped = dropped
        self._most_bytes = most_bytes

    @property
    def end_row(self) -> int:
        return self.first_row + int(self._rows.num_rows)

    def batches(self) -> list[BatchBody] | None:
        """Returns the messages of all rows; None if a row is invalid or must be checked in Python."""
        found: list[BatchBody] = []
        for start in range(self.first_row, self.end_row, _ROWS_AT_ONCE):
            batches = self._encoded(start, min(start + _ROWS_AT_ONCE, self.end_row), None)
            if batches is None:
                return None
            found += [BatchBody(messages, body) for messages, body, _ in batches]
        return found

    def sequenced(self, start: int, end: int, target: bytes, after: Place) -> Iterator[SequencedBatch]:
        """Yields the messages of the rows from `start` to `end` (excluded) for the queue `target`.

        `after` is the writer's position in this queue.
        """
        batches = self._encoded(start, end, (target, after.chain))
        assert batches is not None, "`batches` has made them before"
        for messages, body, chain in batches:
            start += messages
            yield SequencedBatch(body, Place(start - 1, chain))

    def _encoded(self, start: int, end: int, sequence: tuple[bytes, int] | None) -> list[tuple[int, bytes, int]] | None:
        assert native is not None
        rows = self._rows.slice(start - self.first_row, end - start)
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        maps = columns.get(PROPERTIES)
        head, first_key = self._unique_keys.some(rows.num_rows)
        return native.batch_bodies(
            _array(columns[BODY]),
            rows.num_rows,
            [(name, _array(columns[column])) for column, name in _SINGLES.items() if column in columns],
            None if maps is None else (_map(maps), _array(maps.keys), _array(maps.items), self._dropped),
            self._id_prefix,
            start,
            head,
            first_key,
            sequence,
            (self._most_bytes + (SEQUENCE_LENGTH if sequence else 0), REQUEST_MESSAGES, REQUEST_BYTES),
        )


def plain_rows(
    rows: pa.RecordBatch,
    id_prefix: str,
    first_row: int,
    unique_keys: UniqueKeys,
    is_dropped: Callable[[str], bool],
    refused: Sequence[str],
    most_bytes: int,
) -> PlainRows | None:
    """Returns the rows for native code; None if native code isn't installed or `row_messages` must encode them.

    Properties for which `is_dropped` returns true are omitted. If a row has a property in `refused`, `row_messages`
    must encode the rows.
    """
    if native is None or not rows.num_rows or not _COLUMNS.issuperset(rows.schema.names):
        return None
    if any(rows.schema.field(name).type not in _BYTES for name in rows.schema.names if name != PROPERTIES):
        return None
    if not all(_is_text(rows.column(name)) for name in rows.schema.names if name != BODY):
        return None
    dropped: list[str] = []
    if PROPERTIES in rows.schema.names:
        properties = rows.column(PROPERTIES)
        kind = properties.type
        if not pa.types.is_map(kind) or {kind.key_type, kind.item_type} != {pa.string()}:
            return None
        given = properties.keys.unique().to_pylist()
        dropped = [name for name in given if is_dropped(name)]
        said_elsewhere = _ADDED.union(refused, (_SINGLES[name] for name in _SINGLES if name in rows.schema.names))
        if not said_elsewhere.isdisjoint(set(given).difference(dropped)):
            return None
    return PlainRows(rows, id_prefix, first_row, unique_keys, dropped, most_bytes)


def _is_text(column: pa.Array) -> bool:
    """Whether all strings are UTF-8, as properties must be; Spark's strings can have any bytes. Takes 0.01 us a row."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _array(column: pa.Array) -> Array:
    validity, offsets, data = column.buffers()
    return validity, offsets, data, column.offset


def _map(column: pa.MapArray) -> Array:
    validity, offsets, *_ = column.buffers()
    return validity, offsets, None, column.offset
