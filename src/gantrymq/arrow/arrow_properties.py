"""Decodes the properties of many records (`name \\x01 value \\x02`, repeated) into Arrow arrays.

The rules are those of `protocol.properties.decode_properties`:
- Items without a name or a value are omitted.
- Bytes that aren't UTF-8 are replaced.
- The last item may lack its \\x02.
- If a name is repeated, the last value counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

_NAME_VALUE = 1
_END = 2
#: Largest number of properties of a record that `_are_alike` compares. With more properties, it returns true.
_FEW = 32


class Properties:
    """The properties of records, in `buffer`: each record has an entry in `starts` and in `ends`, ascending."""

    def __init__(self, buffer: bytes | memoryview, starts: Ints, ends: Ints) -> None:
        # The properties are copied, so that the search for separators doesn't scan the bodies.
        joined = gather_binary(buffer, starts, ends)
        _, offsets, data = joined.buffers()
        self._offsets = np.frombuffer(offsets, np.int32, len(starts) + 1).astype(np.int64)
        self._data = data if data is not None else pa.py_buffer(b"")
        self._bytes = np.frombuffer(self._data, np.uint8, self._offsets[-1])
        self._find_items()

    def _find_items(self) -> None:
        data, offsets = self._bytes, self._offsets
        is_end = np.zeros(len(data) + 1, np.bool_)
        np.equal(data, _END, out=is_end[:-1])
        record_ends = offsets[1:][offsets[1:] > offsets[:-1]]
        is_end[record_ends[data[record_ends - 1] != _END]] = True
        ends = np.flatnonzero(is_end)
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + (data[ends[:-1]] == _END)
        separators = np.flatnonzero(data == _NAME_VALUE)
        if len(separators) != len(ends) or not ((starts < separators) & (separators < ends - 1)).all():
            # An item has no name, no value or several separators. The first separator is the one that counts.
            separators = np.append(separators, len(data))[np.searchsorted(separators, starts)]
            good = (starts < separators) & (separators < ends - 1)
            starts, separators, ends = starts[good], separators[good], ends[good]
        self._starts, self._separators, self._ends = starts, separators, ends

    def find(self, name: str) -> pa.Array:
        """Returns the values of a property as a binary array; null if a record lacks it."""
        wanted = name.encode()
        items = np.flatnonzero(self._separators - self._starts == len(wanted))
        found = np.ndarray((max(0, len(self._bytes) - len(wanted) + 1),), f"S{len(wanted)}", self._data, strides=(1,))[
            self._starts[items]
        ]
        items = items[found == wanted]
        records = np.searchsorted(self._offsets, self._starts[items], "right") - 1
        value_starts = self._offsets[:-1].copy()
        value_ends = value_starts.copy()
        value_starts[records] = self._separators[items] + 1
        value_ends[records] = self._ends[items]
        values = gather_binary(self._data, value_starts, value_ends)
        has_value = np.zeros(len(values), np.bool_)
        has_value[records] = True
        if has_value.all():
            return values
        bitmap = pa.py_buffer(np.packbits(has_value, bitorder="little"))
        return pa.Array.from_buffers(pa.binary(), len(values), [bitmap, *values.buffers()[1:]])

    def as_map(self) -> pa.Array:
        """Returns all properties, as a map of strings for each record. If a name is repeated, the last value counts."""
        item_names = to_string(gather_binary(self._data, self._starts, self._separators))
        values = to_string(gather_binary(self._data, self._separators + 1, self._ends))
        first_items = np.searchsorted(self._starts, self._offsets)
        if _are_alike(item_names, first_items) and (last := _last_of_each_name(item_names, first_items)) is not None:
            item_names, values = item_names.take(pa.array(last)), values.take(pa.array(last))
            first_items = np.searchsorted(last, first_items)
        return pa.MapArray.from_arrays(pa.array(first_items.astype(np.int32)), item_names, values)


def _are_alike(item_names: pa.Array, first_items: Ints) -> bool:
    """Whether a record can have two equal names. Compares length, first byte and last byte of the names.

    This check is quicker than a comparison of complete names, and nearly all records have distinct names.
    """
    if not len(item_names):
        return False
    _, ends, data = item_names.buffers()
    bounds = np.frombuffer(ends, np.int32, len(item_names) + 1)
    letters = np.frombuffer(data, np.uint8, bounds[-1])
    most = np.diff(first_items).max(initial=0)
    if most > _FEW:
        return True
    looks = np.diff(bounds) << 16
    looks += letters[bounds[:-1]].astype(np.int32) << 8
    looks += letters[bounds[1:] - 1]
    records = np.repeat(np.arange(len(first_items) - 1), np.diff(first_items))
    for n in range(1, most):
        alike = np.flatnonzero(looks[n:] == looks[:-n])
        if len(alike) and (records[alike] == records[alike + n]).any():
            return True
    return False


def _last_of_each_name(item_names: pa.Array, first_items: Ints) -> Ints | None:
    """Returns the last item of each name in each record; None if all names are distinct.

    A message that was received and sent again can have the broker's own properties twice, but keys of Spark's maps must
    be distinct. Names are compared as strings, in which bytes that aren't UTF-8 have been replaced.
    """
    coded = item_names.dictionary_encode()
    records = np.repeat(np.arange(len(first_items) - 1), np.diff(first_items))
    numbers = records * len(coded.dictionary) + coded.indices.to_numpy()
    ascending = np.sort(numbers)
    if (ascending[1:] != ascending[:-1]).all():
        return None
    # `unique` returns first occurrences. In the reversed array, these are the last occurrences.
    _, from_end = np.unique(numbers[::-1], return_index=True)
    return np.sort(len(numbers) - 1 - from_end)


def gather_binary(buffer: bytes | memoryview | pa.Buffer, starts: Ints, ends: Ints) -> pa.Array:
    """Returns the bytes from each start to each end as a binary array. Ranges must ascend and must not overlap.

    The ranges and the gaps between them form one binary array over `buffer`. Arrow then copies every second element.
    """
    if not len(starts):
        return pa.array([], pa.binary())
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    data = buffer if isinstance(buffer, pa.Buffer) else pa.py_buffer(buffer)
    pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), data])
    return pieces.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32)))


def to_string(values: pa.Array) -> pa.Array:
    """Converts a binary array to strings. Bytes that aren't UTF-8 are replaced."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([v if v is None else v.decode(errors="replace") for v in values.to_pylist()], pa.string())
