"""Finds the queues of a read, and detects brokers that are down and have some of them.

A NameServer removes a broker that has died, with all its queues. A read of the other queues would silently lack rows.
A read therefore compares the route of a topic with all other sources of broker names. If a source names more brokers,
the read retries until retryTimeoutMs and then fails. With failOnDataLoss=false, it logs a warning instead.

The sources are:
- the option expectedBrokers
- the queues in the option assign, in JSON offsets and in the checkpoint
- the configuration of an order topic, and the queue mapping of a static topic
- other NameServers, and the lost brokers that GantryMQ's NameServers record
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping

from gantrymq.arrow.cluster_client import BrokersAway, ClusterClient
from gantrymq.arrow.concurrent_requests import request_each
from gantrymq.arrow.offsets import queue_key
from gantrymq.arrow.options import ReadOptions
from gantrymq.errors import ConfigError, NoRouteInfo, RouteNotReady
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic

log = logging.getLogger(__name__)

#: The source name for the queues of a running stream.
CHECKPOINT = "the checkpoint"


async def find_queues(
    cluster: ClusterClient,
    options: ReadOptions,
    known: Iterable[MessageQueue] | None = None,
    lost: Collection[str] = (),
) -> list[MessageQueue]:
    """Returns the readable queues that the options select, on brokers that are up.

    Args:
        cluster: The client of the cluster.
        options: The options of the read.
        known: The queues in the position of a stream; None for a new read.
        lost: Topics with lost brokers.

    Raises:
        NoRouteInfo: A topic has no route, after retries. Topics of `known`, of `lost` and of a pattern may lack a
            route: they are skipped with a warning and without a retry.
    """
    may_be_away = {*lost, *(queue.topic for queue in known or ())}
    if options.pattern is None:
        topics = options.topics
    else:
        wait = known is None and not lost
        topics = [topic for topic in await cluster.topics(wait=wait) if matches(options.pattern, topic)]
        may_be_away.update(topics)
        if not topics:
            log.warning("no topic matches subscribePattern %r", options.pattern)
    queues: list[MessageQueue] = []
    for topic in topics:
        try:
            queues += await cluster.read_queues(topic, wait=topic not in may_be_away)
        except NoRouteInfo as e:
            # A NameServer without any registered broker has no topics yet.
            is_unresolved = known is None and isinstance(e, RouteNotReady) and not e.brokers
            if topic not in may_be_away or is_unresolved:
                raise
            log.warning("%s; the read continues without it for now", e)
    return queues if options.assigned is None else [queue for queue in queues if queue in options.assigned]


async def complete_queues(
    cluster: ClusterClient,
    options: ReadOptions,
    named: Mapping[str, Iterable[MessageQueue]],
    *,
    begins_stream: bool = False,
) -> list[MessageQueue]:
    """Checks that all known brokers of the topics are up, then returns the queues of `find_queues`.

    A new stream starts even if brokers are down that are only in the NameServer's list of lost brokers. It logs a
    warning, and reads their messages when they are up again.

    Args:
        cluster: The client of the cluster.
        options: The options of the read.
        named: {option: queues that it names}.
        begins_stream: If true, the read is a new stream.

    Raises:
        NoRouteInfo: A topic has no route.
        BrokersAway: A broker is down, after retries.
        ConfigError: An option names a queue that its broker doesn't have.
    """
    by_source = {**named, "assign": options.assigned or ()}

    async def attempt() -> list[MessageQueue]:
        before = await cluster.brokers()
        lost = await _lost_brokers(cluster, options)
        queues = await find_queues(cluster, options, lost=() if begins_stream else lost.keys())
        # Only brokers that were registered both before and after the other requests.
        away = await _named_away(cluster, options, queues, by_source, before & await cluster.brokers())
        awaited = _awaited(cluster, options, queues)
        unnamed = await _unnamed_away(cluster, options, queues, lost) | awaited
        # A slave may lag behind: only the master has the end of a queue.
        behind = {
            (queue.topic, queue.broker_name): "its slave, whose master is away"
            for queue in queues
            if not cluster.has_master(queue)
        }
        fatal = away | awaited if begins_stream else unnamed | away | behind
        if fatal and options.fail_on_data_loss:
            raise BrokersAway(
                f"{'; '.join(_in_words(fatal))}. A part of the messages would be missing; to read the others, set the "
                "option failOnDataLoss=false. If a broker is gone for good: "
                "gantry admin deleteKvConfig -s LOST_BROKERS -k BROKER"
            )
        reason = "as a stream that begins" if begins_stream else "as failOnDataLoss is false"
        for missing in _in_words(unnamed | away):
            log.warning("%s; the read continues without its messages, %s", missing, reason)
        for missing in _in_words(behind):
            log.warning("%s; the read continues with the messages of the slave, %s", missing, reason)
        return queues

    return await cluster.retry(attempt, passing=(BrokersAway, RouteNotReady))


#: {(topic, broker that is down): source of this entry}.
_Away = dict[tuple[str, str], str]


def _in_words(away: _Away) -> list[str]:
    return [
        f"broker {broker} is away, which has queues of topic {topic} (says {source})"
        for (topic, broker), source in sorted(away.items())
    ]


async def _lost_brokers(cluster: ClusterClient, options: ReadOptions) -> dict[str, set[str]]:
    """Returns {topic of the read: lost brokers}. It is empty with the option assign, which names all queues."""
    if options.assigned is not None:
        return {}
    lost = await cluster.retry(lambda: cluster.lost_brokers(None if options.pattern is not None else options.topics))
    return {topic: names for topic, names in lost.items() if options.pattern is None or matches(options.pattern, topic)}


def _awaited(cluster: ClusterClient, options: ReadOptions, queues: list[MessageQueue]) -> _Away:
    """Returns the brokers that the routes of `queues` lack because the NameServers have just started."""
    if options.assigned is not None:
        return {}
    source = "a NameServer, which has just started"
    return {(topic, name): source for topic in {q.topic for q in queues} for name in cluster.awaited_brokers(topic)}


async def _unnamed_away(
    cluster: ClusterClient, options: ReadOptions, queues: list[MessageQueue], lost: Mapping[str, set[str]]
) -> _Away:
    """Returns the brokers that NameServers name, but that the routes of `queues` lack."""
    if options.assigned is not None:
        return {}
    has = {(queue.topic, queue.broker_name) for queue in queues}
    known = {(topic, name): "a NameServer, which lost it" for topic, names in lost.items() for name in names}
    topics = sorted({topic for topic, _ in has})
    for topic, names in zip(topics, await request_each(topics, cluster.brokers_elsewhere), strict=True):
        known |= {(topic, name): source for name, source in names.items()}
    return {key: source for key, source in known.items() if key not in has}


async def _named_away(
    cluster: ClusterClient,
    options: ReadOptions,
    queues: list[MessageQueue],
    named: Mapping[str, Iterable[MessageQueue]],
    registered: set[str],
) -> _Away:
    """Returns the missing brokers that the options, the checkpoint or an order configuration name.

    Raises ConfigError as `complete_queues` does.
    """
    check_topics(options, {"expectedBrokers": options.expected_brokers.keys() - {""}})
    has = {(queue.topic, queue.broker_name) for queue in queues}
    topics = sorted({topic for topic, _ in has} | set(options.topics))
    away: _Away = {}
    for topic in topics:
        for broker in options.expected_brokers_of(topic) - {name for of, name in has if of == topic}:
            away[topic, broker] = "the option expectedBrokers"
    orders = await request_each(topics, cluster.order_config)
    for topic, order in zip(topics, orders, strict=True):
        for broker in {item.partition(":")[0] for item in order.split(";") if item} - registered:
            away[topic, broker] = "its order configuration"
    for source, of_source in named.items():
        missing = set(of_source).difference(queues)
        gone = {queue for queue in missing if queue.broker_name not in registered}
        away |= {(queue.topic, queue.broker_name): source for queue in gone}
        # A queue of a checkpoint may have been removed, which is no error here.
        if source != CHECKPOINT and (wrong := sorted(missing - gone)):
            there = ", ".join(map(name_of, queues))
            raise ConfigError(f"option {source} names {', '.join(map(name_of, wrong))}; there are {there}")
    return away


def matches(pattern: str, topic: str) -> bool:
    """Whether subscribePattern includes this topic."""
    is_of_user = not is_system_topic(topic) and not topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
    return is_of_user and re.fullmatch(pattern, topic) is not None


def check_topics(options: ReadOptions, topics: Mapping[str, Iterable[str]]) -> None:
    """Raises ConfigError if an option names a topic that isn't read. `topics` is {option: topics that it names}.

    Without this check, a misspelt topic would have no effect.
    """
    for source, named in topics.items():
        for topic in sorted(named):
            if topic not in options.topics and not (options.pattern and matches(options.pattern, topic)):
                raise ConfigError(f"option {source} names topic {topic}, which isn't read")


def is_wanted(options: ReadOptions, queue: MessageQueue) -> bool:
    """Whether the options of the query include this queue of a checkpoint."""
    if options.pattern is not None:
        return matches(options.pattern, queue.topic)
    return queue.topic in options.topics if options.assigned is None else queue in options.assigned


def name_of(queue: MessageQueue) -> str:
    """The name of a queue in errors and log lines, such as `orders broker-a:0`."""
    return f"{queue.topic} {queue_key(queue)}"
