"""Plans a stream: its first position, and the offsets up to which it can read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import NamedTuple

from gantrymq.arrow.cluster_client import BrokersAway, ClusterClient
from gantrymq.arrow.concurrent_requests import request_each
from gantrymq.arrow.name_server_client import BUSY
from gantrymq.arrow.offsets import LATEST_NUMBER, Boundary, FirstMessage, Offsets
from gantrymq.arrow.options import ReadOptions
from gantrymq.arrow.planning import CLOCK_MARGIN_MS, bounds_of, check_future, resolve
from gantrymq.arrow.pull import report_data_loss
from gantrymq.arrow.queue_continuity import QueueCheck, check_queue, last_times
from gantrymq.arrow.queues import CHECKPOINT, check_topics, complete_queues, find_queues, is_wanted, name_of
from gantrymq.arrow.stream_position import StreamPosition, StreamStart
from gantrymq.errors import BrokerError, ConfigError, GantryError, RemotingError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageQueue
from gantrymq.system.clock import now_ms

log = logging.getLogger(__name__)

#: Interval of checks whether queues without new messages have been created again, in seconds.
CHECK_INTERVAL_S = 10.0


async def initial_position(cluster: ClusterClient, options: ReadOptions) -> StreamPosition:
    """Returns the position at which a new stream starts. Raises the errors of `plan_batch`."""
    starting = options.starting_or_default(streaming=True)
    check_topics(options, {f"starting{starting.naming_option}": starting.named_topics()})
    since_ms = starting.timestamp_ms
    if since_ms is None and LATEST_NUMBER in (starting.number, *starting.by_topic.values()):
        since_ms = now_ms() - CLOCK_MARGIN_MS
    queues = await complete_queues(cluster, options, {"startingOffsets": starting.named()}, begins_stream=True)
    _check_all_named(starting, queues)
    check_future(options, starting, queues)
    brokers = await cluster.brokers() | {queue.broker_name for queue in queues}
    bounds = await bounds_of(cluster, queues)
    ends = await resolve(cluster, starting, bounds, options)
    oldest = await request_each(queues, lambda queue: cluster.retry(partial(cluster.first_message, queue), queue.topic))
    firsts = {queue: first for queue, first in zip(queues, oldest, strict=True) if first is not None}
    lasts = await last_times(cluster, options, ends)
    return StreamPosition(ends, firsts=firsts, began=StreamStart(frozenset(brokers), since_ms), lasts=lasts)


def _check_all_named(starting: Boundary, queues: Iterable[MessageQueue]) -> None:
    """Raises ConfigError if the starting offsets lack a queue, like Spark's Kafka source.

    Without this check, the stream would read the missing queue from its first message.
    """
    if not (starting.by_queue or starting.by_topic):
        return
    if unnamed := [name_of(queue) for queue in queues if starting.named_number_of(queue) is None]:
        topic = unnamed[0].partition(" ")[0]
        raise ConfigError(
            f"there is no offset of {', '.join(unnamed)} to start from: a stream needs one for each queue. -1 is "
            f'latest, -2 is earliest; in Spark, {{"{topic}": "latest"}} is one for all queues of a topic'
        )


async def latest_offsets(cluster: ClusterClient, options: ReadOptions, known: Iterable[MessageQueue] = ()) -> Offsets:
    """Returns the ends of all queues. Retries while a broker with some of the `known` queues is down.

    Raises:
        NoRouteInfo: A topic has no route.
        BrokersAway: A broker is down, after retries.
        DataLost: The topic is only on brokers whose names are not in `known`.
    """
    wanted = [queue for queue in known if is_wanted(options, queue)]
    if wanted:
        await _check_broker_names(cluster, options, wanted, await find_queues(cluster, options, wanted))
    queues = await complete_queues(cluster, options, {CHECKPOINT: wanted})
    return dict(zip(queues, await request_each(queues, cluster.max_offset), strict=True))


class Progress(NamedTuple):
    """The offsets up to which a stream can read.

    Attributes:
        starts: The starts of new queues, and of queues that were created again since the position was stored.
        ends: The ends of all queues.
        firsts: The oldest message of each queue.
        unsure: Queues whose master hasn't responded.
    """

    starts: Offsets
    ends: Offsets
    firsts: dict[MessageQueue, FirstMessage]
    unsure: set[MessageQueue]


async def advance(
    cluster: ClusterClient, options: ReadOptions, position: StreamPosition, *, check_all: bool = True
) -> Progress:
    """Returns the offsets up to which a stream at `position` can read.

    Without `check_all`, queues without new messages are not checked. If such a queue was created again with the same
    number of messages, the next messages reveal this.

    A new queue is read from its first offset. If its broker was down when the stream began, it is read from the start
    of the stream. The stream continues without a queue, which keeps its position, if
    - its broker is down or busy,
    - no NameServer has a route of its topic, or
    - the options no longer name it.

    Raises DataLost if a queue
    - ends before its position,
    - has another message before its position than the one that was read,
    - was created again, or
    - was removed before the stream had read all of it.

    With failOnDataLoss=false, the stream continues with later messages, or with the first message of the new queue.
    """
    queues = await find_queues(cluster, options, position.ends)
    if check_all:
        missing = sorted(queue for queue in position.ends.keys() - set(queues) if is_wanted(options, queue))
        has = {(queue.topic, queue.broker_name) for queue in queues}
        if missing:
            await _check_broker_names(cluster, options, position.ends, queues)
        await _warn_of_brokers_away(
            cluster, [queue for queue in missing if (queue.topic, queue.broker_name) not in has]
        )
        await _check_removed(cluster, options, position, [q for q in missing if (q.topic, q.broker_name) in has])

    silent: set[str] = set()
    ends_of = await _ends_by_broker(cluster, queues, silent)

    async def check(queue: MessageQueue) -> QueueCheck | None:
        # A broker that does not respond costs only one timeout.
        if queue.broker_name in silent:
            return None
        try:
            last = ends_of.get((queue.topic, queue.broker_name), {}).get(queue.queue_id)
            return await check_queue(cluster, options, position, queue, last, check_all)
        except BrokerError as e:
            if e.code != ResponseCode.TOPIC_NOT_EXIST and e.code not in BUSY:
                raise
            log.warning("%s keeps its position for now: %s", name_of(queue), e)
        except RemotingError as e:
            _falls_silent(queue.broker_name, e, silent)
        return None

    checks = await request_each(queues, check)
    starts, ends, firsts = Offsets(), dict(position.ends), dict(position.firsts)
    for queue, found in zip(queues, checks, strict=True):
        if found is None:
            continue
        ends[queue] = found.last
        if found.start is not None:
            starts[queue] = found.start
            firsts.pop(queue, None)
        if found.first is not None:
            firsts[queue] = found.first
    responded = {queue for queue, found in zip(queues, checks, strict=True) if found and cluster.has_master(queue)}
    return Progress(starts, ends, firsts, {queue for queue in ends if queue not in responded})


async def _ends_by_broker(
    cluster: ClusterClient, queues: Iterable[MessageQueue], silent: set[str]
) -> dict[tuple[str, str], dict[int, int]]:
    """Returns {(topic, broker): {queue id: end}}, from one request for each topic and broker.

    A request for each queue would be expensive for an idle stream, which polls every few milliseconds. The entry is
    empty if the broker refuses the request. Adds brokers that don't respond to `silent`.
    """
    of_broker: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue in queues:
        of_broker.setdefault((queue.topic, queue.broker_name), []).append(queue)
    first_queues = {key: of_one[0] for key, of_one in of_broker.items() if len(of_one) > 1}

    async def ends(queue: MessageQueue) -> dict[int, int]:
        if queue.broker_name not in silent:
            try:
                return await cluster.max_offsets_once(queue)
            except RemotingError as e:
                _falls_silent(queue.broker_name, e, silent)
        return {}

    return dict(zip(first_queues, await request_each(first_queues.values(), ends), strict=True))


def _falls_silent(broker: str, error: RemotingError, silent: set[str]) -> None:
    if broker not in silent:
        silent.add(broker)
        log.warning("the queues of broker %s keep their position for now: %s", broker, error)


async def advance_towards(
    cluster: ClusterClient, options: ReadOptions, position: StreamPosition, target: Offsets
) -> Progress:
    """Works like `advance`, for a run that ends when it has read up to `target`.

    If `advance` finds nothing to read although the target is not reached, it retries. After the retries, it raises
    BrokersAway. With failOnDataLoss=false, it logs a warning instead.
    """

    async def attempt() -> Progress:
        progress = await advance(cluster, options, position)
        if progress.starts or any(
            end > position.ends[queue] and target.get(queue, 0) > position.ends[queue]
            for queue, end in progress.ends.items()
            if queue in position.ends
        ):
            return progress
        ends = progress.ends
        behind = sorted(
            queue
            for queue, end in target.items()
            if ends.get(queue, 0) < end
            and (queue not in ends or queue in progress.unsure)
            and is_wanted(options, queue)
        )
        if not behind:
            return progress
        names = ", ".join(sorted({queue.broker_name for queue in behind}))
        first = behind[0]
        problem = (
            f"no response from the masters of {names}: {len(behind)} queues aren't read up to the end of this run, for "
            f"example {name_of(first)}, at {ends.get(first, 0)} of {target[first]}"
        )
        if options.fail_on_data_loss:
            raise BrokersAway(problem)
        log.warning("%s; the run ends here, as failOnDataLoss is false", problem)
        return progress

    return await cluster.retry(attempt, passing=(BrokersAway,))


async def _check_broker_names(
    cluster: ClusterClient, options: ReadOptions, known: Iterable[MessageQueue], queues: Iterable[MessageQueue]
) -> None:
    """Raises DataLost if a topic is on none of the brokers of `known`, and no NameServer has any of these brokers.

    Without this check, every queue would count as new, and would be read from its first message.
    """
    before, now = (
        {topic: {queue.broker_name for queue in of_topic} for topic, of_topic in groupby(sorted(each), key=_topic_of)}
        for each in ([queue for queue in known if is_wanted(options, queue)], queues)
    )
    for topic in before.keys() & now.keys():
        if not before[topic].isdisjoint(now[topic]):
            continue
        lost = await cluster.retry(partial(cluster.lost_brokers, [topic]))
        elsewhere = await cluster.brokers_elsewhere(topic)
        if before[topic].isdisjoint({*await cluster.brokers(), *lost.get(topic, ()), *elsewhere}):
            report_data_loss(
                options,
                f"topic {topic} is on {', '.join(sorted(now[topic]))}; the position of the stream has its queues on "
                f"{', '.join(sorted(before[topic]))}, and no NameServer has a broker of that name",
                "All queues would be read from their first message. If the brokers were renamed, start a new stream "
                "(in Spark with another checkpoint) at the offsets of this position",
            )


def _topic_of(queue: MessageQueue) -> str:
    return queue.topic


async def _warn_of_brokers_away(cluster: ClusterClient, missing: list[MessageQueue]) -> None:
    if missing:
        registered = await cluster.brokers()
        for broker in sorted({queue.broker_name for queue in missing}):
            count = sum(queue.broker_name == broker for queue in missing)
            what = "has no readable queue of its topic" if broker in registered else "is away"
            log.warning("broker %s %s: %d queues of this stream keep their position for now", broker, what, count)


async def _check_removed(
    cluster: ClusterClient, options: ReadOptions, position: StreamPosition, removed: list[MessageQueue]
) -> None:
    """Raises DataLost if a topic has fewer queues on a broker than before, and a removed queue has unread messages.

    The broker still has the messages of a removed queue, but no consumer receives them.
    """

    async def last_of(queue: MessageQueue) -> int:
        try:
            return await cluster.end_of_removed(queue, position.ends[queue])
        except (BrokerError, RemotingError) as e:
            log.warning("can't check whether the removed queue %s was read to its end: %s", name_of(queue), e)
            return 0

    lasts = dict(zip(removed, await request_each(removed, last_of), strict=True))
    unread = [
        f"{name_of(queue)}, at {position.ends[queue]} of {last}"
        for queue, last in lasts.items()
        if last > position.ends[queue]
    ]
    if unread:
        report_data_loss(
            options,
            f"{'; '.join(unread)}: the topic no longer has these queues, and they aren't read to their end",
            "Set its readQueueNums back (gantry admin updateTopic -r) until they are",
        )


async def commit_offsets(cluster: ClusterClient, group: str, offsets: Mapping[MessageQueue, int]) -> Offsets:
    """Commits offsets for the consumer group. Returns the committed offsets.

    Failures are only logged, because a stream continues from its own position.
    """

    async def commit(queue: MessageQueue) -> bool:
        try:
            await cluster.commit(group, queue, offsets[queue])
        except GantryError as e:
            log.warning("can't commit the offset of %s for group %s: %s", name_of(queue), group, e)
            return False
        return True

    results = await request_each(offsets, commit)
    return {queue: offset for (queue, offset), done in zip(offsets.items(), results, strict=True) if done}
