"""Exports metrics of streaming queries to Prometheus, progress reports as messages, and lineage to OpenLineage.

    with watch_queries(spark, metrics_port=9464, name_server="127.0.0.1:9876", topic="spark-progress"):
        query.awaitTermination()

OpenTelemetry's collector can scrape the metrics with its Prometheus receiver. The metrics include every streaming query
of the session, even a query that doesn't read or write topics.
"""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ConfigError, GantryError
from gantrymq.metrics import MetricsServer
from gantrymq.protocol.message import Message
from gantrymq.spark.query_metrics import QueryMetrics
from gantrymq.sync import SyncProducer

if TYPE_CHECKING:
    # Needs the extra `openlineage`.
    from gantrymq.spark.lineage import QueryLineage

log = logging.getLogger(__name__)

_GROUP = "gantry-spark-progress"


class QueryWatch:
    """The running export that `watch_queries` has started. `close`, or the end of its `with` block, stops it."""

    def __init__(self, stack: ExitStack, metrics_port: int | None) -> None:
        self._stack = stack
        #: The port of the metrics; None if `watch_queries` got no port.
        self.metrics_port = metrics_port

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def watch_queries(
    spark: SparkSession,
    *,
    metrics_port: int | None = None,
    host: str = "127.0.0.1",
    name_server: str | None = None,
    topic: str | None = None,
    lineage: QueryLineage | None = None,
) -> QueryWatch:
    """Starts the export of metrics, progress reports and lineage for the streaming queries of a session.

    Args:
        spark: The session.
        metrics_port: The port of http://host:port/metrics, which has the metrics of `query_metrics`. 0 selects a free
            port. Default: no metrics.
        host: The address on which the metrics are served. Default: 127.0.0.1, which only this machine reaches.
            `0.0.0.0` is all addresses.
        name_server: The NameServer for `topic`.
        topic: Each progress is sent to this topic, as Spark's JSON with the id of the query as key. If a send fails,
            the message is dropped with a warning. Default: no messages.
        lineage: Emits OpenLineage events. Default: no events.

    Returns:
        The running export. Close it to stop the export.

    Raises:
        GantryError: The port is in use.
        ConfigError: Only one of `name_server` and `topic` is given.
    """
    if (topic is None) != (name_server is None):
        raise ConfigError("name_server and topic go together")
    metrics = QueryMetrics()
    with ExitStack() as stack:
        port = None
        if metrics_port is not None:
            server = MetricsServer(metrics.metrics, host=host, port=metrics_port)
            loop = stack.enter_context(LoopThread("spark metrics"))
            loop.submit(server.start()).result()
            stack.callback(lambda: loop.submit(server.stop()).result())
            port = server.port
        producer = None
        if name_server is not None:
            producer = stack.enter_context(SyncProducer(Producer(name_server, _GROUP)))
        listener = _Listener(metrics, producer, topic or "", lineage)
        spark.streams.addListener(listener)
        # The listener is pushed last, so it is removed first. Spark then doesn't call it while the server and the
        # producer close.
        stack.callback(lambda: spark.streams.removeListener(listener))
        return QueryWatch(stack.pop_all(), port)


class _Listener(StreamingQueryListener):
    def __init__(
        self, metrics: QueryMetrics, producer: SyncProducer | None, topic: str, lineage: QueryLineage | None
    ) -> None:
        self._metrics = metrics
        self._producer = producer
        self._topic = topic
        self._lineage = lineage

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._metrics.started(str(event.id), event.name)
        if self._lineage is not None:
            self._lineage.started(str(event.id), str(event.runId), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        text = event.progress.json
        progress = json.loads(text)
        self._metrics.progressed(progress)
        if self._lineage is not None:
            self._lineage.progressed(progress)
        if self._producer is not None:
            try:
                self._producer.send(Message(self._topic, text.encode(), keys=progress["id"]))
            except GantryError as e:
                log.warning("can't send the progress of query %s to topic %s: %s", progress["id"], self._topic, e)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._metrics.ended(str(event.id), failed=event.exception is not None)
        if self._lineage is not None:
            self._lineage.ended(str(event.id), str(event.runId), event.exception)
