"""Rows of a write as the bodies of requests, many messages in each.

Native code makes them of plain rows: a body, keys, tags and a map of properties, for the topic of the options. What it
doesn't take (another column, a row that is no message) goes through `row_messages`, where the rules are. A row of 128 B
with keys takes 0.05 us of processor time instead of 3.4, one of 1 KiB 0.27 instead of 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from gantrymq.kernels import native
from gantrymq.kernels.interface import Array
from gantrymq.protocol import properties as names
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.message_id import UniqueKeys
from gantrymq.protocol.row_ids import GANTRY_ID, SEQUENCE_LENGTH, Place

#: A request holds at most so many messages and about so many bytes: well under a broker's maxMessageSize of 4 MiB.
REQUEST_MESSAGES = 1000
REQUEST_BYTES = 1024 * 1024
#: A column of texts, and the property that it becomes.
_SINGLES = {"keys": names.KEYS, "tags": names.TAGS}
_PROPERTIES = "properties"
_COLUMNS = {"body", _PROPERTIES, *_SINGLES}
#: Properties that the writer adds.
_ADDED = {names.UNIQUE_KEY, GANTRY_ID}
_BYTES = (pa.binary(), pa.string())
#: Fewer than the keys that differ in one millisecond.
_ROWS_AT_ONCE = 30_000

#: (flag, body, properties): what `encode_batch` takes.
Encoded = tuple[int, bytes, bytes]


class BatchBody(NamedTuple):
    """A batch of `messages` messages, as `protocol.batch` has them."""

    messages: int
    body: bytes


def batch_body(messages: Sequence[Encoded]) -> BatchBody:
    return BatchBody(len(messages), encode_batch(messages))


def requests_of(messages: Sequence[Encoded]) -> list[list[Encoded]]:
    """The messages of each request, in order."""
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
    """A batch of rows of exactlyOnce for one queue, and how far the writer is there with it."""

    body: bytes
    place: Place


class PlainRows:
    """Rows that native code makes messages of; the first one has the number `first_row`.

    GANTRY_ID begins with `id_prefix`; `dropped` are the names of properties that are left out. `most_bytes` is what a
    message's properties have at most, without GANTRY_SEQ.
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
        """The messages of all; None where a row is no message, or Python is to look at it."""
        found: list[BatchBody] = []
        for start in range(self.first_row, self.end_row, _ROWS_AT_ONCE):
            batches = self._encoded(start, min(start + _ROWS_AT_ONCE, self.end_row), None)
            if batches is None:
                return None
            found += [BatchBody(messages, body) for messages, body, _ in batches]
        return found

    def sequenced(self, start: int, end: int, target: bytes, after: Place) -> Iterator[SequencedBatch]:
        """The messages of these rows for the queue of that `target`, which has what is up to `after`."""
        batches = self._encoded(start, end, (target, after.chain))
        assert batches is not None, "`batches` has made them before"
        for messages, body, chain in batches:
            start += messages
            yield SequencedBatch(body, Place(start - 1, chain))

    def _encoded(self, start: int, end: int, sequence: tuple[bytes, int] | None) -> list[tuple[int, bytes, int]] | None:
        assert native is not None
        rows = self._rows.slice(start - self.first_row, end - start)
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        maps = columns.get(_PROPERTIES)
        head, first_key = self._unique_keys.some(rows.num_rows)
        return native.batch_bodies(
            _array(columns["body"]),
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
    """None where native code isn't there, or has to leave the rows to `row_messages`.

    Of the properties those that `is_dropped` are left out, and with one of `refused` the rows are left.
    """
    if native is None or not rows.num_rows or not _COLUMNS.issuperset(rows.schema.names):
        return None
    if any(rows.schema.field(name).type not in _BYTES for name in rows.schema.names if name != _PROPERTIES):
        return None
    if not all(_is_text(rows.column(name)) for name in rows.schema.names if name != "body"):
        return None
    dropped: list[str] = []
    if _PROPERTIES in rows.schema.names:
        properties = rows.column(_PROPERTIES)
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
    """Spark's strings may have any bytes, and properties may not. Takes 0.01 us a row."""
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
