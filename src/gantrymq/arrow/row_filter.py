"""`RowFilter`: the conditions and the columns of a read, for `read_topic`, `stream_topic` and `scan_store`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.arrow.columns import ARROW_TYPES, BODY_ERROR, PROPERTIES
from gantrymq.arrow.filters import PushedFilters
from gantrymq.errors import ConfigError

#: A condition `(column, operator, value)`, such as `("queueId", "=", 0)` or `("tags", "in", ["paid", "sent"])`.
Condition = tuple[str, str, Any]

_COMPARE: dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_LISTS = ("in", "not in")


class RowFilter:
    """Selects rows by conditions, which are combined with AND, and columns by name."""

    def __init__(
        self,
        conditions: Sequence[Condition],
        columns: Sequence[str] | None,
        *,
        property_columns: Sequence[str] = (),
        include_properties: bool = False,
        include_body_error: bool = False,
    ) -> None:
        """Checks the conditions and the columns.

        Args:
            conditions: The conditions.
            columns: The names of the columns; None for the columns of `ARROW_TYPES`, with the exceptions below.
            property_columns: Further columns, each with one property.
            include_properties: If true, the default has the column `properties`.
            include_body_error: If true, the default has the column `bodyError`.

        Raises:
            ConfigError: A column doesn't exist or is named twice, or a condition is invalid.
        """
        kinds = ARROW_TYPES | dict.fromkeys(property_columns, pa.string())
        if columns is None:
            left_out = {PROPERTIES: not include_properties, BODY_ERROR: not include_body_error}
            columns = [name for name in kinds if not left_out.get(name, False)]
        if isinstance(columns, str):
            raise ConfigError(f"columns: a list of names was expected, not the text {columns!r}")
        if not columns:
            raise ConfigError("a read needs at least one column")
        for name in columns:
            _check_column(name, kinds)
            if list(columns).count(name) > 1:
                raise ConfigError(f"column {name} is named twice")
        self._conditions = [_checked(condition, kinds) for condition in conditions]
        #: The columns of the result.
        self.schema = pa.schema([(name, kinds[name]) for name in columns])
        #: The columns to decode: the columns of the result, and of conditions that `push` has not taken over.
        self.decoded = self._with_conditions(kinds)
        self._kinds = kinds

    def push(self, filters: PushedFilters) -> None:
        """Adds the conditions to `filters`. Rows are then checked only against conditions that it refuses."""
        self._conditions = [condition for condition in self._conditions if not filters.push(*condition)]
        self.decoded = self._with_conditions(self._kinds)

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the selected rows and columns of batches with the columns `decoded`. No batch is empty."""
        names = self.schema.names
        has_more = self.decoded.names != names
        for batch in batches:
            rows = batch
            if self._conditions:
                rows = batch.filter(reduce(pc.and_kleene, (self._mask(batch, *each) for each in self._conditions)))
            if rows.num_rows:
                yield rows.select(names) if has_more else rows

    def reader(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
        """Returns a reader of the selected rows and columns. If no row is selected, it has one empty batch.

        Otherwise `polars.from_arrow` would fail, because it creates a table from the batches alone.
        """
        return pa.RecordBatchReader.from_batches(self.schema, self._at_least_one(self.apply(batches)))

    def _at_least_one(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None:
            first = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in self.schema.types], schema=self.schema)
        yield first
        yield from batches

    def _with_conditions(self, kinds: dict[str, pa.DataType]) -> pa.Schema:
        names = dict.fromkeys([*self.schema.names, *(column for column, _, _ in self._conditions)])
        return pa.schema([(name, kinds[name]) for name in names])

    def _mask(self, batch: pa.RecordBatch, column: str, comparison: str, value: Any) -> pa.Array:
        values = batch.column(column)
        if comparison in _LISTS:
            # As in SQL, neither `in` nor `not in` matches a null.
            is_in = pc.is_in(values, pa.array(value, values.type))
            mask = is_in if comparison == "in" else pc.invert(is_in)
            return pc.and_(mask, values.is_valid())
        return _COMPARE[comparison](values, pa.scalar(value, values.type))


def _check_column(name: str, kinds: dict[str, pa.DataType]) -> None:
    if name not in kinds:
        raise ConfigError(
            f"no column {name!r}; there are {', '.join(kinds)}, and properties that the option propertyColumns names"
        )


def _checked(condition: Condition, kinds: dict[str, pa.DataType]) -> Condition:
    """Returns the condition, with the value in the type of its column. Raises ConfigError if it is invalid."""
    try:
        column, comparison, value = condition
    except (TypeError, ValueError):
        raise ConfigError(f"filter: {condition!r} is not (column, operator, value)") from None
    _check_column(column, kinds)
    if comparison not in _COMPARE and comparison not in _LISTS:
        raise ConfigError(f"filter: no operator {comparison!r}; there are {', '.join([*_COMPARE, *_LISTS])}")
    if pa.types.is_map(kinds[column]):
        raise ConfigError(f"filter: column {column} can't be compared: name its properties in option propertyColumns")
    is_list = comparison in _LISTS
    if is_list and (isinstance(value, str | bytes) or not hasattr(value, "__iter__")):
        raise ConfigError(f"filter: {comparison!r} needs a list of values, not {value!r}")
    values = []
    for each in value if is_list else [value]:
        if each is None:
            raise ConfigError(f"filter: the value for column {column} is None")
        if isinstance(each, datetime) and each.tzinfo is None:
            raise ConfigError(f"filter: the time {each} has no time zone")
        try:
            values.append(pa.scalar(each, kinds[column]).as_py())
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
            raise ConfigError(f"filter: {each!r} is no value for column {column}, {kinds[column]}: {e}") from e
    return column, comparison, values if is_list else values[0]
