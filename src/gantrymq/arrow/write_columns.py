"""`written_schema` checks the columns of a write, and selects the type that each one is cast to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import types

from gantrymq.arrow.columns import BODY, BROKER_NAME, QUEUE_ID, TOPIC, WRITE_COLUMNS
from gantrymq.arrow.options import WriteOptions
from gantrymq.arrow.row_messages import DELAY_COLUMNS, why_not_delayed
from gantrymq.errors import ConfigError

#: The name of the column of an unnamed index, for example of a filtered DataFrame.
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


def written_schema(given: pa.Schema, options: WriteOptions) -> pa.Schema:
    """Returns the schema that the rows of a write are cast to.

    Libraries have several types for the same values: strings are `string`, `large_string`, `string_view` or
    dictionaries. The schema lacks the unnamed indexes that pandas adds to the columns of a DataFrame.

    Raises:
        ConfigError: A write doesn't accept a column or its type, or a required column is missing.
    """
    given = pa.schema([field for field in given if not _UNNAMED_INDEX.fullmatch(field.name)])
    check_column_names(given.names, BODY, options)
    return pa.schema([(field.name, _target(field)) for field in given])


def check_column_names(names: Sequence[str], body: str, options: WriteOptions) -> None:
    """Raises ConfigError for a duplicate or missing column, and for a column that contradicts an option.

    `body` is the name of the column with the bodies.
    """
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"column {twice[0]} is there twice: name each once")
    if body not in names:
        raise ConfigError(f"a write needs a column {body}")
    if (TOPIC in names) == (options.topic is not None):
        raise ConfigError("a write needs either a topic or a column topic")
    if BROKER_NAME in names and QUEUE_ID not in names:
        raise ConfigError(f"column {BROKER_NAME} selects no queue: add column {QUEUE_ID}, or leave both out")
    if (delays := sorted(DELAY_COLUMNS.keys() & set(names))) and (reason := why_not_delayed(options)):
        raise ConfigError(f"{reason} can't be delayed: leave out column {delays[0]}")


def _target(field: pa.Field) -> pa.DataType:
    column = WRITE_COLUMNS.get(field.name)
    if column is None:
        raise ConfigError(
            f"a write has no use for column {field.name!r}; it takes {', '.join(WRITE_COLUMNS)}: select those, or put "
            "the others into body or properties"
        )
    for kind in column.written_as:
        if _is_like(field.type, kind):
            return kind
    if types.is_timestamp(field.type) and field.type.tz is None and field.name in DELAY_COLUMNS:
        raise ConfigError(f"column {field.name} has times without a time zone")
    raise ConfigError(f"column {field.name} is {field.type}; a write takes {' or '.join(map(str, column.written_as))}")


def _is_like(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether every value of the type `given` is also a value of the type `kind`, or is null."""
    if types.is_null(given):
        return True
    if types.is_dictionary(given):
        return _is_like(given.value_type, kind)
    if types.is_string(kind):
        return bool(types.is_string(given) or types.is_large_string(given) or types.is_string_view(given))
    if types.is_binary(kind):
        is_binary = types.is_binary(given) or types.is_large_binary(given) or types.is_binary_view(given)
        return bool(is_binary or types.is_fixed_size_binary(given))
    if types.is_list(kind):
        return (types.is_list(given) or types.is_large_list(given)) and _is_like(given.value_type, kind.value_type)
    if types.is_map(kind):
        is_map = types.is_map(given)
        return is_map and _is_like(given.key_type, kind.key_type) and _is_like(given.item_type, kind.item_type)
    if types.is_timestamp(kind):
        return types.is_timestamp(given) and given.tz is not None
    return bool(types.is_integer(given))
