"""Checks whether a queue still has the messages that a stream has read from it.

A queue can lose its last messages in a crash. If a topic is deleted and created again, a new queue has the same name.
To detect both, the checkpoint contains the store times of the queue's oldest message and of the last message read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.arrow.concurrent_requests import request_each
from gantrymq.arrow.offsets import EARLIEST_NUMBER, LATEST_NUMBER, FirstMessage, Offsets
from gantrymq.arrow.options import ReadOptions
from gantrymq.arrow.planning import bounds_of
from gantrymq.arrow.pull import report_data_loss
from gantrymq.arrow.queues import find_queues, name_of
from gantrymq.arrow.stream_position import StreamPosition
from gantrymq.errors import BrokerError, RemotingError
from gantrymq.protocol.message import MessageQueue

log = logging.getLogger(__name__)


async def last_times(cluster: ClusterClient, options: ReadOptions, ends: Offsets) -> Offsets:
    """Returns the store time of the message before each end, in ms. It omits queues without such a message."""

    async def store_time(queue: MessageQueue) -> int | None:
        try:
            return await cluster.store_time(queue, ends[queue] - 1, options.pull_group)
        except (BrokerError, RemotingError) as e:
            log.warning("can't read the message before offset %d of %s: %s", ends[queue], name_of(queue), e)
            return None

    queues = [queue for queue, end in ends.items() if end > 0]
    times = await request_each(queues, store_time)
    return {queue: time_ms for queue, time_ms in zip(queues, times, strict=True) if time_ms is not None}


class QueueCheck(NamedTuple):
    """The state of a queue.

    Attributes:
        last: The end of the queue.
        start: The offset to read from; None for the position of the stream.
        first: The oldest message, if it was requested.
    """

    last: int
    start: int | None = None
    first: FirstMessage | None = None


async def check_queue(
    cluster: ClusterClient,
    options: ReadOptions,
    position: StreamPosition,
    queue: MessageQueue,
    last: int | None,
    check_all: bool,
) -> QueueCheck:
    """Compares a queue with the position of the stream.

    Args:
        cluster: The client of the cluster.
        options: The options of the read.
        position: The position of the stream.
        queue: The queue to check.
        last: The end of the queue; None to request it.
        check_all: If true, also checks a queue without new messages.

    Raises:
        DataLost: Messages were lost, or the queue was created again. With failOnDataLoss=false, it logs a warning.
    """
    if last is None:
        last = await cluster.max_offset_once(queue)
    known = position.ends.get(queue)
    if known is None:
        start = await _start_of_new(cluster, options, position, queue)
        log.info("new queue %s: reading from offset %d", name_of(queue), start)
        return QueueCheck(max(start, last), start, await cluster.first_message(queue))
    if last == known and not (check_all and (queue in position.firsts or queue in position.lasts)):
        return QueueCheck(last)
    if not cluster.has_master(queue):
        # A lower end is no data loss: a slave may lag behind.
        return QueueCheck(max(last, known))
    kept_ms = position.lasts.get(queue)
    has_lost = last < known
    if kept_ms is not None and not has_lost:
        found_ms = await cluster.store_time(queue, known - 1, options.pull_group)
        if found_ms == kept_ms:
            return QueueCheck(last)
        # A missing message is no data loss, because retention may have removed it.
        has_lost = found_ms is not None
    first, kept = await cluster.first_message(queue), position.firsts.get(queue)
    if _is_another(kept, first):
        report_data_loss(options, f"{name_of(queue)} {_CREATED_AGAIN}")
    elif not has_lost:
        return QueueCheck(last, first=first)
    else:
        report_data_loss(options, _lost_end(queue, known, last))
        if kept_ms is not None:
            return QueueCheck(last, min(last, await cluster.search_offset(queue, kept_ms + 1)), first)
        if kept is not None and first is not None:
            # The same queue, without the last messages before a crash.
            return QueueCheck(last, first=first)
    return QueueCheck(last, last if first is None else first.offset, first)


_CREATED_AGAIN = "is another queue than the one that was read: its topic was deleted and created again"


def _lost_end(queue: MessageQueue, known: int, last: int) -> str:
    what = f"its broker has only {last}" if last < known else "its broker has another message before that by now"
    return f"{name_of(queue)} was read up to offset {known}, but {what}"


def _is_another(kept: FirstMessage | None, found: FirstMessage | None) -> bool:
    return kept is not None and found is not None and kept.is_of_another_queue(found)


async def _start_of_new(
    cluster: ClusterClient, options: ReadOptions, position: StreamPosition, queue: MessageQueue
) -> int:
    starting = options.starting_or_default(streaming=True)
    began, time_ms = position.began, starting.time_of(queue)
    if began is None or queue.broker_name in began.brokers:
        return await cluster.min_offset(queue)
    # The queue's broker was down when the stream began.
    number = starting.named_number_of(queue)
    if time_ms is None and number in (None, LATEST_NUMBER):
        time_ms = began.since_ms
    (bounds,) = (await bounds_of(cluster, [queue])).values()
    if time_ms is not None:
        offset = await cluster.search_offset(queue, time_ms)
    else:
        offset = bounds.first if number in (None, EARLIEST_NUMBER) else number
    return min(max(offset, bounds.first), bounds.last)


async def ends_left(
    cluster: ClusterClient, options: ReadOptions, position: StreamPosition, read: Collection[MessageQueue]
) -> Offsets:
    """Returns the ends of the queues in `read` that no longer have all messages up to `position`.

    `position` is from a checkpoint. The end is 0 for a queue that was created again. Queues of brokers that are down
    are omitted: a task that reads such a queue raises the error.

    Raises:
        DataLost: Messages were lost. With failOnDataLoss=false, it logs a warning.
        BrokerError, RemotingError: A request failed. Without its response, rows of another queue might be read.
    """

    async def end_left(queue: MessageQueue) -> int | None:
        end, kept_ms = position.ends[queue], position.lasts.get(queue)
        found_ms = None if kept_ms is None else await cluster.store_time(queue, end - 1, options.pull_group)
        if kept_ms is not None and found_ms == kept_ms:
            return None
        kept = position.firsts.get(queue)
        if kept is not None and _is_another(kept, await cluster.first_message(queue)):
            report_data_loss(options, f"{name_of(queue)} {_CREATED_AGAIN}")
            return 0
        if kept_ms is None:
            return None
        last = await cluster.max_offset_once(queue)
        # A slave may lag behind.
        if found_ms is None and (last >= end or not cluster.has_master(queue)):
            return None
        report_data_loss(options, _lost_end(queue, end, last))
        return min(end, last, await cluster.search_offset(queue, kept_ms + 1))

    queues = [queue for queue in await find_queues(cluster, options, position.ends) if queue in read]
    found = await request_each(queues, lambda queue: cluster.retry(partial(end_left, queue), queue.topic))
    return {queue: end for queue, end in zip(queues, found, strict=True) if end is not None}
