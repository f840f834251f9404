"""What the driver asks of the brokers for a stream: where it begins, and how far it can go."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import NamedTuple

from gantrymq.errors import BrokerError, ConfigError, GantryError, RemotingError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.cluster import BrokersAway, Cluster
from gantrymq.spark.name_servers import BUSY
from gantrymq.spark.of_each import of_each
from gantrymq.spark.offsets import EARLIEST_NUMBER, LATEST_NUMBER, Boundary, FirstMessage, Offsets
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.planning import CLOCK_MARGIN_MS, bounds_of, check_future, resolve
from gantrymq.spark.pull import data_lost
from gantrymq.spark.queues import CHECKPOINT, check_topics, complete_queues, find_queues, is_wanted, name_of
from gantrymq.spark.stream_place import Began, StreamPlace
from gantrymq.system.clock import now_ms

log = logging.getLogger(__name__)


async def initial_place(cluster: Cluster, options: ReadOptions) -> StreamPlace:
    """Where a new stream starts. Raises as `plan_batch` does."""
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
    oldest = await of_each(queues, lambda queue: cluster.until(partial(cluster.first_message, queue), queue.topic))
    firsts = {queue: first for queue, first in zip(queues, oldest, strict=True) if first is not None}
    lasts = await last_times(cluster, options, ends)
    return StreamPlace(ends, firsts=firsts, began=Began(frozenset(brokers), since_ms), lasts=lasts)


def _check_all_named(starting: Boundary, queues: Iterable[MessageQueue]) -> None:
    """Raises ConfigError for JSON offsets that leave out a queue, as Spark's Kafka source does.

    A stream that continues from noted offsets would otherwise read this queue from its first message.
    """
    if not (starting.by_queue or starting.by_topic):
        return
    if unnamed := [name_of(queue) for queue in queues if starting.named_number_of(queue) is None]:
        topic = unnamed[0].partition(" ")[0]
        raise ConfigError(
            f"option startingOffsets has no offset of {', '.join(unnamed)}: a stream needs one for each queue. "
            f'-1 is latest, -2 is earliest; {{"{topic}": "latest"}} is one for all queues of a topic'
        )


async def last_times(cluster: Cluster, options: ReadOptions, ends: Offsets) -> Offsets:
    """When the messages before `ends` were stored, ms, where there are any: `advance` knows the queues again by it."""

    async def ask(queue: MessageQueue) -> int | None:
        try:
            return await cluster.store_time(queue, ends[queue] - 1, options.pull_group)
        except (BrokerError, RemotingError) as e:
            log.warning("can't look at the message before offset %d of %s: %s", ends[queue], name_of(queue), e)
            return None

    queues = [queue for queue, end in ends.items() if end > 0]
    times = await of_each(queues, ask)
    return {queue: time_ms for queue, time_ms in zip(queues, times, strict=True) if time_ms is not None}


async def latest_offsets(cluster: Cluster, options: ReadOptions, known: Iterable[MessageQueue] = ()) -> Offsets:
    """The ends of all queues, every one of them; tries again while a broker is away that has some of `known`.

    Raises NoRouteInfo, BrokersAway, and DataLost if the brokers have other names.
    """
    wanted = [queue for queue in known if is_wanted(options, queue)]
    if wanted:
        await _check_broker_names(cluster, options, wanted, await find_queues(cluster, options, wanted))
    queues = await complete_queues(cluster, options, {CHECKPOINT: wanted})
    return dict(zip(queues, await of_each(queues, cluster.max_offset), strict=True))


class Progress(NamedTuple):
    """How far a stream can go: `starts` of queues that its place doesn't have, or has of another queue of that name;
    `ends` of all; `unsure` are those whose master hasn't said where they end."""

    starts: Offsets
    ends: Offsets
    firsts: dict[MessageQueue, FirstMessage]
    unsure: set[MessageQueue]


async def advance(cluster: Cluster, options: ReadOptions, place: StreamPlace, *, check_all: bool = True) -> Progress:
    """How far a stream can go that is at `place`. Without `check_all` queues that end where they ended are left alone,
    and one that was made again with as many messages isn't noticed before it has more.

    A new queue is read from its first offset, or as the stream began when its broker was away then. A queue whose
    broker doesn't answer or is busy, or whose topic no NameServer knows at the moment, stays where it is, so that the
    others go on; so do queues that the options no longer name, which may be named again. Raises DataLost when a queue
    ends before its place or has another message before it, as after a crash, when its topic was deleted and made again,
    or has the queue no more before it was read to its end. Without failOnDataLoss the stream goes on with what came
    since, or with the first message of the new topic.
    """
    queues = await find_queues(cluster, options, place.ends)
    if check_all:
        missing = sorted(queue for queue in place.ends.keys() - set(queues) if is_wanted(options, queue))
        has = {(queue.topic, queue.broker_name) for queue in queues}
        if missing:
            await _check_broker_names(cluster, options, place.ends, queues)
        await _tell_of_brokers_away(
            cluster, [queue for queue in missing if (queue.topic, queue.broker_name) not in has]
        )
        await _check_removed(cluster, options, place, [q for q in missing if (q.topic, q.broker_name) in has])

    silent: set[str] = set()
    ends_of = await _ends_by_broker(cluster, queues, silent)

    async def look(queue: MessageQueue) -> _Look | None:
        # The others needn't wait until such a broker hasn't answered for each of its queues.
        if queue.broker_name in silent:
            return None
        try:
            last = ends_of.get((queue.topic, queue.broker_name), {}).get(queue.queue_id)
            return await _look(cluster, options, place, queue, last, check_all)
        except BrokerError as e:
            if e.code != ResponseCode.TOPIC_NOT_EXIST and e.code not in BUSY:
                raise
            log.warning("%s stays where it is for now: %s", name_of(queue), e)
        except RemotingError as e:
            _falls_silent(queue.broker_name, e, silent)
        return None

    looks = await of_each(queues, look)
    starts, ends, firsts = Offsets(), dict(place.ends), dict(place.firsts)
    for queue, found in zip(queues, looks, strict=True):
        if found is None:
            continue
        ends[queue] = found.last
        if found.start is not None:
            starts[queue] = found.start
            firsts.pop(queue, None)
        if found.first is not None:
            firsts[queue] = found.first
    answered = {queue for queue, found in zip(queues, looks, strict=True) if found and cluster.has_master(queue)}
    return Progress(starts, ends, firsts, {queue for queue in ends if queue not in answered})


async def _ends_by_broker(
    cluster: Cluster, queues: Iterable[MessageQueue], silent: set[str]
) -> dict[tuple[str, str], dict[int, int]]:
    """{(topic, broker): {queue id: end}} by one request each, because an idle stream polls every few milliseconds.

    Empty for brokers that refuse the request. Adds brokers that don't respond to `silent`.
    """
    of_broker: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue in queues:
        of_broker.setdefault((queue.topic, queue.broker_name), []).append(queue)
    asked = {key: of_one[0] for key, of_one in of_broker.items() if len(of_one) > 1}

    async def ask(queue: MessageQueue) -> dict[int, int]:
        if queue.broker_name not in silent:
            try:
                return await cluster.max_offsets_once(queue)
            except RemotingError as e:
                _falls_silent(queue.broker_name, e, silent)
        return {}

    return dict(zip(asked, await of_each(asked.values(), ask), strict=True))


def _falls_silent(broker: str, error: RemotingError, silent: set[str]) -> None:
    if broker not in silent:
        silent.add(broker)
        log.warning("the queues of broker %s stay where they are for now: %s", broker, error)


async def advance_towards(cluster: Cluster, options: ReadOptions, place: StreamPlace, target: Offsets) -> Progress:
    """`advance` for a run that is to read up to `target` and end. Where that is all it can read at the moment it tries
    again rather than end halfway. Raises BrokersAway in the end, or warns with failOnDataLoss=false."""

    async def attempt() -> Progress:
        progress = await advance(cluster, options, place)
        if progress.starts or any(
            end > place.ends[queue] and target.get(queue, 0) > place.ends[queue]
            for queue, end in progress.ends.items()
            if queue in place.ends
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
            f"no answer of the masters of {names}: {len(behind)} queues aren't read up to where this run is to end, as "
            f"{name_of(first)}, at {ends.get(first, 0)} of {target[first]}"
        )
        if options.fail_on_data_loss:
            raise BrokersAway(problem)
        log.warning("%s; ending nevertheless, as failOnDataLoss is false", problem)
        return progress

    return await cluster.until(attempt, passing=(BrokersAway,))


async def _check_broker_names(
    cluster: Cluster, options: ReadOptions, known: Iterable[MessageQueue], queues: Iterable[MessageQueue]
) -> None:
    """Raises DataLost if a topic is on none of the checkpoint's brokers and no NameServer has any of these.

    Every queue would be a new one, and would be read from its first message.
    """
    before, now = (
        {topic: {queue.broker_name for queue in of_topic} for topic, of_topic in groupby(sorted(each), key=_topic_of)}
        for each in ([queue for queue in known if is_wanted(options, queue)], queues)
    )
    for topic in before.keys() & now.keys():
        if not before[topic].isdisjoint(now[topic]):
            continue
        lost = await cluster.until(partial(cluster.lost_brokers, [topic]))
        elsewhere = await cluster.brokers_elsewhere(topic)
        if before[topic].isdisjoint({*await cluster.brokers(), *lost.get(topic, ()), *elsewhere}):
            data_lost(
                options,
                f"topic {topic} is on {', '.join(sorted(now[topic]))}; the checkpoint has its queues on "
                f"{', '.join(sorted(before[topic]))}, and no NameServer knows a broker of that name",
                "All queues would be read from their first message. If the brokers were renamed, use another "
                "checkpoint, and startingOffsets with the offsets of this one",
            )


def _topic_of(queue: MessageQueue) -> str:
    return queue.topic


async def _tell_of_brokers_away(cluster: Cluster, missing: list[MessageQueue]) -> None:
    if missing:
        registered = await cluster.brokers()
        for broker in sorted({queue.broker_name for queue in missing}):
            count = sum(queue.broker_name == broker for queue in missing)
            what = "has no queue to read of its topic" if broker in registered else "is away"
            log.warning("broker %s %s: %d queues of this stream stay where they are for now", broker, what, count)


async def _check_removed(
    cluster: Cluster, options: ReadOptions, place: StreamPlace, removed: list[MessageQueue]
) -> None:
    """Raises DataLost where a topic has fewer queues on a broker than before, and those that went aren't read to their
    end: the broker keeps their messages, and nobody reads them."""

    async def last_of(queue: MessageQueue) -> int:
        try:
            return await cluster.kept_end(queue, place.ends[queue])
        except (BrokerError, RemotingError) as e:
            log.warning("can't tell whether %s was read to its end, which its topic has no more: %s", name_of(queue), e)
            return 0

    lasts = dict(zip(removed, await of_each(removed, last_of), strict=True))
    unread = [
        f"{name_of(queue)}, at {place.ends[queue]} of {last}"
        for queue, last in lasts.items()
        if last > place.ends[queue]
    ]
    if unread:
        data_lost(
            options,
            f"{'; '.join(unread)}: the topic has these queues no more, and they aren't read to their end",
            "Set its readQueueNums back (gantry admin updateTopic -r) until they are",
        )


class _Look(NamedTuple):
    """A queue's end, where it is to be read from unless from its place, and its oldest message where that was asked."""

    last: int
    start: int | None = None
    first: FirstMessage | None = None


async def _look(
    cluster: Cluster,
    options: ReadOptions,
    place: StreamPlace,
    queue: MessageQueue,
    last: int | None,
    check_all: bool,
) -> _Look:
    """`last` is the queue's end, None if unknown."""
    if last is None:
        last = await cluster.max_offset_once(queue)
    known = place.ends.get(queue)
    if known is None:
        start = await _start_of_new(cluster, options, place, queue)
        log.info("new queue %s: reading from offset %d", name_of(queue), start)
        return _Look(max(start, last), start, await cluster.first_message(queue))
    if last == known and not (check_all and (queue in place.firsts or queue in place.lasts)):
        return _Look(last)
    if not cluster.has_master(queue):
        # A slave, which may be behind.
        return _Look(max(last, known))
    kept_ms = place.lasts.get(queue)
    has_lost = last < known
    if kept_ms is not None and not has_lost:
        found_ms = await cluster.store_time(queue, known - 1, options.pull_group)
        if found_ms == kept_ms:
            return _Look(last)
        # Retention may have passed it.
        has_lost = found_ms is not None
    first, kept = await cluster.first_message(queue), place.firsts.get(queue)
    if _is_another(kept, first):
        data_lost(options, f"{name_of(queue)} {_MADE_AGAIN}")
    elif not has_lost:
        return _Look(last, first=first)
    else:
        data_lost(options, _lost_end(queue, known, last))
        if kept_ms is not None:
            return _Look(last, min(last, await cluster.search_offset(queue, kept_ms + 1)), first)
        if kept is not None and first is not None:
            # The same queue, which has lost its last messages in a crash.
            return _Look(last, first=first)
    return _Look(last, last if first is None else first.offset, first)


_MADE_AGAIN = "is another queue than the one that was read: its topic was deleted and made again"


def _lost_end(queue: MessageQueue, known: int, last: int) -> str:
    what = f"its broker has only {last}" if last < known else "its broker has another message before that by now"
    return f"{name_of(queue)} was read up to offset {known}, but {what}"


def _is_another(kept: FirstMessage | None, found: FirstMessage | None) -> bool:
    return kept is not None and found is not None and kept.is_of_another_queue(found)


async def _start_of_new(cluster: Cluster, options: ReadOptions, place: StreamPlace, queue: MessageQueue) -> int:
    starting = options.starting_or_default(streaming=True)
    began, time_ms = place.began, starting.time_of(queue)
    if began is None or queue.broker_name in began.brokers:
        return await cluster.min_offset(queue)
    # Its broker was away.
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
    cluster: Cluster, options: ReadOptions, place: StreamPlace, read: Collection[MessageQueue]
) -> Offsets:
    """How far those of the queues to be read up to `place`, which is of a checkpoint, have the messages that they had,
    where that isn't up to there: 0 for one that is another by now. Raises DataLost where the options say so, and what a
    question raises: without an answer another queue's rows might be read.

    One of a broker that isn't there isn't among them; whoever reads it says what is wrong with it.
    """

    async def look(queue: MessageQueue) -> int | None:
        end, kept_ms = place.ends[queue], place.lasts.get(queue)
        found_ms = None if kept_ms is None else await cluster.store_time(queue, end - 1, options.pull_group)
        if kept_ms is not None and found_ms == kept_ms:
            return None
        kept = place.firsts.get(queue)
        if kept is not None and _is_another(kept, await cluster.first_message(queue)):
            data_lost(options, f"{name_of(queue)} {_MADE_AGAIN}")
            return 0
        if kept_ms is None:
            return None
        last = await cluster.max_offset_once(queue)
        # A slave may be behind.
        if found_ms is None and (last >= end or not cluster.has_master(queue)):
            return None
        data_lost(options, _lost_end(queue, end, last))
        return min(end, last, await cluster.search_offset(queue, kept_ms + 1))

    queues = [queue for queue in await find_queues(cluster, options, place.ends) if queue in read]
    found = await of_each(queues, lambda queue: cluster.until(partial(look, queue), queue.topic))
    return {queue: end for queue, end in zip(queues, found, strict=True) if end is not None}


async def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[MessageQueue, int]) -> Offsets:
    """Commits for the consumer group, and says what could be. Failures are logged: the stream's own place is in its
    checkpoint."""

    async def commit(queue: MessageQueue) -> bool:
        try:
            await cluster.commit(group, queue, offsets[queue])
        except GantryError as e:
            log.warning("can't commit the offset of %s for group %s: %s", name_of(queue), group, e)
            return False
        return True

    results = await of_each(offsets, commit)
    return {queue: offset for (queue, offset), done in zip(offsets.items(), results, strict=True) if done}
