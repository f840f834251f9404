"""Estimates the bytes of ranges from samples of their messages, and applies the limit maxBytesPerTrigger.

Offsets give the number of messages in a range, but not their bytes, because a broker's log contains all topics.
Requests for the size of each message would cost more than reading them. Therefore a few messages are pulled at evenly
spaced offsets of the range. A micro-batch is reduced until the estimate is within the limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice

from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.arrow.concurrent_requests import request_each
from gantrymq.arrow.offsets import OffsetRange, Offsets, limit_rows, plan_ranges
from gantrymq.arrow.pull import PULL_BYTES
from gantrymq.client.broker_api import PullStatus
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_TAG, SUBSCRIBE_ALL
from gantrymq.protocol.message import MessageQueue

#: Number of samples of one estimate (at least two for each queue), and of messages of a sample. On one machine, an
#: estimate takes 3 to 7 ms. A micro-batch over the limit needs two or three estimates.
SAMPLES = 64
SAMPLE_MESSAGES = 4
#: The limit for each broker. A response can have PULL_BYTES, and the driver has all responses in memory.
MAX_PULLS_IN_FLIGHT = 16
#: Fractions of the limit: a batch is full enough from ENOUGH on, and the next estimate aims at AIM.
ENOUGH, AIM = 0.75, 0.85
MAX_ESTIMATES = 10


async def limit_bytes(
    starts: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    max_bytes: int,
    estimate: Callable[[Sequence[OffsetRange]], Awaitable[float]],
    after: MessageQueue | None = None,
) -> Offsets:
    """Returns ends that are reduced so that the ranges from `starts` have at most `max_bytes` by `estimate`.

    The ranges have at least one message, even if this message is larger. The rows are distributed over the queues as in
    `limit_rows`. Every queue of `ends` must be in `starts`.
    """
    rows = total = sum(max(0, end - starts[queue]) for queue, end in ends.items())
    fits, too_many = 0, total + 1
    aim = AIM
    for _ in range(MAX_ESTIMATES):
        if too_many - fits <= 1:
            break
        size = await estimate(plan_ranges(starts, limit_rows(starts, ends, rows, after)))
        if size > max_bytes:
            too_many = rows
        elif size >= ENOUGH * max_bytes or rows == total:
            return limit_rows(starts, ends, rows, after)
        else:
            fits, aim = rows, AIM
        guess = int(rows * aim * max_bytes / size) if size else total
        # If sizes change along a queue, the guess can be outside of the known bounds.
        rows = guess if fits < guess < too_many else (fits + too_many) // 2
        if size > max_bytes:
            # The large messages may be at the begin of the range, so that a smaller range is still too large. The range
            # shrinks faster with each step.
            aim /= 2
    return limit_rows(starts, ends, max(1, fits), after)


async def estimate_sizes(cluster: ClusterClient, group: str, ranges: Sequence[OffsetRange]) -> list[float]:
    """Estimates the bytes of the messages of each range, as brokers store and send them.

    Raises the errors of a pull.
    """
    gaps = max(1, SAMPLES // max(1, len(ranges)) - 1)
    samples = [_sample_ranges(part, gaps) for part in ranges]
    pulled = iter(
        await request_each(
            chain.from_iterable(samples), partial(_pulled_size, cluster, group), max_in_flight=MAX_PULLS_IN_FLIGHT
        )
    )
    return [_size(part, list(islice(pulled, len(of_part)))) for part, of_part in zip(ranges, samples, strict=True)]


def _sample_ranges(part: OffsetRange, gaps: int) -> list[OffsetRange]:
    """Returns the ranges to pull: `gaps` + 1 samples, or the whole range if it is small."""
    count = part.end - part.start
    if count <= SAMPLE_MESSAGES * (gaps + 1):
        return [part]
    starts = (part.start + (count - SAMPLE_MESSAGES) * n // gaps for n in range(gaps + 1))
    return [OffsetRange(part.queue, start, start + SAMPLE_MESSAGES) for start in starts]


def _size(part: OffsetRange, sizes: list[int]) -> float:
    if len(sizes) == 1:
        return sizes[0]
    # Trapezoidal rule: messages between two samples have the mean of their sizes.
    mean = (sum(sizes) - (sizes[0] + sizes[-1]) / 2) / (len(sizes) - 1)
    return mean / SAMPLE_MESSAGES * (part.end - part.start)


async def _pulled_size(cluster: ClusterClient, group: str, part: OffsetRange) -> int:
    size, offset = 0, part.start
    while offset < part.end:
        pull = cluster.pull(part.queue, offset, part.end - offset, PULL_BYTES, group, (SUBSCRIBE_ALL, EXPRESSION_TAG))
        result = await pull
        if result.status is not PullStatus.FOUND or result.next_begin_offset <= offset:
            # Retention has removed the messages, or the broker is faulty. The task that reads the range reports it.
            break
        size += len(result.body)
        offset = result.next_begin_offset
    return size
