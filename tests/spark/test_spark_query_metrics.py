"""Tests of the metrics that queries export."""

from __future__ import annotations

import json
from typing import Any

import pytest
from constants import change_constant

from gantrymq.metrics import render
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.progress import lag_of, progress_of
from gantrymq.spark.query_metrics import QueryMetrics


def progress(rows: int, latest: dict[str, Any] | None) -> dict[str, Any]:
    source = {"latestOffset": latest and json.dumps(latest), "endOffset": None}
    return {
        "id": "1-2",
        "name": "orders",
        "timestamp": "2026-01-31T12:00:00.500Z",
        "numInputRows": rows,
        "inputRowsPerSecond": 10.5,
        "processedRowsPerSecond": 21.0,
        "durationMs": {"triggerExecution": 1500, "addBatch": 900},
        "sources": [source, {"description": "FileStreamSource", "latestOffset": {"logOffset": 3}, "endOffset": None}],
    }


LATEST = {
    MessageQueue("a", "broker-a", 0): 100,
    MessageQueue("a", "broker-b", 0): 10,
    MessageQueue("b", "broker-a", 0): 7,
}
READ_TO = {
    MessageQueue("a", "broker-a", 0): 60,
    MessageQueue("a", "broker-b", 0): 12,
    MessageQueue("b", "broker-a", 0): 5,
}


def text_of(figures: QueryMetrics) -> list[str]:
    return [line for line in render(figures.metrics()).decode().splitlines() if not line.startswith("#")]


def test_figures_of_a_query() -> None:
    figures = QueryMetrics()
    figures.started("1-2", "orders")
    figures.progressed(progress(40, progress_of(LATEST, READ_TO)))
    figures.progressed(progress(2, progress_of(LATEST, LATEST | {MessageQueue("b", "broker-a", 0): 5})))
    labels = 'query="orders",id="1-2"'
    assert text_of(figures) == [
        f"gantry_spark_query_running{{{labels}}} 1",
        f"gantry_spark_query_failures_total{{{labels}}} 0",
        f"gantry_spark_batches_total{{{labels}}} 2",
        f"gantry_spark_input_rows_total{{{labels}}} 42",
        f"gantry_spark_input_rows_per_second{{{labels}}} 10.5",
        f"gantry_spark_processed_rows_per_second{{{labels}}} 21.0",
        f"gantry_spark_batch_duration_seconds{{{labels}}} 1.5",
        f"gantry_spark_batch_start_seconds{{{labels}}} 1769860800.5",
        f'gantry_spark_lag_messages{{{labels},topic="a"}} 0',
        f'gantry_spark_lag_messages{{{labels},topic="b"}} 2',
    ]
    figures.ended("1-2", failed=True)
    assert f"gantry_spark_query_running{{{labels}}} 0" in text_of(figures)
    assert f"gantry_spark_query_failures_total{{{labels}}} 1" in text_of(figures)
    # The query restarts from its checkpoint.
    figures.started("1-2", "orders")
    figures.progressed(progress(1, None))
    assert f"gantry_spark_input_rows_total{{{labels}}} 43" in text_of(figures)


def test_lag() -> None:
    reported = progress_of(LATEST, READ_TO)
    assert reported == {
        "a": {"broker-a:0": 100, "broker-b:0": 10},
        "b": {"broker-a:0": 7},
        "$lag": {"a": 40, "b": 2},
    }
    assert lag_of({"latestOffset": json.dumps(reported)}) == lag_of({"latestOffset": reported}) == {"a": 40, "b": 2}
    # Spark has no offset before the first plan.
    assert progress_of({}, {}) is None
    for other in (None, "null", "3", "{", '{"logOffset": 3}', '{"a": {"0": 5}}', '{"$lag": 3}', '{"$lag": {"a": "x"}}'):
        assert lag_of({"latestOffset": other}) == {}


def test_queries_that_have_ended_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "query_metrics.MOST_ENDED", 2)
    figures = QueryMetrics()
    for number in range(5):
        figures.started(f"id-{number}", None)
    for number in (3, 1, 0, 2):
        figures.ended(f"id-{number}", failed=False)
    running = [line for line in text_of(figures) if line.startswith("gantry_spark_query_running")]
    assert [line.split('"')[1] for line in running] == ["id-4", "id-0", "id-2"]
    figures.ended("unknown", failed=False)
