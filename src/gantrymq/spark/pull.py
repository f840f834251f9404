"""Ranges of queues, pulled on an event loop in another thread: one batch ahead of the thread that decodes.

Offsets of a queue are dense, so where the next pulls begin is known before the first is answered: several are under way
at once (Apache's brokers answer with 32 messages at most), and their answers are taken in order.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from gantrymq.client.broker_api import PullResult, PullStatus
from gantrymq.errors import ClientError, DataLost
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.record import FIXED_SIZE_V4, unpacker
from gantrymq.spark.cluster import Cluster
from gantrymq.spark.connections import connected
from gantrymq.spark.memory import settle_worker
from gantrymq.spark.offsets import OffsetRange
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.pull_rate import PullRate

log = peer_log(__name__)

#: Spark takes Arrow batches of about so many rows best. On one machine 4 MiB were better than 2 (by 8 % for bodies of
#: 1 KiB) and 8; a pull that is a batch is not copied together with others.
BATCH_ROWS = 10_000
BATCH_BYTES = 4 * 1024 * 1024
PULL_BYTES = 4 * 1024 * 1024
#: Answers that are awaited at once hold about so many bytes, as far as the last answer's size tells.
WINDOW_BYTES = 8 * 1024 * 1024
MAX_PULLS = 16
#: After so many full answers a pull asks for more again: what a broker reads from disk comes in smaller pieces.
GROW_AFTER = 256
#: Between two looks at a queue that should have messages and says it hasn't.
PAUSE_S = 0.1


_size_and_offset = unpacker("size", "queue_offset")


class PulledBatch(NamedTuple):
    """Records back to back: what `queue` has from offset `start` to `end` (excluded)."""

    queue: MessageQueue
    start: int
    end: int
    buffer: bytes


def data_lost(
    options: ReadOptions, what: str, why: str = "Messages were removed by retention, or a broker lost them"
) -> None:
    """Raises DataLost, or warns where the options say so."""
    if options.fail_on_data_loss:
        raise DataLost(f'{what}. {why}; option("failOnDataLoss", "false") reads what is there')
    log.warning("%s; going on, as failOnDataLoss is false", what)


def pull_batches(ranges: Sequence[OffsetRange], options: ReadOptions) -> Iterator[PulledBatch]:
    """All of `ranges`, in order. Raises DataLost, BrokerError or a RemotingError."""
    settle_worker()
    with connected(options) as brokers:
        batches = _batches(brokers.cluster, ranges, options)

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
            # What goes on can't be closed: asking for that would raise an error in place of the one that ends the read.
            if brokers.cancel():
                brokers.submit(end()).result()


async def _batches(
    cluster: Cluster, ranges: Sequence[OffsetRange], options: ReadOptions
) -> AsyncGenerator[PulledBatch, None]:
    """Pieces of one queue put together until they make a good batch."""
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
    cluster: Cluster, ranges: Sequence[OffsetRange], options: ReadOptions
) -> AsyncGenerator[PulledBatch, None]:
    """What one pull after the other brought; together they are `ranges`."""
    todo = deque(ranges)
    under_way: deque[tuple[OffsetRange, asyncio.Task[PullResult]]] = deque()
    pace = Pace()
    rate = None if options.max_bytes_per_second is None else PullRate(options.max_bytes_per_second)
    pull_bytes = PULL_BYTES if rate is None else min(PULL_BYTES, rate.pull_bytes)
    patience = _Patience(options.retry_timeout_ms / 1000)

    def begin(part: OffsetRange) -> tuple[OffsetRange, asyncio.Task[PullResult]]:
        wanted = part.end - part.start
        pull = cluster.pull(part.queue, part.start, wanted, pull_bytes, options.pull_group, options.filter_expression)
        return part, asyncio.create_task(pull)

    try:
        while todo or under_way:
            while todo and len(under_way) < (pace.pulls if rate is None else 1):
                part = todo.popleft()
                if rate is not None:
                    await asyncio.sleep(rate.pause_s(part.queue.broker_name, time.monotonic()))
                cut = min(part.end, part.start + pace.rows)
                if cut < part.end:
                    todo.appendleft(part._replace(start=cut))
                under_way.append(begin(part._replace(end=cut)))
            part, task = under_way.popleft()
            result = await task
            if rate is not None:
                rate.took(part.queue.broker_name, len(result.body), time.monotonic())
            end = _end_of(result, part, options, patience)
            if result.status is PullStatus.FOUND:
                pace.learn(part.end - part.start, end - part.start, len(result.body))
            if end > part.start:
                patience.reset()
                # A broker that filters may have looked behind the end.
                body = result.body if result.next_begin_offset <= end else _before(result.body, end)
                yield PulledBatch(part.queue, part.start, end, body)
            else:
                await asyncio.sleep(PAUSE_S)
            # What a short answer left comes before all that is under way.
            if end < part.end:
                left = part._replace(start=end)
                if under_way:
                    under_way.appendleft(begin(left))
                else:
                    todo.appendleft(left)
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)


def _end_of(result: PullResult, part: OffsetRange, options: ReadOptions, patience: _Patience) -> int:
    """How far into `part` the answer reaches. Raises DataLost or ClientError."""
    start, following = part.start, result.next_begin_offset
    if result.status is PullStatus.FOUND:
        if following <= start:
            raise ClientError(f"{part}: the broker sends on from {start} to {following}")
    elif result.status is PullStatus.NO_MATCHED_MESSAGE and following > start:
        # What a filter leaves out is no loss.
        if not options.is_filtered or result.min_offset > start or result.is_removed:
            data_lost(options, f"{part}: the broker has no messages from {start} to {following}")
    elif result.min_offset > start:
        data_lost(options, f"{part}: the first offset that is left is {result.min_offset}, not {start}")
        following = result.min_offset
    elif patience.is_over(time.monotonic()):
        data_lost(options, f"{part}: the broker has nothing from {start} on, its last offset is {result.max_offset}")
        following = part.end
    else:
        # There were messages here when the read was planned: the broker has started again, or a slave answers for it.
        following = start
    return min(following, part.end)


def _before(records: bytes, end: int) -> bytes:
    """The records with queue offsets less than `end`; what is no record is left for decoding to complain about."""
    pos = 0
    while pos <= len(records) - FIXED_SIZE_V4:
        size, offset = _size_and_offset(records, pos)
        if offset >= end:
            return records[:pos]
        if size < FIXED_SIZE_V4:
            break
        pos += size
    return records


class Pace:
    """How many offsets the next pull asks for, and how many pulls are under way at once."""

    def __init__(self) -> None:
        self.rows = BATCH_ROWS
        self.pulls = 1
        self._full = 0

    def learn(self, asked: int, covered: int, size: int) -> None:
        """An answer of `size` bytes took care of `covered` of the `asked` offsets."""
        self.pulls = max(2, min(MAX_PULLS, WINDOW_BYTES // max(1, size)))
        if covered < asked:
            self.rows = covered
            self._full = 0
        elif asked == self.rows:
            self._full += 1
            if self._full == GROW_AFTER:
                self.rows = min(BATCH_ROWS, 2 * self.rows)
                self._full = 0


class _Patience:
    """Says when a wait has lasted long enough."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since: float | None = None

    def is_over(self, now: float) -> bool:
        if self._since is None:
            self._since = now
        return now - self._since >= self._timeout_s

    def reset(self) -> None:
        self._since = None
