"""Pulls the ranges of a task, on an event loop in another thread, one batch ahead of the thread that decodes.

The offsets of a queue have no gaps, so the next pulls can begin before the first response. Several pulls are in
flight, because brokers of Apache send at most 32 messages per response. The responses are processed in order.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.arrow.connection_pool import task_connections
from gantrymq.arrow.freed_memory import reuse_freed_memory
from gantrymq.arrow.offsets import OffsetRange
from gantrymq.arrow.options import ReadOptions
from gantrymq.client.broker_api import PullResult, PullStatus
from gantrymq.errors import ClientError, DataLost
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.record import FIXED_SIZE_V4, unpacker

log = peer_log(__name__)

#: The size of Arrow batches that Spark reads fastest. On one machine, 4 MiB was faster than 8 MiB, and faster than
#: 2 MiB by 8 % for bodies of 1 KiB. If one pull fills a batch, its bytes are not copied.
BATCH_ROWS = 10_000
BATCH_BYTES = 4 * 1024 * 1024
PULL_BYTES = 4 * 1024 * 1024
#: The limit of the bytes in flight, which are estimated from the last response.
WINDOW_BYTES = 8 * 1024 * 1024
MAX_PULLS = 16
#: After this many full responses, pulls request more again. A broker sends less per response if it reads from disk.
GROW_AFTER = 256
#: The pause before the next pull, in seconds, if a queue lacks messages that it had when the read was planned.
PAUSE_S = 0.1
#: With maxBytesPerSecondPerBroker, a pull requests the bytes of this time, in seconds. The time is short, so that the
#: load of the broker is even.
RATED_PULL_S = 0.05
LEAST_PULL_BYTES = 16 * 1024

_size_and_offset = unpacker("size", "queue_offset")


class PulledBatch(NamedTuple):
    """The records of `queue` from offset `start` to `end` (excluded), concatenated in `buffer`."""

    queue: MessageQueue
    start: int
    end: int
    buffer: bytes


def report_data_loss(
    options: ReadOptions, what: str, why: str = "Messages were removed by retention, or a broker lost them"
) -> None:
    """Raises DataLost or, with failOnDataLoss=false, logs a warning."""
    if options.fail_on_data_loss:
        raise DataLost(f"{what}. {why}; to read the other messages, set the option failOnDataLoss=false")
    log.warning("%s; going on, as failOnDataLoss is false", what)


def pull_batches(ranges: Sequence[OffsetRange], options: ReadOptions) -> Iterator[PulledBatch]:
    """Yields the records of all `ranges`, in order. Raises DataLost, BrokerError or a RemotingError."""
    reuse_freed_memory()
    with task_connections(options) as brokers:
        batches = pulled_batches(brokers.cluster, ranges, options)

        async def following() -> PulledBatch | None:
            return await anext(batches, None)

        async def end() -> None:
            await batches.aclose()

        try:
            ahead = brokers.submit(following())
            while (batch := ahead.result()) is not None:
                ahead = brokers.submit(following())
                yield batch
        finally:
            # `aclose` of a running generator raises an error, which would replace the error that ends the read.
            if brokers.cancel():
                brokers.submit(end()).result()


async def pulled_batches(
    cluster: ClusterClient, ranges: Sequence[OffsetRange], options: ReadOptions
) -> AsyncGenerator[PulledBatch, None]:
    """Yields the records of all `ranges`, in order. Successive pieces of a queue are joined into batches.

    Raises DataLost, BrokerError or a RemotingError.
    """
    batch: list[PulledBatch] = []
    size = 0
    async with aclosing(_pieces(cluster, ranges, options)) as pieces:
        async for piece in pieces:
            if batch and (
                piece.queue != batch[0].queue
                or piece.start != batch[-1].end
                or piece.end - batch[0].start > BATCH_ROWS
                or size + len(piece.buffer) > BATCH_BYTES
            ):
                yield _joined(batch)
                batch, size = [], 0
            batch.append(piece)
            size += len(piece.buffer)
        if batch:
            yield _joined(batch)


def _joined(pieces: list[PulledBatch]) -> PulledBatch:
    return pieces[0]._replace(end=pieces[-1].end, buffer=b"".join(piece.buffer for piece in pieces))


async def _pieces(
    cluster: ClusterClient, ranges: Sequence[OffsetRange], options: ReadOptions
) -> AsyncGenerator[PulledBatch, None]:
    """Yields the responses to the pulls, in order. Together they cover `ranges`."""
    todo = deque(ranges)
    in_flight: deque[tuple[OffsetRange, asyncio.Task[PullResult]]] = deque()
    window = PullWindow()
    rate = None if options.max_bytes_per_second is None else PullRate(options.max_bytes_per_second)
    pull_bytes = PULL_BYTES if rate is None else min(PULL_BYTES, rate.pull_bytes)
    timer = _EmptyTimer(options.retry_timeout_ms / 1000)

    def begin(part: OffsetRange) -> tuple[OffsetRange, asyncio.Task[PullResult]]:
        wanted = part.end - part.start
        pull = cluster.pull(part.queue, part.start, wanted, pull_bytes, options.pull_group, options.filter_expression)
        return part, asyncio.create_task(pull)

    try:
        while todo or in_flight:
            while todo and len(in_flight) < (window.pulls if rate is None else 1):
                part = todo.popleft()
                if rate is not None:
                    await asyncio.sleep(rate.pause_s(part.queue.broker_name, time.monotonic()))
                cut = min(part.end, part.start + window.rows)
                if cut < part.end:
                    todo.appendleft(part._replace(start=cut))
                in_flight.append(begin(part._replace(end=cut)))
            part, task = in_flight.popleft()
            result = await task
            if rate is not None:
                rate.add(part.queue.broker_name, len(result.body), time.monotonic())
            end = _end_of(result, part, options, timer)
            if result.status is PullStatus.FOUND:
                window.update(part.end - part.start, end - part.start, len(result.body))
            if end > part.start:
                timer.reset()
                # A broker that filters messages may have read beyond the end.
                body = result.body if result.next_begin_offset <= end else _before(result.body, end)
                yield PulledBatch(part.queue, part.start, end, body)
            else:
                await asyncio.sleep(PAUSE_S)
            # A response was shorter than requested. The rest is pulled first, to keep the order.
            if end < part.end:
                left = part._replace(start=end)
                if in_flight:
                    in_flight.appendleft(begin(left))
                else:
                    todo.appendleft(left)
    finally:
        for _, task in in_flight:
            task.cancel()
        await asyncio.gather(*(task for _, task in in_flight), return_exceptions=True)


def _end_of(result: PullResult, part: OffsetRange, options: ReadOptions, timer: _EmptyTimer) -> int:
    """The offset up to which the response covers `part`. Raises DataLost or ClientError."""
    start, following = part.start, result.next_begin_offset
    if result.status is PullStatus.FOUND:
        if following <= start:
            raise ClientError(f"{part}: the broker sends on from {start} to {following}")
    elif result.status is PullStatus.NO_MATCHED_MESSAGE and following > start:
        # Messages that a filter excludes, or that a compaction has removed, are not lost.
        if not options.compacted and (not options.is_filtered or result.min_offset > start or result.is_removed):
            report_data_loss(options, f"{part}: the broker has no messages from {start} to {following}")
    elif result.min_offset > start:
        if not options.compacted:
            report_data_loss(options, f"{part}: the first offset that is left is {result.min_offset}, not {start}")
        following = result.min_offset
    elif timer.is_over(time.monotonic()):
        report_data_loss(
            options, f"{part}: the broker has nothing from {start} on, its last offset is {result.max_offset}"
        )
        following = part.end
    else:
        # The queue had messages when the read was planned. Either the broker has restarted since then, or a slave
        # responds.
        following = start
    return min(following, part.end)


def _before(records: bytes, end: int) -> bytes:
    """The records with queue offsets below `end`. Invalid records are kept, because the decoder reports them."""
    pos = 0
    while pos <= len(records) - FIXED_SIZE_V4:
        size, offset = _size_and_offset(records, pos)
        if offset >= end:
            return records[:pos]
        if size < FIXED_SIZE_V4:
            break
        pos += size
    return records


class PullRate:
    """Limits the bytes per second from each broker, from the second pull on. Times are in s of a monotonic clock.

    Tasks share no state. With a limit, one task therefore reads all queues of a broker (`partitions`).
    """

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        #: {broker: time of its next pull}.
        self._free_at: dict[str, float] = {}

    @property
    def pull_bytes(self) -> int:
        """The bytes that a pull requests."""
        return max(LEAST_PULL_BYTES, int(self._rate * RATED_PULL_S))

    def add(self, broker_name: str, size: int, now: float) -> None:
        """Counts the bytes of a response."""
        self._free_at[broker_name] = max(now, self._free_at.get(broker_name, now)) + size / self._rate

    def pause_s(self, broker_name: str, now: float) -> float:
        """The time until the next pull from the broker, in seconds."""
        return max(0.0, self._free_at.get(broker_name, now) - now)


class PullWindow:
    """Adapts the number of offsets that a pull requests, and the number of pulls in flight."""

    def __init__(self) -> None:
        self.rows = BATCH_ROWS
        self.pulls = 1
        self._full = 0

    def update(self, asked: int, covered: int, size: int) -> None:
        """Adapts both values to a response of `size` bytes that has `covered` of the `asked` offsets."""
        self.pulls = max(2, min(MAX_PULLS, WINDOW_BYTES // max(1, size)))
        if covered < asked:
            self.rows = covered
            self._full = 0
        elif asked == self.rows:
            self._full += 1
            if self._full == GROW_AFTER:
                self.rows = min(BATCH_ROWS, 2 * self.rows)
                self._full = 0


class _EmptyTimer:
    """Measures the time for which a queue lacks messages that it had when the read was planned."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since: float | None = None

    def is_over(self, now: float) -> bool:
        if self._since is None:
            self._since = now
        return now - self._since >= self._timeout_s

    def reset(self) -> None:
        self._since = None
