"""Which queues a read has, and what is done while a broker is away that has some of them.

A NameServer forgets a broker that has died, with all its queues, and a read of the others would have a part of the
rows without a word. So where anything says that a topic has more brokers than its route, a read waits for them and
fails in the end, or warns with failOnDataLoss=false. What says so: the option expectedBrokers, the queues that assign,
offsets as JSON or a checkpoint name, the configuration of an order topic, a static topic's table of queues, another
NameServer, and GantryMQ's NameServers for brokers that are away.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping

from gantrymq.errors import ConfigError, NoRouteInfo, RouteNotReady
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic
from gantrymq.spark.cluster import BrokersAway, Cluster
from gantrymq.spark.of_each import of_each
from gantrymq.spark.offsets import queue_key
from gantrymq.spark.options import ReadOptions

log = logging.getLogger(__name__)

#: What names a stream's queues.
CHECKPOINT = "the checkpoint"


async def find_queues(
    cluster: Cluster,
    options: ReadOptions,
    known: Iterable[MessageQueue] | None = None,
    lost: Collection[str] = (),
) -> list[MessageQueue]:
    """The readable queues that the options name, of brokers that are there.

    With `known`, a stream's, nothing is waited for: its topics may be away, as may `lost` ones and any that a pattern
    found. Raises NoRouteInfo for another one.
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
            # A NameServer that still waits for brokers does not answer for the topic.
            is_unanswered = known is None and isinstance(e, RouteNotReady) and not e.brokers
            if topic not in may_be_away or is_unanswered:
                raise
            log.warning("%s; going on without it for now", e)
    return queues if options.assigned is None else [queue for queue in queues if queue in options.assigned]


async def complete_queues(
    cluster: Cluster, options: ReadOptions, named: Mapping[str, Iterable[MessageQueue]], *, begins_stream: bool = False
) -> list[MessageQueue]:
    """`find_queues`, once all brokers are there that the topics are known to have; `named` are queues by what names
    them, an option as a rule.

    A stream that begins goes on without brokers that the user doesn't name, with a warning: it reads what they have
    when they are back. Raises NoRouteInfo, BrokersAway, and ConfigError for a queue that is named and not on a broker
    that is there.
    """
    by_source = {**named, "assign": options.assigned or ()}

    async def attempt() -> list[MessageQueue]:
        before = await cluster.brokers()
        lost = await _lost_brokers(cluster, options)
        queues = await find_queues(cluster, options, lost=() if begins_stream else lost.keys())
        # Brokers that were there all the time, and not one that has just come or gone.
        away = await _named_away(cluster, options, queues, by_source, before & await cluster.brokers())
        awaited = _awaited(cluster, options, queues)
        unnamed = await _unnamed_away(cluster, options, queues, lost) | awaited
        # A slave may be behind, and only the master knows where a queue ends.
        behind = {
            (queue.topic, queue.broker_name): "its slave, whose master is away"
            for queue in queues
            if not cluster.has_master(queue)
        }
        fatal = away | awaited if begins_stream else unnamed | away | behind
        if fatal and options.fail_on_data_loss:
            raise BrokersAway(
                f"{'; '.join(_in_words(fatal))}. A part of the messages would be missing; "
                'option("failOnDataLoss", "false") reads what is there. If a broker is gone for good: '
                "gantry admin deleteKvConfig -s LOST_BROKERS -k BROKER"
            )
        reason = "as a stream that begins" if begins_stream else "as failOnDataLoss is false"
        for missing in _in_words(unnamed | away):
            log.warning("%s; going on without its messages, %s", missing, reason)
        for missing in _in_words(behind):
            log.warning("%s; going on with what that has, %s", missing, reason)
        return queues

    return await cluster.until(attempt, passing=(BrokersAway, RouteNotReady))


#: (topic, broker): what says that the topic is on that broker, which is away.
_Away = dict[tuple[str, str], str]


def _in_words(away: _Away) -> list[str]:
    return [
        f"broker {broker} is away, which has queues of topic {topic} (says {source})"
        for (topic, broker), source in sorted(away.items())
    ]


async def _lost_brokers(cluster: Cluster, options: ReadOptions) -> dict[str, set[str]]:
    """By topic of the read; none for single queues, which say themselves what there should be."""
    if options.assigned is not None:
        return {}
    lost = await cluster.until(lambda: cluster.lost_brokers(None if options.pattern is not None else options.topics))
    return {topic: names for topic, names in lost.items() if options.pattern is None or matches(options.pattern, topic)}


def _awaited(cluster: Cluster, options: ReadOptions, queues: list[MessageQueue]) -> _Away:
    """The brokers that are missing in the routes of `queues` because the NameServers have just started."""
    if options.assigned is not None:
        return {}
    source = "a NameServer, which has just started"
    return {(topic, name): source for topic in {q.topic for q in queues} for name in cluster.awaited_brokers(topic)}


async def _unnamed_away(
    cluster: Cluster, options: ReadOptions, queues: list[MessageQueue], lost: Mapping[str, set[str]]
) -> _Away:
    """What NameServers know beyond the routes that `queues` are of."""
    if options.assigned is not None:
        return {}
    has = {(queue.topic, queue.broker_name) for queue in queues}
    known = {(topic, name): "a NameServer, which lost it" for topic, names in lost.items() for name in names}
    topics = sorted({topic for topic, _ in has})
    for topic, names in zip(topics, await of_each(topics, cluster.brokers_elsewhere), strict=True):
        known |= {(topic, name): source for name, source in names.items()}
    return {key: source for key, source in known.items() if key not in has}


async def _named_away(
    cluster: Cluster,
    options: ReadOptions,
    queues: list[MessageQueue],
    named: Mapping[str, Iterable[MessageQueue]],
    registered: set[str],
) -> _Away:
    """What options, checkpoint and configuration name. Raises ConfigError as `complete_queues` does."""
    check_topics(options, {"expectedBrokers": options.expected_brokers.keys() - {""}})
    has = {(queue.topic, queue.broker_name) for queue in queues}
    topics = sorted({topic for topic, _ in has} | set(options.topics))
    away: _Away = {}
    for topic in topics:
        for broker in options.expected_brokers_of(topic) - {name for of, name in has if of == topic}:
            away[topic, broker] = "the option expectedBrokers"
    orders = await of_each(topics, cluster.order_of)
    for topic, order in zip(topics, orders, strict=True):
        for broker in {item.partition(":")[0] for item in order.split(";") if item} - registered:
            away[topic, broker] = "its order configuration"
    for source, of_source in named.items():
        missing = set(of_source).difference(queues)
        gone = {queue for queue in missing if queue.broker_name not in registered}
        away |= {(queue.topic, queue.broker_name): source for queue in gone}
        # A checkpoint may name what isn't there any more.
        if source != CHECKPOINT and (wrong := sorted(missing - gone)):
            there = ", ".join(map(name_of, queues))
            raise ConfigError(f"option {source} names {', '.join(map(name_of, wrong))}; there are {there}")
    return away


def matches(pattern: str, topic: str) -> bool:
    """Whether subscribePattern means this topic."""
    is_of_user = not is_system_topic(topic) and not topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
    return is_of_user and re.fullmatch(pattern, topic) is not None


def check_topics(options: ReadOptions, topics: Mapping[str, Iterable[str]]) -> None:
    """Raises ConfigError for a topic that isn't read; `topics` are by option. The one that is meant
    would be read as a whole, or a part of it, without a word."""
    for source, named in topics.items():
        for topic in sorted(named):
            if topic not in options.topics and not (options.pattern and matches(options.pattern, topic)):
                raise ConfigError(f"option {source} names topic {topic}, which isn't read")


def is_wanted(options: ReadOptions, queue: MessageQueue) -> bool:
    """Whether a queue of a checkpoint is still among those of the options."""
    if options.pattern is not None:
        return matches(options.pattern, queue.topic)
    return queue.topic in options.topics if options.assigned is None else queue in options.assigned


def name_of(queue: MessageQueue) -> str:
    """For messages."""
    return f"{queue.topic} {queue_key(queue)}"
