"""`FlightStream` runs the cluster, Spark, a thread that sends flights, and a thread that reads the results back."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from gantrymq.demo.background import in_background
from gantrymq.demo.collect import Collected, collect
from gantrymq.demo.display import COLLECTED, READ, SENT, Display
from gantrymq.demo.pipeline import DELAYS_TOPIC, FLIGHTS_TOPIC, messages_before, start_query
from gantrymq.demo.produce import create_topics, send_end, send_flights
from gantrymq.demo.spark_session import start_spark, stop_spark
from gantrymq.demo.state import DemoState
from gantrymq.errors import GantryError
from gantrymq.testing.processes import ProcessCluster

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BROKERS = 2
#: Small commit log files, because the messages of both topics take only 150 MB.
BROKER_PROPERTIES = {"mappedFileSizeCommitLog": str(128 * 1024 * 1024)}
POLL_INTERVAL_S = 0.25
#: The longest wait for the next result after the query has ended, in seconds. The missing results then count as lost.
COLLECT_TIMEOUT_S = 15.0
#: The number of messages that Spark reads in addition to the flights: only the message of `send_end`.
END_MESSAGES = 1
#: The longest time to stop the threads, in seconds.
STOP_TIMEOUT_S = 15.0


class Rate(NamedTuple):
    """A number of messages, and the time in which they were processed, in seconds."""

    messages: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = f" ({self.messages / self.seconds:,.0f} messages/s)" if self.messages else ""
        return f"{self.messages:,}{rate}"


class FlightStream:
    """Processes flights with a cluster and Spark. After `run`, `collected` has the results from the result topic."""

    def __init__(
        self, state: DemoState, flights: pd.DataFrame, airlines: pd.DataFrame, result_count: int, display: Display
    ) -> None:
        self.collected = Collected()
        self.sent = Rate()
        self.read = Rate()
        self._state = state
        self._flights = flights
        self._airlines = airlines
        self._result_count = result_count
        self._display = display
        self._stop = threading.Event()

    def run(self) -> None:
        """Runs until all flights are processed. All threads and processes are stopped, even after an error."""
        with ExitStack() as stack:
            cluster = ProcessCluster(
                self._state.cluster,
                brokers=BROKERS,
                broker_properties=BROKER_PROPERTIES,
                pass_fds=[self._state.lock_fd],
            )
            stack.enter_context(cluster)
            addr, brokers = cluster.namesrv_addr, [broker.address for broker in cluster.brokers]
            self._display.note(f"NameServer at {addr}, brokers at {' and '.join(brokers)}; starting Spark")
            session = in_background("spark", lambda: start_spark(self._state.spark, self._state.spark_log))
            stack.callback(stop_spark, session)
            asyncio.run(create_topics(addr, brokers, [FLIGHTS_TOPIC, DELAYS_TOPIC]))
            sending = in_background("send", lambda: asyncio.run(self._send(addr)))
            collecting = in_background("collect", lambda: asyncio.run(self._collect(addr)))
            stack.callback(self._stop_threads, sending, collecting)

            self._wait(session, sending, collecting)
            self._display.note(f"Spark {session.result().version} is up")
            try:
                self._query(session.result(), addr, sending, collecting)
            except (PySparkException, Py4JError) as e:
                # The text of the error comes from the JVM, so it is requested before the JVM is stopped.
                text = str(e)
                with self._state.spark_log.open("a") as log:
                    log.write(text)
                reason = text.partition("\n\tat ")[0]
                raise GantryError(f"Spark failed: {reason}\nmore in {self._state.spark_log}") from None
            self._wait_for_results(collecting)

    def _query(self, spark: SparkSession, addr: str, sending: Future[None], collecting: Future[None]) -> None:
        started = time.monotonic()
        query = start_query(spark, addr, self._airlines, checkpoint=self._state.checkpoint, parquet=self._state.parquet)
        try:
            self._follow(query, sending, collecting)
            self._follow(query, in_background("query", query.processAllAvailable), collecting)
            # Sent after Spark has read every flight, because Spark drops flights after this message as too late.
            asyncio.run(send_end(addr, FLIGHTS_TOPIC))
            self._follow(query, in_background("query", query.processAllAvailable), collecting)
            rows = sum(batch.numInputRows for batch in query.recentProgress)
            self.read = Rate(rows - END_MESSAGES, time.monotonic() - started)
        finally:
            query.stop()

    async def _send(self, addr: str) -> None:
        started = time.monotonic()
        before = self._state.progress.sent

        def on_sent(sent: int) -> None:
            self._display.update(SENT, sent, len(self._flights))
            self.sent = Rate(sent - before, time.monotonic() - started)

        await send_flights(addr, FLIGHTS_TOPIC, self._flights, self._state, self._stop, on_sent)

    async def _collect(self, addr: str) -> None:
        await collect(
            addr,
            DELAYS_TOPIC,
            self.collected,
            self._result_count,
            self._stop,
            lambda: self._display.update(COLLECTED, len(self.collected), self._result_count),
        )

    # -- waiting ------------------------------------------------------------------------------------------------

    def _follow(self, query: StreamingQuery, until: Future[None], *others: Future[None]) -> None:
        """Shows the progress of the query until `until` is done. Raises the error of any future, or of the query."""
        while not until.done():
            if (error := query.exception()) is not None:
                raise error
            progress = query.lastProgress
            if progress is not None:
                total = len(self._flights)
                self._display.update(READ, min(total, messages_before(progress)), total)
            self._wait(until, *others, timeout_s=POLL_INTERVAL_S)
        until.result()

    def _wait(self, until: Future[Any], *others: Future[None], timeout_s: float | None = None) -> None:
        """Waits until `until` is done, at most `timeout_s`. Raises the error of `until` or of one of the `others`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not until.done() and (deadline is None or time.monotonic() < deadline):
            for future in others:
                if future.done():
                    future.result()
            wait([until], POLL_INTERVAL_S)
        if until.done():
            until.result()

    def _wait_for_results(self, collecting: Future[None]) -> None:
        count, deadline = -1, 0.0
        while not collecting.done():
            if len(self.collected) > count:
                count, deadline = len(self.collected), time.monotonic() + COLLECT_TIMEOUT_S
            elif time.monotonic() > deadline:
                # Not an error here: the comparison reports the missing results.
                self._stop.set()
            wait([collecting], POLL_INTERVAL_S)
        collecting.result()

    def _stop_threads(self, *futures: Future[None]) -> None:
        self._stop.set()
        wait(futures, STOP_TIMEOUT_S)
