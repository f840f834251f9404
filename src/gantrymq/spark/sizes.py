"""How much of a backlog fits into maxBytesPerTrigger: sizes of ranges, estimated from samples of their messages.

A broker tells how many messages a range has, not how many bytes: the log holds all topics, and asking for the size of
each message would cost more than reading them. So a few messages are pulled at places spread evenly over what a
micro-batch would read, and the batch is cut until their sizes, multiplied, fit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice

from gantrymq.client.broker_api import PullStatus
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_TAG, SUBSCRIBE_ALL
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.cluster import Cluster
from gantrymq.spark.of_each import of_each
from gantrymq.spark.offsets import OffsetRange, Offsets, limit_rows, plan_ranges
from gantrymq.spark.pull import PULL_BYTES

#: One estimate looks at about so many places, at two for each queue at least, and at so many messages in each. It takes
#: 3 to 7 ms on one machine, and two or three are made for a micro-batch that is cut.
PLACES = 64
PLACE_MESSAGES = 4
#: Of each broker: an answer may have PULL_BYTES, and the driver holds all of them.
PULLS_AT_ONCE = 16
#: A batch is full enough when it has this part of what is allowed, and this part is aimed at.
ENOUGH, AIM = 0.75, 0.85
MOST_ESTIMATES = 10


async def limit_bytes(
    starts: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    max_bytes: int,
    estimate: Callable[[Sequence[OffsetRange]], Awaitable[float]],
    after: MessageQueue | None = None,
) -> Offsets:
    """`ends`, brought nearer to `starts` so that by `estimate` no more than `max_bytes` lie between, or one message.

    Queues share as in `limit_rows`. Every queue of `ends` must be in `starts`.
    """
    rows = total = sum(max(0, end - starts[queue]) for queue, end in ends.items())
    fits, too_many = 0, total + 1
    aim = AIM
    for _ in range(MOST_ESTIMATES):
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
        # Where sizes change along a queue the guess may lie outside of what is known by now.
        rows = guess if fits < guess < too_many else (fits + too_many) // 2
        if size > max_bytes:
            # Should that still be too much, the large messages are the first ones: towards them in longer steps.
            aim /= 2
    return limit_rows(starts, ends, max(1, fits), after)


async def estimate_sizes(cluster: Cluster, group: str, ranges: Sequence[OffsetRange]) -> list[float]:
    """About so many bytes the messages of each range take as brokers store and send them. Raises what a pull raises."""
    gaps = max(1, PLACES // max(1, len(ranges)) - 1)
    places = [_places(part, gaps) for part in ranges]
    pulled = iter(
        await of_each(chain.from_iterable(places), partial(_pulled_size, cluster, group), at_once=PULLS_AT_ONCE)
    )
    return [_size(part, list(islice(pulled, len(of_part)))) for part, of_part in zip(ranges, places, strict=True)]


def _places(part: OffsetRange, gaps: int) -> list[OffsetRange]:
    """What is looked at: places with `gaps` between them, or all of a small range."""
    count = part.end - part.start
    if count <= PLACE_MESSAGES * (gaps + 1):
        return [part]
    starts = (part.start + (count - PLACE_MESSAGES) * n // gaps for n in range(gaps + 1))
    return [OffsetRange(part.queue, start, start + PLACE_MESSAGES) for start in starts]


def _size(part: OffsetRange, sizes: list[int]) -> float:
    if len(sizes) == 1:
        return sizes[0]
    # Between two places messages are taken to be as large as half of the one and half of the other.
    mean = (sum(sizes) - (sizes[0] + sizes[-1]) / 2) / (len(sizes) - 1)
    return mean / PLACE_MESSAGES * (part.end - part.start)


async def _pulled_size(cluster: Cluster, group: str, part: OffsetRange) -> int:
    size, offset = 0, part.start
    while offset < part.end:
        pull = cluster.pull(part.queue, offset, part.end - offset, PULL_BYTES, group, (SUBSCRIBE_ALL, EXPRESSION_TAG))
        result = await pull
        if result.status is not PullStatus.FOUND or result.next_begin_offset <= offset:
            # Retention has been faster, or the broker is at fault: the task that reads this says so.
            break
        size += len(result.body)
        offset = result.next_begin_offset
    return size
