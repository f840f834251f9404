"""The properties of many records as Arrow arrays: single ones and the whole map (`name \\x01 value \\x02` repeated).

Read as `protocol.properties.decode_properties` does: items without a name or a value are left out, bytes that aren't
UTF-8 are replaced, the last item may lack its \\x02, of a name that comes again the last value counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

_NAME_VALUE = 1
_END = 2
#: Of more properties of a record the names are compared at once.
_FEW = 32


class Properties:
    """The properties that stand in `buffer` from each of `starts` to each of `ends`; one record each, ascending."""

    def __init__(self, buffer: bytes | memoryview, starts: Ints, ends: Ints) -> None:
        # The properties alone, back to back: separators are then found without looking at bodies.
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
            # Some item has no name, no value or several separators, of which the first one counts.
            separators = np.append(separators, len(data))[np.searchsorted(separators, starts)]
            good = (starts < separators) & (separators < ends - 1)
            starts, separators, ends = starts[good], separators[good], ends[good]
        self._starts, self._separators, self._ends = starts, separators, ends

    def find(self, name: str) -> pa.Array:
        """One property's values as binary, null where a record hasn't got it."""
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
        """All of them, as a map of strings for each record; of a name that comes again the last one."""
        item_names = to_string(gather_binary(self._data, self._starts, self._separators))
        values = to_string(gather_binary(self._data, self._separators + 1, self._ends))
        first_items = np.searchsorted(self._starts, self._offsets)
        if _are_alike(item_names, first_items) and (last := _last_of_each_name(item_names, first_items)) is not None:
            item_names, values = item_names.take(pa.array(last)), values.take(pa.array(last))
            first_items = np.searchsorted(last, first_items)
        return pa.MapArray.from_arrays(pa.array(first_items.astype(np.int32)), item_names, values)


def _are_alike(item_names: pa.Array, first_items: Ints) -> bool:
    """Whether two names of a record may be the same, by their length and their first and last byte.

    In nearly all records none are, and to look at all of each name would take longer.
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
    """The items that no other of their record follows with the same name; None where all are.

    As texts, in which bytes that aren't UTF-8 don't differ any more. A message that was received and sent again may
    have the broker's own properties twice, and a map of Spark must not.
    """
    coded = item_names.dictionary_encode()
    records = np.repeat(np.arange(len(first_items) - 1), np.diff(first_items))
    numbers = records * len(coded.dictionary) + coded.indices.to_numpy()
    ascending = np.sort(numbers)
    if (ascending[1:] != ascending[:-1]).all():
        return None
    # The first ones of what is read from its end.
    _, from_end = np.unique(numbers[::-1], return_index=True)
    return np.sort(len(numbers) - 1 - from_end)


def gather_binary(buffer: bytes | memoryview | pa.Buffer, starts: Ints, ends: Ints) -> pa.Array:
    """The bytes from each start to each end as a binary array; the ranges ascend and don't overlap.

    The ranges and the gaps between them are one binary array over `buffer`, of which Arrow copies every second
    element.
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
    """A binary array as strings; bytes that aren't UTF-8 are replaced."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([v if v is None else v.decode(errors="replace") for v in values.to_pylist()], pa.string())
