"""`stream_topic` reads topics without end, as asynchronous Arrow batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.arrow.filters import PushedFilters, with_tags
from gantrymq.arrow.offsets import OffsetRange, Offsets, limit_rows, plan_ranges
from gantrymq.arrow.options import ReadOptions
from gantrymq.arrow.pull import PulledBatch, pulled_batches
from gantrymq.arrow.queue_continuity import last_times
from gantrymq.arrow.read_arguments import Boundary, NameServers, conditions_of, read_options
from gantrymq.arrow.row_filter import Condition, RowFilter
from gantrymq.arrow.rows import RowDecoder
from gantrymq.arrow.stream_planning import CHECK_INTERVAL_S, advance, commit_offsets, initial_position
from gantrymq.arrow.stream_position import StreamPosition
from gantrymq.arrow.topic_reader import row_filter
from gantrymq.errors import ClientError, ConfigError
from gantrymq.times import duration_s

log = logging.getLogger(__name__)

DEFAULT_POLL_INTERVAL_S = 0.1
#: The largest number of offsets in a round. Round by round, the queues of a backlog advance evenly. Otherwise retention
#: could remove messages of the last queue while the stream reads the others.
ROUND_ROWS = 100_000
#: A round of more than 100 queues has this many offsets per queue, because a queue costs a few requests in each round.
ROUND_ROWS_PER_QUEUE = 1_000
#: The interval of commits within a round, in seconds, as in Java (`persistConsumerOffsetInterval`).
COMMIT_INTERVAL_S = 5.0
#: The longest time for the last commit, in seconds. A broker that is down must not delay the end of the stream.
LAST_COMMIT_TIMEOUT_S = 3.0


def stream_topic(
    name_servers: NameServers,
    topic: str | Sequence[str],
    *,
    start: Boundary | None = None,
    position: Mapping[str, Any] | None = None,
    filter: str | Sequence[Condition] | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
    poll_interval: float | timedelta = DEFAULT_POLL_INTERVAL_S,
) -> TopicStream:
    """Reads the messages of one or more topics, and waits for new ones.

    Args:
        name_servers: The NameServers, as HOST:PORT. None if the option `context` supplies them.
        topic: The topic, or several of them.
        start: As for `read_topic`. Default: `latest`. If there are offsets, a stream needs an offset for each queue.
        position: `TopicStream.position` of an earlier stream, to continue after it. It overrides `start`.
        filter: As for `read_topic`.
        columns: As for `read_topic`.
        options: Further options, with the names and values of the Spark source. With `consumerGroup`, the stream
            commits its offsets for this group every few seconds and at its end, so that brokers show its lag. A batch
            counts as consumed when the next one is requested, or when the context ends without an error.
        poll_interval: The pause between two requests for new messages, in seconds or as a timedelta. Default: 0.1.

    Returns:
        The stream. Use it in `async with`, and iterate over it.

    Raises:
        ConfigError: An argument or option is invalid.

    Example:
        ```python
        async with stream_topic("127.0.0.1:9876", "orders", start="earliest") as stream:
            async for batch in stream:
                ...  # process the batch, then store stream.position
        ```
    """
    sql92, conditions = conditions_of(filter)
    parsed = read_options(name_servers, topic, start, None, sql92, options, streaming=True)
    rows = row_filter(parsed, conditions, columns)
    # The queues of a stream change, so only conditions on tags are pushed down, and each row is checked.
    pushed = PushedFilters()
    for condition in conditions:
        pushed.push(*condition)
    if position is not None and not isinstance(position, Mapping):
        raise ConfigError(f"position: a dictionary was expected, as TopicStream.position is, not {position!r:.200}")
    known = None if position is None else StreamPosition.from_json(dict(position))
    return TopicStream(
        with_tags(parsed, pushed.tags), rows, known, duration_s("poll_interval", poll_interval, ConfigError)
    )


class TopicStream:
    """An asynchronous iterator over the batches of a stream. No batch is empty.

    The iterator raises the errors of `read_topic`. An error ends the stream. A cancellation of `anext`, for example by
    a timeout, also ends it. To continue, create another stream with `position`.
    """

    def __init__(
        self, options: ReadOptions, rows: RowFilter, position: StreamPosition | None, poll_interval_s: float
    ) -> None:
        self._options = options
        self._rows = rows
        self._position = position
        self._poll_interval_s = poll_interval_s
        self._cluster: ClusterClient | None = None
        self._batches: AsyncGenerator[pa.RecordBatch, None] | None = None
        #: The ends of returned batches that are not committed yet.
        self._uncommitted: Offsets = {}

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches."""
        return self._rows.schema

    @property
    def position(self) -> dict[str, Any] | None:
        """The position after the last returned batch, as JSON. It is None before a new stream has requested its start.

        If the bodies of one pull are returned in several batches, the position advances after the last of these
        batches.
        """
        return None if self._position is None else self._position.to_json()

    async def __aenter__(self) -> Self:
        options = self._options
        self._cluster = ClusterClient(
            options.name_servers, options.retry_timeout_ms, options.security, from_slaves=options.from_slaves
        )
        self._batches = self._read(self._cluster)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._cluster is not None
        assert self._batches is not None
        try:
            await self._batches.aclose()
            if error is None:
                await self._commit_last(self._cluster)
        finally:
            await self._cluster.__aexit__(kind, error, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        if self._batches is None:
            raise ConfigError("use the stream in 'async with'")
        try:
            return await anext(self._batches)
        except StopAsyncIteration:
            # Otherwise `async for` would end without an error, although a stream has no end.
            raise ClientError(
                "the stream has ended after an error, a cancellation or its context: create another with its position"
            ) from None

    async def _read(self, cluster: ClusterClient) -> AsyncGenerator[pa.RecordBatch, None]:
        options, loop = self._options, asyncio.get_running_loop()
        if self._position is None:
            self._position = await initial_position(cluster, options)
        check_at = loop.time()
        commit_at = loop.time() + COMMIT_INTERVAL_S
        while True:
            check_all = loop.time() >= check_at
            progress = await advance(cluster, options, self._position, check_all=check_all)
            if check_all:
                check_at = loop.time() + CHECK_INTERVAL_S
            known = self._position
            # With failOnDataLoss=false, a queue that lost its last messages in a crash continues at its new end.
            starts = {queue: min(end, progress.ends[queue]) for queue, end in known.ends.items()} | progress.starts
            # All other times belong to messages that the queue no longer has.
            lasts = {queue: time_ms for queue, time_ms in known.lasts.items() if starts[queue] == known.ends[queue]}
            self._position = replace(known, ends=starts, starts={}, firsts=progress.firsts, lasts=lasts, plan=None)
            most = max(ROUND_ROWS, ROUND_ROWS_PER_QUEUE * len(progress.ends))
            ranges = plan_ranges(starts, limit_rows(starts, progress.ends, most))
            if not ranges:
                await asyncio.sleep(self._poll_interval_s)
                continue
            async with aclosing(self._read_ranges(cluster, ranges)) as batches:
                async for batch in batches:
                    yield batch
                    if loop.time() >= commit_at:
                        await self._commit(cluster)
                        commit_at = loop.time() + COMMIT_INTERVAL_S
            moved = {part.queue: self._position.ends[part.queue] for part in ranges}
            times = await last_times(cluster, options, moved)
            self._position = replace(self._position, lasts=self._position.lasts | times)
            await self._commit(cluster)
            commit_at = loop.time() + COMMIT_INTERVAL_S

    async def _commit(self, cluster: ClusterClient) -> None:
        group = self._options.consumer_group
        if group is not None:
            await commit_offsets(cluster, group, self._uncommitted)
        # Also after a failure, which is logged, because a commit for a removed queue would fail each time.
        self._uncommitted = {}

    async def _commit_last(self, cluster: ClusterClient) -> None:
        try:
            async with asyncio.timeout(LAST_COMMIT_TIMEOUT_S):
                await self._commit(cluster)
        except TimeoutError:
            log.warning("the last offsets of the stream aren't committed: no response in %g s", LAST_COMMIT_TIMEOUT_S)

    async def _read_ranges(
        self, cluster: ClusterClient, ranges: Sequence[OffsetRange]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        decoder = RowDecoder(self._options, self._rows.decoded)
        async with aclosing(pulled_batches(cluster, ranges, self._options)) as pulls:
            async for pulled in pulls:
                pieces = self._rows.apply(decoder.decode(pulled))
                # In a thread, because a large batch can take some hundredths of a second.
                piece = await asyncio.to_thread(next, pieces, None)
                while piece is not None:
                    following = await asyncio.to_thread(next, pieces, None)
                    if following is None:
                        self._advance(pulled)
                    yield piece
                    piece = following
                # Even if no row of the batch was selected.
                self._advance(pulled)

    def _advance(self, pulled: PulledBatch) -> None:
        position = self._position
        assert position is not None
        lasts = {queue: time_ms for queue, time_ms in position.lasts.items() if queue != pulled.queue}
        self._position = replace(position, ends=position.ends | {pulled.queue: pulled.end}, lasts=lasts)
        self._uncommitted[pulled.queue] = pulled.end
