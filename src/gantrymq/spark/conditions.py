"""Converts the conditions that Spark pushes to a data source, for `PushedFilters`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.arrow.columns import proper_name
from gantrymq.arrow.filters import PushedFilters
from gantrymq.spark.versions import HAS_FILTERS

if TYPE_CHECKING or HAS_FILTERS:
    from pyspark.sql.datasource import (
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
    )


def push_condition(filters: PushedFilters, condition: Filter) -> bool:
    """Adds a condition to `filters`. Returns False if Spark must also check the condition for each row."""
    match condition:
        case IsNotNull((name,)):
            return filters.push(proper_name(name), "is not null")
        case EqualTo((name,), value):
            return filters.push(proper_name(name), "=", value)
        case In((name,), values):
            return filters.push(proper_name(name), "in", values)
        case GreaterThan((name,), value):
            return filters.push(proper_name(name), ">", value)
        case GreaterThanOrEqual((name,), value):
            return filters.push(proper_name(name), ">=", value)
        case LessThan((name,), value):
            return filters.push(proper_name(name), "<", value)
        case LessThanOrEqual((name,), value):
            return filters.push(proper_name(name), "<=", value)
        case _:
            return False
