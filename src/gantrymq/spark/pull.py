"""A range of a queue, pulled on an event loop in a thread of its own: one batch ahead of the thread that decodes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator
from typing import NamedTuple

from gantrymq.client.broker_api import PullResult, PullStatus
from gantrymq.errors import ClientError, DataLost
from gantrymq.spark.cluster import Cluster, LoopThread
from gantrymq.spark.offsets import OffsetRange
from gantrymq.spark.options import ReadOptions

log = logging.getLogger(__name__)

#: Spark takes Arrow batches of about so many rows best; one pull may bring fewer (Java's brokers: 32).
BATCH_ROWS = 10_000
BATCH_BYTES = 8 * 1024 * 1024
PULL_BYTES = 4 * 1024 * 1024
#: Between two looks at a queue that should have messages and says it hasn't.
PAUSE_S = 0.1


class PulledBatch(NamedTuple):
    """Records back to back: what the queue has from offset `start` to `end` (excluded)."""

    start: int
    end: int
    buffer: bytes


def data_lost(options: ReadOptions, what: str) -> None:
    """Raises DataLost, or warns where the options say so."""
    if options.fail_on_data_loss:
        raise DataLost(
            f"{what}. Messages were removed by retention, or a broker lost them; "
            'option("failOnDataLoss", "false") reads what is there'
        )
    log.warning("%s; going on, as failOnDataLoss is false", what)


def pull_batches(wanted: OffsetRange, options: ReadOptions) -> Iterator[PulledBatch]:
    """All of `wanted`, in order. Raises DataLost, BrokerError or a RemotingError."""
    batches = _batches(wanted, options)

    async def following() -> PulledBatch | None:
        return await anext(batches, None)

    with LoopThread(f"pull {wanted}") as loop:
        ahead = loop.submit(following())
        while (batch := ahead.result()) is not None:
            ahead = loop.submit(following())
            yield batch


async def _batches(wanted: OffsetRange, options: ReadOptions) -> AsyncGenerator[PulledBatch, None]:
    async with Cluster(options.name_servers, options.retry_timeout_ms) as cluster:
        start = wanted.start
        while start < wanted.end:
            batch = await _batch(cluster, wanted._replace(start=start), options)
            start = batch.end
            if batch.buffer:
                yield batch


async def _batch(cluster: Cluster, wanted: OffsetRange, options: ReadOptions) -> PulledBatch:
    """The first of `wanted`: as many pulls as make a good batch."""
    bodies: list[bytes] = []
    offset, size = wanted.start, 0
    patience = _Patience(options.retry_timeout_ms / 1000)
    while offset < wanted.end and offset - wanted.start < BATCH_ROWS and size < BATCH_BYTES:
        most = min(wanted.end, wanted.start + BATCH_ROWS) - offset
        result = await cluster.pull(wanted.queue, offset, most, PULL_BYTES, options.pull_group, options.tags)
        following = result.next_begin_offset
        if result.status is PullStatus.FOUND:
            if following <= offset:
                raise ClientError(f"{wanted}: the broker sends on from {offset} to {following}")
            bodies.append(result.body)
            size += len(result.body)
        elif result.status is PullStatus.NO_MATCHED_MESSAGE and following > offset:
            if options.tags is None or result.min_offset > offset:
                data_lost(options, f"{wanted}: the broker has no messages from {offset} to {following}")
        else:
            following = _missing(result, offset, wanted, options, patience)
            await asyncio.sleep(PAUSE_S if following == offset else 0)
        offset = following
    return PulledBatch(wanted.start, min(offset, wanted.end), bodies[0] if len(bodies) == 1 else b"".join(bodies))


class _Patience:
    """Says when a wait has lasted long enough."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since: float | None = None

    def is_over(self, now: float) -> bool:
        if self._since is None:
            self._since = now
        return now - self._since >= self._timeout_s


def _missing(result: PullResult, offset: int, wanted: OffsetRange, options: ReadOptions, patience: _Patience) -> int:
    """Where to go on when the broker hasn't got `offset`."""
    if result.min_offset > offset:
        data_lost(options, f"{wanted}: the first offset that is left is {result.min_offset}, not {offset}")
        return min(result.min_offset, wanted.end)
    # There were messages here when the read was planned: the broker has started again, or a slave answers for it.
    if patience.is_over(time.monotonic()):
        data_lost(options, f"{wanted}: the broker has nothing from {offset} on, its last offset is {result.max_offset}")
        return wanted.end
    return offset
