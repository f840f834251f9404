"""Streaming queries watched on the driver: metrics for Prometheus, and each progress as a message.

    with watch_queries(spark, metrics_port=9464, name_server="127.0.0.1:9876", topic="spark-progress"):
        query.awaitTermination()

OpenTelemetry's collector takes the metrics by its Prometheus receiver. Spark tells of every query of the session, also
of those that neither read nor write topics.
"""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from types import TracebackType
from typing import Self

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
from gantrymq.spark.query_figures import QueryFigures
from gantrymq.sync import SyncProducer

log = logging.getLogger(__name__)

_GROUP = "gantry-spark-progress"


class QueryWatch:
    """What `watch_queries` returns; ends with `close`, or as a context manager."""

    def __init__(self, stack: ExitStack, metrics_port: int | None) -> None:
        self._stack = stack
        #: Where the metrics are, if anywhere.
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
    host: str = "0.0.0.0",
    name_server: str | None = None,
    topic: str | None = None,
) -> QueryWatch:
    """Watches the streaming queries of a session until it is closed.

    With `metrics_port` (0: any free one) http://host:port/metrics has what `query_figures` tells. With `name_server`
    and `topic` each progress is a message: Spark's JSON, with the query's id as key. One that can't be sent is left
    out, with a line in the log.

    Raises GantryError when the port is taken, ConfigError for a topic without a NameServer.
    """
    if (topic is None) != (name_server is None):
        raise ConfigError("name_server and topic go together")
    figures = QueryFigures()
    with ExitStack() as stack:
        port = None
        if metrics_port is not None:
            server = MetricsServer(figures.metrics, host=host, port=metrics_port)
            loop = stack.enter_context(LoopThread("spark metrics"))
            loop.submit(server.start()).result()
            stack.callback(lambda: loop.submit(server.stop()).result())
            port = server.port
        producer = None
        if name_server is not None:
            producer = stack.enter_context(SyncProducer(Producer(name_server, _GROUP)))
        listener = _Listener(figures, producer, topic or "")
        spark.streams.addListener(listener)
        # Before the others end: nothing is told then.
        stack.callback(lambda: spark.streams.removeListener(listener))
        return QueryWatch(stack.pop_all(), port)


class _Listener(StreamingQueryListener):
    def __init__(self, figures: QueryFigures, producer: SyncProducer | None, topic: str) -> None:
        self._figures = figures
        self._producer = producer
        self._topic = topic

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._figures.started(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        text = event.progress.json
        progress = json.loads(text)
        self._figures.progressed(progress)
        if self._producer is not None:
            try:
                self._producer.send(Message(self._topic, text.encode(), keys=progress["id"]))
            except GantryError as e:
                log.warning("the progress of query %s isn't in topic %s: %s", progress["id"], self._topic, e)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._figures.ended(str(event.id), failed=event.exception is not None)
