"""Tests of `gantry schema infer`."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from gantrymq.arrow import write_topic
from gantrymq.cli.main import run
from gantrymq.codecs.json_types import JsonTypes, infer_fields
from gantrymq.testing.embedded import EmbeddedCluster

pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


def ddl(*values: Any) -> str:
    types = JsonTypes()
    for value in values:
        types.add(value)
    return types.type_ddl()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([None], "STRING"),
        ([True, None], "BOOLEAN"),
        ([1, -(2**63)], "BIGINT"),
        ([1, 2**63], "DECIMAL(38,0)"),
        ([1, 2.0], "DOUBLE"),
        (["a"], "STRING"),
        ([[], [None]], "ARRAY<STRING>"),
        ([[1], [[2.5]], [3]], "ARRAY<BIGINT>"),
        ([{}], "MAP<STRING, STRING>"),
        ([{"b": 1}, {"a": [{"x y": "z"}], "b": None}], "STRUCT<b: BIGINT, a: ARRAY<STRUCT<`x y`: STRING>>>"),
        ([1, "a", "b"], "STRING"),
    ],
)
def test_types(values: list[Any], expected: str) -> None:
    assert ddl(*values) == expected


def test_a_body_of_brackets() -> None:
    """Its arrays are examined to a limited depth."""
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert ddl(value).count("ARRAY<") == 101


def test_names_that_are_not_unicode_are_left_out() -> None:
    found = infer_fields([rb'{"a": 1, "\ud800": 1, "b": [{"\udfff": 2, "c": "\ud800"}]}'], "topic 'orders'")
    assert found.ddl == "a BIGINT, b ARRAY<STRUCT<c: STRING>>"
    assert found.remarks == ["2 fields are left out, because their names are not Unicode text"]


def test_the_bodies_of_a_sample_are_not_in_memory_together() -> None:
    tracemalloc.start()
    try:
        found = infer_fields((b'{"a": "%s"}' % (b"x" * 1_000_000) for _ in range(50)), "topic 'orders'")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert found.ddl == "a STRING"


def test_mixed_types_are_named() -> None:
    types = JsonTypes()
    for value in ({"a": {"b": [1, "x", "y"]}}, {"a": {"b": None}}, {"a": {"b": True}}):
        types.add(value)
    assert list(types.mixed()) == [
        "a.b: 1 of type array, 1 of type boolean",
        "a.b[]: 2 of type string, 1 of type number",
    ]


def send(cluster: EmbeddedCluster, topic: str, bodies: list[str]) -> None:
    write_topic(cluster.name_server, topic, pa.table({"body": bodies}))


def test_the_fields_of_a_topic(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    orders = [json.dumps({"id": n, "items": [{"name": "tea", "count": 2}], "at": "2026-01-31"}) for n in range(50)]
    send(cluster, "orders", [*orders, '{"id": "x"}', "tea", "[1]"])
    assert run(["schema", "infer", "orders", "-n", cluster.name_server]) == 0
    output, errors = capsys.readouterr()
    assert output == "id BIGINT, items ARRAY<STRUCT<name: STRING, count: BIGINT>>, at STRING\n"
    assert "2 of 53 bodies are not JSON objects" in errors
    assert "several types in id: 50 of type number, 1 of type string" in errors


def test_only_the_newest_messages_count(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    # Sharding keys put all messages into one queue.
    bodies = ['{"old": 1}'] * 20 + ['{"new": 1}'] * 5
    write_topic(cluster.name_server, "versions", pa.table({"body": bodies, "shardingKey": ["k"] * 25}))
    assert run(["schema", "infer", "versions", "-n", cluster.name_server, "--sample", "8"]) == 0
    assert capsys.readouterr().out == "new BIGINT\n"


@pytest.mark.parametrize(("bodies", "problem"), [([], "has no message"), (["tea", "{}"], "none of 2 messages")])
def test_topics_without_a_schema(
    cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str], bodies: list[str], problem: str
) -> None:
    topic = f"empty-{len(bodies)}"
    assert run(["admin", "updateTopic", "-n", cluster.name_server, "-c", "DefaultCluster", "-t", topic]) == 0
    if bodies:
        send(cluster, topic, bodies)
    capsys.readouterr()
    assert run(["schema", "infer", topic, "-n", cluster.name_server]) == 1
    assert problem in capsys.readouterr().err
