"""Writes the SQL statements that create a view for each topic of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyspark.sql.types import StructType

from gantrymq.arrow.queues import matches
from gantrymq.spark.read_schema import default_schema

_EVERY_NAME = ".*"


def view_statements(topics: Iterable[str], options: Mapping[str, str]) -> Iterator[str]:
    """Yields a CREATE TEMPORARY VIEW with the columns of a read for each topic that users created.

    A view has the name of its topic. Names of views are case-insensitive: if two topics differ only in case, the name
    of the second view gets a number.

    Args:
        topics: The topics. System topics, retry topics and dead-letter topics get no view.
        options: The options that select the cluster, for example nameServer.
    """
    schema = default_schema(include_properties=False, include_body_error=False)
    assert isinstance(schema, StructType)
    columns = ", ".join(f"{field.name} {field.dataType.simpleString().upper()}" for field in schema.fields)
    taken: set[str] = set()
    for topic in topics:
        if not matches(_EVERY_NAME, topic):
            continue
        name, number = topic, 1
        while name.lower() in taken:
            number += 1
            name = f"{topic}_{number}"
        taken.add(name.lower())
        given = ", ".join(f"{option} {_literal(value)}" for option, value in {**options, "subscribe": topic}.items())
        quoted = name.replace("`", "``")
        yield f"CREATE OR REPLACE TEMPORARY VIEW `{quoted}` ({columns}) USING rocketmq OPTIONS ({given});"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
