"""`QueryMetrics` computes the metrics of streaming queries from their progress. It needs no Spark session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gantrymq.metrics import Kind, Metric
from gantrymq.spark.progress import lag_of

#: Largest number of ended queries whose metrics are kept.
MOST_ENDED = 100


@dataclass(slots=True)
class _QueryState:
    name: str
    is_running: bool = True
    failures: int = 0
    batches: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    processed_per_second: float = 0.0
    batch_s: float = 0.0
    batch_began_s: float = 0.0
    #: {topic: lag in messages when the last micro-batch was planned}.
    lag: dict[str, int] = field(default_factory=dict)


_GAUGE, _COUNTER = Kind.GAUGE, Kind.COUNTER
_METRICS: list[tuple[str, Kind, str, Callable[[_QueryState], float]]] = [
    ("query_running", _GAUGE, "1 while the query runs.", lambda q: int(q.is_running)),
    ("query_failures_total", _COUNTER, "Ends of the query by an error.", lambda q: q.failures),
    ("batches_total", _COUNTER, "Micro-batches.", lambda q: q.batches),
    ("input_rows_total", _COUNTER, "Rows that were read.", lambda q: q.rows),
    ("input_rows_per_second", _GAUGE, "Rows that arrived a second, in the last batch.", lambda q: q.rows_per_second),
    ("processed_rows_per_second", _GAUGE, "Rows a second of the last batch.", lambda q: q.processed_per_second),
    ("batch_duration_seconds", _GAUGE, "How long the last micro-batch took.", lambda q: q.batch_s),
    ("batch_start_seconds", _GAUGE, "When the last micro-batch began, seconds since 1970.", lambda q: q.batch_began_s),
]


class QueryMetrics:
    """The metrics of queries by id. A query that is started again continues its counters. Thread-safe."""

    def __init__(self) -> None:
        self._queries: dict[str, _QueryState] = {}
        self._lock = threading.Lock()

    def started(self, query_id: str, name: str | None) -> None:
        with self._lock:
            query = self._queries.pop(query_id, None) or _QueryState(name or query_id)
            query.is_running = True
            self._queries[query_id] = query

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Records a progress report, the decoded JSON of Spark's StreamingQueryProgress."""
        with self._lock:
            query = self._queries.setdefault(progress["id"], _QueryState(progress.get("name") or progress["id"]))
            query.batches += 1
            query.rows += progress.get("numInputRows") or 0
            query.rows_per_second = float(progress.get("inputRowsPerSecond") or 0)
            query.processed_per_second = float(progress.get("processedRowsPerSecond") or 0)
            query.batch_s = (progress.get("durationMs") or {}).get("triggerExecution", 0) / 1000
            query.batch_began_s = _seconds(progress["timestamp"])
            query.lag = {}
            for source in progress.get("sources") or ():
                for topic, count in lag_of(source).items():
                    query.lag[topic] = query.lag.get(topic, 0) + count

    def ended(self, query_id: str, *, failed: bool) -> None:
        with self._lock:
            query = self._queries.pop(query_id, None)
            if query is not None:
                query.is_running = False
                query.failures += failed
                # Inserts the query again, so that the dictionary contains ended queries in the order in which they
                # ended.
                self._queries[query_id] = query
            ended = [key for key, of_key in self._queries.items() if not of_key.is_running]
            for key in ended[:-MOST_ENDED]:
                del self._queries[key]

    def metrics(self) -> Iterator[Metric]:
        with self._lock:
            queries = [({"query": query.name, "id": key}, query) for key, query in self._queries.items()]
            for name, kind, description, value in _METRICS:
                samples = [(labels, value(query)) for labels, query in queries]
                yield Metric(f"gantry_spark_{name}", kind, description, samples)
            yield Metric(
                "gantry_spark_lag_messages",
                Kind.GAUGE,
                "Messages behind the last micro-batch when it was planned. From Spark 4.2 on.",
                [({**labels, "topic": topic}, lag) for labels, q in queries for topic, lag in q.lag.items()],
            )


def _seconds(timestamp: str) -> float:
    """Converts a timestamp such as `2026-01-31T12:00:00.000Z` to seconds since the epoch."""
    return datetime.fromisoformat(timestamp).astimezone(UTC).timestamp()
