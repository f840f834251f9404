"""Divides a read into partitions of about the same number of bytes. One task reads the ranges of a partition.

Offsets give the number of messages in a range of a queue; samples give an estimate of their size (`size_estimates`).
Several tasks read a queue with many bytes, and queues with few messages share a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import ceil

from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.arrow.offsets import OffsetRange, bundle, plan_ranges, split
from gantrymq.arrow.options import ReadOptions
from gantrymq.arrow.pull import BATCH_ROWS
from gantrymq.arrow.size_estimates import estimate_sizes
from gantrymq.errors import ConfigError
from gantrymq.protocol.message import MessageQueue

#: Ranges with fewer messages are not sampled. Unless the messages are very large, a task reads them in a few hundredths
#: of a second.
SAMPLED_ROWS = 20_000

#: Estimated bytes per message, for some queues.
MessageSizes = Mapping[MessageQueue, float]


async def message_sizes(
    cluster: ClusterClient, options: ReadOptions, start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]
) -> MessageSizes:
    """Estimates the message sizes of queues that may be too large for one task. Raises the errors of a pull."""
    if options.min_partitions is not None or options.deduplicate or options.max_bytes_per_second is not None:
        return {}
    large = [part for part in plan_ranges(start, end) if part.end - part.start >= SAMPLED_ROWS]
    found = await estimate_sizes(cluster, options.pull_group, large)
    return {part.queue: max(1.0, size / (part.end - part.start)) for part, size in zip(large, found, strict=True)}


def plan_partitions(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], options: ReadOptions, sizes: MessageSizes
) -> list[list[OffsetRange]]:
    """Returns the ranges of each task."""
    ranges = plan_ranges(start, end, options.min_partitions or 1)
    most_rows = options.max_records_per_partition
    if most_rows is not None:
        ranges = [piece for part in ranges for piece in split(part, ceil((part.end - part.start) / most_rows))]
    if options.deduplicate:
        return [ranges] if ranges else []
    if options.max_bytes_per_second is not None:
        # There is one task per broker, because each task applies the limit on its own (`pull.PullRate`).
        by_broker = sorted(ranges, key=lambda part: part.queue.broker_name)
        return [list(parts) for _, parts in groupby(by_broker, key=lambda part: part.queue.broker_name)]
    if options.min_partitions is not None:
        partitions = [[part] for part in ranges]
    else:
        small, partitions = [], []
        for part in ranges:
            count = ceil(_bytes(part, sizes, 0.0) / options.max_partition_bytes)
            if count > 1:
                partitions += [[piece] for piece in split(part, count)]
            else:
                small.append(part)
        partitions += bundle(small, BATCH_ROWS if most_rows is None else min(BATCH_ROWS, most_rows))
    if options.max_partitions is None or len(partitions) <= options.max_partitions:
        return partitions
    return _balanced(sorted(part for parts in partitions for part in parts), options.max_partitions, sizes)


#: Maps each queue to the numbers of the partitions that read it, with the offset between each two of them. `[0, 50, 1]`
#: means: partition 0 reads up to offset 50 (excluded), partition 1 reads the rest.
RecordedPlan = dict[MessageQueue, list[int]]


def record_plan(partitions: Sequence[Sequence[OffsetRange]]) -> RecordedPlan:
    """Returns a plan for the checkpoint, from which `recorded_partitions` restores the partitions."""
    plan: RecordedPlan = {}
    pieces = sorted((part, number) for number, parts in enumerate(partitions) for part in parts)
    for part, number in pieces:
        of_queue = plan.setdefault(part.queue, [])
        of_queue += [part.start, number] if of_queue else [number]
    return plan


def recorded_partitions(
    plan: RecordedPlan, start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]
) -> list[list[OffsetRange]]:
    """Restores the ranges of each task from a recorded plan.

    If the end of a queue is lower than in the plan, tasks have smaller or no ranges of this queue.

    Raises ConfigError for a plan of other queues or offsets.
    """
    partitions: dict[int, list[OffsetRange]] = {}
    for queue in sorted(queue for queue, offset in end.items() if offset > start[queue]):
        of_queue = plan.get(queue, [])
        bounds = [start[queue], *of_queue[1::2]]
        if len(of_queue) % 2 == 0 or bounds != sorted(set(bounds)):
            raise ConfigError(
                f"the checkpoint's plan {of_queue} doesn't fit {queue} from offset {start[queue]} on: start "
                "with another checkpoint"
            )
        for number, first, last in zip(of_queue[::2], bounds, [*bounds[1:], end[queue]], strict=True):
            if (last := min(last, end[queue])) > first:
                partitions.setdefault(number, []).append(OffsetRange(queue, first, last))
    numbers = sorted({number for of_queue in plan.values() for number in of_queue[::2]})
    return [partitions.get(number, []) for number in numbers]


def _balanced(pieces: Sequence[OffsetRange], count: int, sizes: MessageSizes) -> list[list[OffsetRange]]:
    """Groups successive pieces into at most `count` partitions of about the same number of bytes."""
    other = sum(sizes.values()) / len(sizes) if sizes else 1.0
    weights = [_bytes(piece, sizes, other) for piece in pieces]
    unit = sum(weights) / count
    partitions: list[list[OffsetRange]] = [[] for _ in range(count)]
    before = 0.0
    for piece, weight in zip(pieces, weights, strict=True):
        partition = partitions[min(count - 1, int((before + weight / 2) / unit))]
        if partition and partition[-1].queue == piece.queue and partition[-1].end == piece.start:
            partition[-1] = partition[-1]._replace(end=piece.end)
        else:
            partition.append(piece)
        before += weight
    return [partition for partition in partitions if partition]


def _bytes(part: OffsetRange, sizes: MessageSizes, other: float) -> float:
    """The estimated bytes of a range. `other` is the size of a message in queues without samples."""
    return (part.end - part.start) * sizes.get(part.queue, other)
